"""One socket to one server: commands go out as they come, replies are matched in order.

Many callers share a connection, so concurrent calls are pipelined without waiting for each other; cancelling a caller
only drops its reply. Nothing is ever sent twice from here: whether to repeat is decided by those who know if they may.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from veredus import forks
from veredus.errors import AuthError, ConnectionLost, NotReady, StoreError
from veredus.store import faults

logger = logging.getLogger("veredus.store")

Argument = str | bytes | int | float
_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


def _pack_any(args: Sequence[Argument]) -> bytes:
    """With names that are no UTF-8, which `store.places.text` has read."""
    return _pack(tuple([arg.encode("utf-8", "surrogateescape") if isinstance(arg, str) else arg for arg in args]))


OnMessage = Callable[[bytes, bytes], None]

STANDSTILL = 0.5
"""Seconds by which the watchdog must be late to say that this process stood still, not the server."""
SECOND_CHANCE = 1.0
"""Seconds for reading answers after that, at least."""
IDLE = 5.0
"""Seconds without a word after which a connection that nobody waits on is checked before it is used."""
SILENCE = 1.0
"""Seconds without a byte after which a call that waits is a reason to try another connection."""
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""What the system does for an idle connection, in seconds, where it can: it asks early enough that nothing on the way
forgets the connection, and closes one whose other end is gone after half a minute."""


class Connection(asyncio.Protocol):
    """A connected socket. Made by `open_connection`, unusable once it broke."""

    def __init__(self, where: str, timeout: float) -> None:
        self.where = where
        self.alive = False
        self.on_message: OnMessage | None = None
        self.on_close: Callable[[], None] | None = None
        self.on_silence: Callable[[], None] | None = None
        self.heard_at = 0.0
        """When bytes last came; at first, when it was connected."""
        self._timeout = timeout
        self._silence = min(SILENCE, timeout / 2)
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=faults.from_reply, protocolError=ConnectionLost)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._written = 0
        self._unsent = 0
        self._sent = 0
        """Bytes that were still to be sent, and that had been sent, when the watchdog last looked."""
        self._sent_at = 0.0
        """When the watchdog last saw that some of it had been sent."""
        self._pid = os.getpid()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and time.monotonic() - self.heard_at > IDLE

    def call(self, *args: Argument, timeout: float | None = None) -> asyncio.Future[Any]:
        """Send one command; the future has its reply. `timeout` is for commands that block on purpose."""
        try:
            packed = _pack(args)
        except UnicodeEncodeError:
            packed = _pack_any(args)
        return self._send(packed, 1, timeout)[0]

    def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[asyncio.Future[Any]]:
        """Send several commands in one write."""
        try:
            packed = b"".join([_pack(tuple(args)) for args in commands])
        except UnicodeEncodeError:
            packed = b"".join([_pack_any(args) for args in commands])
        return self._send(packed, len(commands), None)

    def _send(self, data: bytes, count: int, timeout: float | None) -> list[asyncio.Future[Any]]:
        if not self.alive or self._transport is None:
            raise faults.NotSent(f"the connection to {self.where} {self._why()}")
        expires = time.monotonic() + (self._timeout if timeout is None else timeout)
        futures = [self._loop.create_future() for _ in range(count)]
        self._waiting.extend([(future, expires) for future in futures])
        self._transport.write(data)
        self._written += len(data)
        if self._watchdog is None:
            self._is_sending()
            self._watch_in(self._silence)
        return futures

    def _watch_in(self, seconds: float) -> None:
        self._watch_at = time.monotonic() + seconds
        self._watchdog = self._loop.call_later(seconds, self._watch)

    def _is_sending(self) -> bool:
        """Whether some of what was still to be sent at the last look has been sent since."""
        unsent, sent = self._unsent, self._sent
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._sent = self._written - self._unsent
        return unsent > 0 and self._sent > sent

    def close(self, reason: StoreError | None = None) -> None:
        """Close the socket; whoever still waits gets the reason."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(reason or ConnectionLost(f"the connection to {self.where} was closed"))

    def _watch(self) -> None:
        """A server that does not answer in time is treated as gone; checked rarely, not with a timer per call. While an
        answer is still coming, or the question is still being sent, it is only slow."""
        self._watchdog = None
        if not self._waiting or not self.alive or self._transport is None:
            return
        now = time.monotonic()
        left = max(self._waiting[0][1], self.heard_at + self._timeout) - now
        if self._is_sending():
            self._sent_at = now
        if left > 0:
            self._watch_in(min(left, self._silence) + 0.01)
            silence = now - max(self.heard_at, self._sent_at, self._waiting[0][1] - self._timeout)
            if self.on_silence is not None and silence >= self._silence:
                self.on_silence()
        elif now - self._watch_at > STANDSTILL:
            # It is this process that was late: the answer may have come long ago and only not been read.
            self._watch_in(max(self._timeout, SECOND_CHANCE))
        elif now - self._sent_at < self._timeout:
            self._watch_in(self._silence)
        else:
            self.close(faults.NoAnswer(f"{self.where} did not answer in time"))

    def forked(self) -> None:
        """In a fork: the socket is the parent's, and so are those who wait for replies."""
        if self.alive:
            forks.cut(self._transport)
        forks.leave(self._transport, self._waiting, self._watchdog)
        self.alive, self.on_close, self.on_message, self.on_silence = False, None, None, None
        self._transport, self._waiting, self._watchdog = None, deque(), None

    def _why(self) -> str:
        return "is closed" if self._pid == os.getpid() else f"belongs to process {self._pid}, which was forked"

    def _fail(self, reason: StoreError) -> None:
        was_alive, self.alive = self.alive, False
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(reason)(*reason.args))
                future.exception()  # a caller that was cancelled will not look: no warning about it
        if was_alive and self.on_close is not None:
            self.on_close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.heard_at = time.monotonic()
        forks.hold(self)
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionLost(f"{self.where} closed the connection" + (f": {exc}" if exc else "")))

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self.heard_at = time.monotonic()
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if self.on_message is not None and isinstance(reply, list):
                    self._push(reply)
                elif waiting:
                    future = waiting.popleft()[0]
                    if not future.done():
                        if isinstance(reply, StoreError):
                            future.set_exception(reply)
                        else:
                            future.set_result(reply)
        except ConnectionLost as exc:
            self.close(ConnectionLost(f"{self.where} sent something that is not Redis: {exc}"))

    def _push(self, reply: list[Any]) -> None:
        if reply[0] in (b"message", b"smessage") and self.on_message is not None:
            try:
                self.on_message(reply[1], reply[2])
            except Exception:  # anybody can publish anything: one message must not cost the subscription
                logger.exception("a message on channel %s could not be handled", reply[1].decode(errors="replace"))
        elif reply[0] == b"sunsubscribe":  # never asked for: the slot of the channel has moved to another node
            self.close(ConnectionLost(f"{self.where} no longer has the slot of a channel"))
        elif self._waiting:
            future = self._waiting.popleft()[0]
            if not future.done():
                future.set_result(reply)


async def open_connection(
    endpoint: tuple[str, int] | str,
    *,
    timeout: float,
    username: str = "",
    password: str = "",
    db: int = 0,
    tls: Any = None,
    name: str = "veredus",
) -> Connection:
    """Connect and introduce ourselves. Raises ConnectionLost or AuthError, never anything else."""
    where = endpoint if isinstance(endpoint, str) else f"{endpoint[0]}:{endpoint[1]}"
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(where, timeout)

    connection: Connection | None = None
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            if isinstance(endpoint, str):
                _, connection = await loop.create_unix_connection(make, endpoint)
            else:
                host = endpoint[0] if tls else None
                _, connection = await loop.create_connection(make, *endpoint, ssl=tls, server_hostname=host)
            await _introduce(connection, username, password, db, name)
    except BaseException as exc:
        if connection is not None:
            connection.close()
        if isinstance(exc, AuthError):
            raise AuthError(f"{where}: {exc}") from exc
        if isinstance(exc, StoreError):
            raise
        if limit.expired() and loop.time() - (limit.when() or 0.0) > STANDSTILL:
            # This process was late, not the server.
            return await open_connection(
                endpoint, timeout=timeout, username=username, password=password, db=db, tls=tls, name=name
            )
        if isinstance(exc, OSError | TimeoutError):
            raise faults.from_system(exc, where) from exc
        raise
    return connection


async def _introduce(connection: Connection, username: str, password: str, db: int, name: str) -> None:
    if password:
        await connection.call("AUTH", username, password) if username else await connection.call("AUTH", password)
    if db:
        await connection.call("SELECT", db)
    try:
        await connection.call("CLIENT", "SETNAME", name)
    except StoreError as exc:
        # A user without the right to CLIENT works all the same; one that is not logged in does not.
        if str(exc).startswith("NOAUTH") or isinstance(exc, ConnectionLost | NotReady):
            raise
