"""Translates Redis's error replies and the system's connection errors into Veredus's errors, in one place."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, TypeVar

from veredus.errors import AuthError, CommandRefused, ConnectionLost, NotReady, ServerFull, StoreError

T = TypeVar("T")


class NoScript(CommandRefused):
    """The server does not have this script yet: nothing was run."""


class NotSent(ConnectionLost):
    """There is no connection: nothing was sent, so nothing has changed."""


class NoAnswer(ConnectionLost):
    """The server did not answer in time, and did not answer on a fresh connection either."""


class Moved(NotReady):
    """Another node of the cluster has this slot: nothing was run."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, _, endpoint = text.split(" ")[:3]
        host, _, port = endpoint.rpartition(":")
        self.asking = kind == "ASK"
        # without a host it means the node that answered: the cluster fills it in
        self.endpoint = (host.strip("[]"), int(port))


_AUTH = ("NOAUTH", "WRONGPASS", "NOPERM")
_NO_PERMISSION = ("ACL failure in script", "The user executing the script can't")
"""Newer servers and Redis 6.2, of a command in a script."""
_WRONG_PASSWORD = ("invalid password", "without any password configured")
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
    """The exception for an error reply. The parser calls it, so that error replies are Veredus's errors from the
    start."""
    code = text.partition(" ")[0]
    if code == "NOSCRIPT":
        return NoScript(text)
    if code in ("MOVED", "ASK"):
        return Moved(text)
    if code == "OOM" or _FULL in text:
        return ServerFull(text)
    if code in _AUTH or any(sign in text for sign in (*_NO_PERMISSION, *_WRONG_PASSWORD)):
        return AuthError(text)
    if "max number of clients" in text:  # sent in place of the reply to the first call, before the connection is closed
        return NotReady(text)
    # Redis 6.2 wraps the error of a command inside a script: "ERR Error running script ...: -READONLY ..."
    if code in _NOT_READY or _TOO_MANY in text or any(sign in text for sign in _IN_SCRIPTS):
        return NotReady(text)
    return CommandRefused(text)


def error_in(reply: list[Any]) -> StoreError | None:
    """An error in place of one of the values. None of our scripts replies so; it must not be taken for success."""
    for one in reply:
        if isinstance(one, StoreError):
            return one
    return None


def from_system(exc: BaseException, where: str) -> StoreError:
    """The exception for a connection that could not be made or has failed."""
    if isinstance(exc, StoreError):
        return exc
    if isinstance(exc, ssl.SSLError):
        return NotSent(f"cannot connect to {where}: TLS: {exc.reason or exc}")
    if isinstance(exc, asyncio.TimeoutError | TimeoutError):
        return NotSent(f"cannot connect to {where}: no answer in time")
    return NotSent(f"cannot connect to {where}: {exc.strerror if isinstance(exc, OSError) and exc.strerror else exc}")


async def shared(task: asyncio.Task[T], problem: str) -> T:
    """Wait for something that others wait for too. If it is cancelled, all of them get a lost connection, not a
    cancellation."""
    caller = asyncio.current_task()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise ConnectionLost(problem) from None
        raise
