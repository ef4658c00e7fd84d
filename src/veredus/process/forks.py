"""Forks: a process must not use the connections of its parent. Objects with open connections register here.

A fork has a copy of its parent's memory and shares its sockets: it would write to the parent's connections and read the
parent's replies. Python runs a hook in every fork, so that no check is needed per call. Started programs inherit no
sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import traceback
import weakref
from typing import NoReturn, Protocol


class ForkAware(Protocol):
    """An object that only the process that made it may use."""

    def forked(self) -> None:
        """Called first in a fork: drop all connections. Must not touch the shared event loop or sockets: what is
        removed from the loop is also removed from the parent's."""


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_leaked: list[object] = []


def register(thing: ForkAware) -> None:
    """Call its `forked` in every fork, as long as it exists."""
    _registered.add(thing)


def leak(*things: object) -> None:
    """In a fork: keep unused objects alive, because destroying them would log warnings or change the parent's loop."""
    _leaked.extend(things)


def close_socket(transport: asyncio.BaseTransport | None) -> None:
    """In a fork: replace the socket that a transport shares with the parent by a closed one."""
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is None or raw.fileno() < 0:
        return
    closed, other = socket.socketpair()
    other.close()
    with closed:
        os.dup2(closed.fileno(), raw.fileno(), inheritable=False)


def end_in(loop: asyncio.AbstractEventLoop) -> None:
    """End a fork that returns to this event loop. It would do the parent's work a second time."""
    _loops.add(loop)


def require(pid: int, what: str) -> None:
    """Raises RuntimeError in a fork of this process."""
    if os.getpid() != pid:
        raise RuntimeError(f"{what} works only in process {pid}, not in a fork of it")


def end(error: BaseException | None) -> NoReturn:
    """End a fork of a handler that returned instead of exiting. The original process goes on with the task."""
    code = 0
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_returned_fork() -> None:
    with contextlib.suppress(BaseException):
        sys.stderr.write(
            f"process {os.getpid()}: a fork returned to the event loop of its parent and is ended; in a fork of an "
            "async handler, do not await anything, and exit with os._exit()\n"
        )
        sys.stderr.flush()
    os._exit(1)


def _in_child() -> None:
    for thing in list(_registered):
        with contextlib.suppress(Exception):
            thing.forked()
    for loop in list(_loops):
        with contextlib.suppress(Exception):
            loop.call_soon(_end_returned_fork)
    leak(*_loops)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
