"""What can happen to a Redis server while everybody works: faults that begin, last a while and end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.support.servers import RealServer, free_port
from tests.support.waiting import until_sync

CLOCK = Path(__file__).with_name("clock.c")


class ClockedServer(RealServer):
    """A durable server whose clock can be set while it runs, where there is a C compiler."""

    def __init__(self, folder: Path) -> None:
        self.has_clock = shutil.which("cc") is not None
        self._library, self._ahead = folder / "clock.so", folder / "clock"
        if self.has_clock:
            subprocess.run(["cc", "-shared", "-fPIC", "-o", self._library, CLOCK, "-ldl"], check=True)
        self.set_clock(0)
        options = ("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local")
        super().__init__("valkey", *options, port=free_port())

    def set_clock(self, seconds: int) -> None:
        """How far the server's clock is ahead of this machine's. The file is replaced, never seen half written."""
        new = self._ahead.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._ahead)

    def start(self) -> None:
        values = {"LD_PRELOAD": str(self._library), "CLOCK_AHEAD": str(self._ahead)}
        with _environment(values if self.has_clock else {}):
            super().start()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


class Fault(NamedTuple):
    name: str
    act: Callable[[ClockedServer], None]
    """Makes it happen, lets it last, ends it."""
    outages: int = 1
    """How often the server is away for a worker meanwhile."""


def _last(seconds: float) -> None:
    time.sleep(seconds)


def stop(seconds: float) -> Fault:
    def act(server: ClockedServer) -> None:
        server.freeze()
        _last(seconds)
        server.thaw()

    return Fault(f"SIGSTOP {seconds:g} s", act)


def setting(name: str, values: dict[str, str], seconds: float, *, kill: bool = False) -> Fault:
    """CONFIG SET for a while; with `kill`, everybody has to connect again meanwhile."""

    def act(server: ClockedServer) -> None:
        with server.client() as client:
            before = {key: str(client.config_get(key)[key]) for key in values}
            for key, value in values.items():
                client.config_set(key, value)
            if kill:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            _last(seconds)
            for key, value in before.items():
                client.config_set(key, value)

    return Fault(name, act)


def commands(name: str, *lines: str, times: int = 1, seconds: float = 0.0) -> Fault:
    def act(server: ClockedServer) -> None:
        with server.client() as client:
            for _ in range(times):
                for line in lines:
                    client.execute_command(*line.split())
                _last(seconds)

    return Fault(name, act)


def no_disk(seconds: float) -> Fault:
    """A snapshot cannot be written, so the server refuses all writes (MISCONF)."""

    def act(server: ClockedServer) -> None:
        with server.client() as client:

            def saved(status: str) -> bool:
                with contextlib.suppress(redis.ResponseError):
                    client.execute_command("BGSAVE")
                return bool(client.info("persistence")["rdb_last_bgsave_status"] == status)

            Path(server.folder, "dump.rdb").unlink(missing_ok=True)
            Path(server.folder, "dump.rdb").mkdir()
            client.config_set("save", "3600 1")
            until_sync(lambda: saved("err"), what="a snapshot that fails")
            _last(seconds)
            Path(server.folder, "dump.rdb").rmdir()
            until_sync(lambda: saved("ok"), what="a snapshot")
            client.config_set("save", "")

    return Fault("full disk (MISCONF)", act)


def busy(seconds: float) -> Fault:
    """A script that does not end; the server answers BUSY until somebody ends it."""

    def act(server: ClockedServer) -> None:
        with server.client() as client, server.client() as other:
            client.config_set("busy-reply-threshold", "200")

            def run() -> None:
                with contextlib.suppress(redis.RedisError):
                    other.eval("while true do end", 0)

            runner = threading.Thread(target=run)
            runner.start()
            _last(seconds)
            client.script_kill()
            runner.join()

    return Fault("a script that hangs (BUSY)", act)


def read_only(seconds: float) -> Fault:
    """An orderly failover to a replica and back: meanwhile the address that everybody knows is a replica's."""

    def act(server: ClockedServer) -> None:
        replica = RealServer("valkey", "--replicaof", f"127.0.0.1 {server.port}", port=free_port())
        try:
            with server.client() as main, replica.client() as other:
                until_sync(lambda: _in_sync(main), what="a replica in step")
                main.execute_command("FAILOVER", "TO", "127.0.0.1", str(replica.port), "TIMEOUT", "5000")
                until_sync(lambda: _role(main) == "slave", what="the failover")
                _last(seconds)
                until_sync(lambda: _in_sync(other), what="the old master in step")
                other.execute_command("FAILOVER", "TO", "127.0.0.1", str(server.port), "TIMEOUT", "5000")
                until_sync(lambda: _role(main) == "master", what="the way back")
        finally:
            replica.close()

    return Fault("failover and back (READONLY)", act, 2)


def _role(client: Any) -> str:
    with contextlib.suppress(redis.RedisError):
        return str(client.info("replication")["role"])
    return ""


def _in_sync(client: Any) -> bool:
    with contextlib.suppress(redis.RedisError):
        found = client.info("replication").get("slave0")
        return bool(found and found["state"] == "online" and found["lag"] <= 1)
    return False


def replicaof(seconds: float) -> Fault:
    """Somebody makes the server a replica of nobody's: it refuses writes until it is a master again. Its data stay."""

    def act(server: ClockedServer) -> None:
        with server.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            _last(seconds)
            client.execute_command("REPLICAOF", "NO", "ONE")

    return Fault("REPLICAOF (READONLY)", act)


def kill(seconds: float, *, load: int = 0) -> Fault:
    """kill -9 and a start after a while; with `load`, so much data that reading it takes a while (LOADING)."""

    def act(server: ClockedServer) -> None:
        _ballast(server, load, "redis.call('SET', 'ballast:' .. i, string.rep('x', 1000))")
        server.kill()
        _last(seconds)
        server.start()
        _ballast(server, load, "redis.call('DEL', 'ballast:' .. i)")

    return Fault(f"kill -9, LOADING {load} keys" if load else "kill -9", act)


def _ballast(server: ClockedServer, keys: int, do: str) -> None:
    """In portions, so that nobody waits for it."""
    with server.client() as client:
        for first in range(0, keys, 1000):
            client.eval(f"for i = ARGV[1], ARGV[1] + 999 do {do} end", 0, first)


def clock(seconds: int, name: str) -> Fault:
    def act(server: ClockedServer) -> None:
        server.set_clock(seconds)
        with server.client() as client:
            assert abs(client.time()[0] - time.time() - seconds) < 60, "the clock of the server was not set"
        _last(5.0)

    return Fault(name, act)


def twenty() -> list[Fault]:
    return [
        stop(3),
        setting("out of memory", {"maxmemory": "1mb"}, 4.0),
        commands("SCRIPT FLUSH", "SCRIPT FLUSH", times=3, seconds=0.5),
        clock(3600, "clock +1 h"),
        commands("CLIENT PAUSE ALL", "CLIENT PAUSE 3000 ALL", seconds=3.0),
        commands("CLIENT PAUSE WRITE", "CLIENT PAUSE 3000 WRITE", seconds=3.0),
        setting("maxclients", {"maxclients": "1"}, 4.0, kill=True),
        no_disk(3.0),
        stop(8),
        setting("timeout 1", {"timeout": "1"}, 6.0),
        commands("CLIENT KILL", "CLIENT KILL TYPE normal SKIPME yes", times=5, seconds=0.3),
        clock(3000, "clock -10 min"),
        commands("DEBUG SLEEP 3", "DEBUG SLEEP 3"),
        busy(3.0),
        replicaof(3.0),
        read_only(3.0),
        kill(1.0),
        kill(0.2, load=100_000),
        stop(20),
        kill(5.0),
    ]
