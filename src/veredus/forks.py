"""Forks: a process must not use what its parent has open. Whoever has something open says here how to let go of it.

A fork has a copy of its parent's memory and shares its sockets: what it sends goes out on the parent's connection, and
it may read replies that the parent waits for. Python tells of every fork in the child (not of programs that are
started: those inherit no sockets), so nothing is asked per call.
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


class Held(Protocol):
    """Something that belongs to the process that made it."""

    def forked(self) -> None:
        """Called in a fork, before anything else: let go. Must not touch event loops or sockets that are shared: what
        it removes from an event loop is gone from the parent's too."""


_held: weakref.WeakSet[Held] = weakref.WeakSet()
_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_left: list[object] = []


def hold(thing: Held) -> None:
    """From now on it is told of forks, as long as it lives."""
    _held.add(thing)


def leave(*things: object) -> None:
    """In a fork: nobody uses these any more, but to destroy them would complain, or reach into the parent's loop."""
    _left.extend(things)


def cut(transport: asyncio.BaseTransport | None) -> None:
    """In a fork: put a closed socket in the place of the one that a transport shares with the parent."""
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is None or raw.fileno() < 0:
        return
    closed, other = socket.socketpair()
    other.close()
    with closed:
        os.dup2(closed.fileno(), raw.fileno(), inheritable=False)


def end_in(loop: asyncio.AbstractEventLoop) -> None:
    """A fork that comes back to this event loop ends, instead of doing the work of its parent a second time."""
    _loops.add(loop)


def require(pid: int, what: str) -> None:
    """Raises RuntimeError in a fork of this process."""
    if os.getpid() != pid:
        raise RuntimeError(f"{what} works in process {pid}, not in a fork of it")


def end(error: BaseException | None) -> NoReturn:
    """A fork of a handler came back from it, instead of ending itself. It ends here: the handler's own process goes on
    with the task."""
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


def _came_back() -> None:
    with contextlib.suppress(BaseException):
        sys.stderr.write(
            f"process {os.getpid()}: a fork came back to the event loop of its parent and ends; in a fork of an async "
            "handler, await nothing and end with os._exit()\n"
        )
        sys.stderr.flush()
    os._exit(1)


def _in_child() -> None:
    for thing in list(_held):
        with contextlib.suppress(Exception):
            thing.forked()
    for loop in list(_loops):
        with contextlib.suppress(Exception):
            loop.call_soon(_came_back)
    leave(*_loops)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
