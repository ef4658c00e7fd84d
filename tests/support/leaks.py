"""What a test leaves behind: processes, sockets, connections to a shared server, keys that come after its end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.support.servers import RealServer

MARK = "STARTED_BY_TEST"
"""Set in the environment while a test runs: a process that inherited it was started by that test, an orphan too."""

PATIENCE = 10.0
"""Seconds in which what was told to end has to be gone. What is still there then was not told, or does not listen."""

_KEPT = (
    "multiprocessing.resource_tracker",  # Python starts one for the whole life of a process
    "/veredus-test-",  # the server of `app.test()`: one for all tests of a process, as users have it
)


T = TypeVar("T")


class Leak(AssertionError):
    """Something outlived its test."""


class SharedServers:
    """Servers that many tests use one after another, each started when first asked for."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._started: dict[str, RealServer] = {}
        self._kept: list[RealServer] = []
        self._used: set[str] = set()
        self._last_test: dict[str, str] = {}

    def get(self, product: str) -> RealServer:
        """An empty server. Fails if keys came after the test that had it last: something of it is still alive."""
        if product not in self._started:
            self._started[product] = RealServer(product)
        server = self._started[product]
        keys = server.keys()  # none: it was emptied after its last use
        last = self._last_test.pop(product, None)
        if keys:
            server.flush()
        if keys and last is not None:
            raise Leak(f"{last} ended and something of it still wrote to {product}: {keys}")
        self._used.add(product)
        return server

    def keep(self, servers: Iterable[RealServer]) -> None:
        """These, too, are there for many tests: somebody else starts, empties and ends them."""
        self._kept += servers

    def close_clients(self) -> None:
        for server in self._servers:
            server.close_clients()

    def give_back(self, test: str) -> list[str]:
        """The connections that a test left on the servers it used, now closed; the servers are empty afterwards."""
        left: list[str] = []
        for product in self._used:
            server = self._started[product]
            if not server.alive():
                continue  # killed by the test; started again for the next
            left += [f"a connection to {product}: {line}" for line in _gone(server.connections, self._patience)]
            server.end_connections()
            server.flush()
            self._last_test[product] = test
        self._used.clear()
        return left

    @property
    def pids(self) -> set[int]:
        return {server.pid for server in self._servers if server.alive()}

    @property
    def _servers(self) -> list[RealServer]:
        return [*self._started.values(), *self._kept]

    def close(self) -> None:
        for server in self._started.values():
            server.close()


@contextmanager
def nothing_left_behind(test: str, servers: SharedServers, patience: float = PATIENCE) -> Iterator[None]:
    """Fails if what runs inside leaves something behind, and ends what it finds, so that the next test is not hurt."""
    if not sys.platform.startswith("linux"):  # all of it is read from /proc
        yield
        servers.give_back(test)
        return
    children, sockets = _children(), _sockets()
    outer, mark = os.environ.get(MARK), f"{os.getpid()} {time.monotonic_ns()} {test}"
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]
        if outer is not None:
            os.environ[MARK] = outer
    pids = _gone(lambda: _marked(mark, servers.pids) | (_children() - children - servers.pids), patience)
    left = [f"process {pid}: {_command_line(pid)}" for pid in sorted(pids)]
    for pid in pids:
        _kill(pid)
    servers.close_clients()
    if _sockets() - sockets:
        gc.collect()  # a client that nobody holds any more closes its socket when it is collected
    left += servers.give_back(test)
    left += sorted(f"{name} of this process" for name in _gone(lambda: _sockets() - sockets, patience))
    if left:
        raise Leak(f"{test} left behind: " + "; ".join(left))


def _gone(look: Callable[[], set[T]], patience: float) -> set[T]:
    """What is still there after a while; empty as soon as nothing is."""
    give_up = time.monotonic() + patience
    while (found := look()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return found


_seen: set[int] = set()  # processes that were looked at before: only the new ones are read


def _marked(mark: str, kept: set[int]) -> set[int]:
    """Living processes with this mark in their environment."""
    global _seen
    wanted = f"{MARK}={mark}".encode()
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    found = {pid for pid in pids - _seen - kept if wanted in _read(pid, "environ") and _counts(pid)}
    _seen = pids - found
    return found


def _children() -> set[int]:
    """Living children of this process, those with an environment of their own too."""
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            pids.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except OSError:
            pass  # this thread has just ended
    return {pid for pid in pids if _counts(pid)}


def _sockets() -> set[str]:
    names: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # the one that lists them
    return {name for name in names if name.startswith("socket:")}


def _counts(pid: int) -> bool:
    """A zombie does not: it has ended, and only its parent has not asked yet."""
    alive = _read(pid, "stat").rpartition(b") ")[2][:1] not in (b"", b"Z", b"X")
    return alive and not any(kept in _command_line(pid) for kept in _KEPT)


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to somebody else


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
