"""Redis's error replies and the system's connection errors, translated into our error tree in one place."""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

from veredus.errors import AuthError, CommandRefused, ConnectionLost, NotReady, ServerFull, StoreError

T = TypeVar("T")


class NoScript(CommandRefused):
    """The server does not have this script yet: nothing was run."""


class NotSent(ConnectionLost):
    """There is no connection: what was to be sent did not leave, so nothing came of it."""


class NoAnswer(ConnectionLost):
    """The server let its time for an answer pass, and did not answer on a fresh connection either."""


class Moved(NotReady):
    """Another node of the cluster has this slot: nothing was run."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, _, endpoint = text.split(" ")[:3]
        host, _, port = endpoint.rpartition(":")
        self.asking = kind == "ASK"
        # Without a host it means the one that said so: the cluster fills it in.
        self.endpoint = (host.strip("[]"), int(port))


_AUTH = ("NOAUTH", "WRONGPASS", "NOPERM")
_NOT_READY = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "UNBLOCKED",
    "NOREPLICAS",
    "MISCONF",
)
_TOO_MANY = "max number of clients reached"
_FULL = "-OOM command not allowed"
_IN_SCRIPTS = ("READONLY", "NOREPLICAS", "MISCONF", "CLUSTERDOWN", "access a non local key in a cluster node")


def from_reply(text: str) -> StoreError:
    """The exception for an error reply; given to the parser, so that replies are errors of ours from the start."""
    code = text.partition(" ")[0]
    if code == "NOSCRIPT":
        return NoScript(text)
    if code in ("MOVED", "ASK"):
        return Moved(text)
    if code == "OOM" or _FULL in text:
        return ServerFull(text)
    if code in _AUTH or "invalid password" in text or "without any password configured" in text:
        return AuthError(text)
    if "max number of clients" in text:  # said instead of the reply to the first call, and the connection is closed
        return NotReady(text)
    # Redis 6.2 wraps what a command inside a script said: "ERR Error running script ...: -READONLY ..."
    if code in _NOT_READY or _TOO_MANY in text or any(sign in text for sign in _IN_SCRIPTS):
        return NotReady(text)
    return CommandRefused(text)


def from_system(exc: BaseException, where: str) -> StoreError:
    """The exception for a connection that could not be made or broke."""
    if isinstance(exc, StoreError):
        return exc
    if isinstance(exc, ssl.SSLError):
        return NotSent(f"cannot connect to {where}: TLS: {exc.reason or exc}")
    if isinstance(exc, asyncio.TimeoutError | TimeoutError):
        return NotSent(f"cannot connect to {where}: no answer in time")
    return NotSent(f"cannot connect to {where}: {exc.strerror if isinstance(exc, OSError) and exc.strerror else exc}")


async def shared(task: asyncio.Task[T], problem: str) -> T:
    """Wait for what others wait for too. Called off, it is a lost connection for all of them, and nobody's cancel."""
    caller = asyncio.current_task()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise ConnectionLost(problem) from None
        raise
