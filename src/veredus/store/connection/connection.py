"""One socket to one server: commands are sent in order and replies are matched in order.

Many callers share a connection, so concurrent calls are pipelined without waiting for each other. Cancelling a caller
only drops its reply. Nothing is sent twice here: only the callers know what may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import hiredis

from veredus.errors import AuthError, ConnectionLost, NotReady, StoreError
from veredus.process import forks
from veredus.store.connection import error_replies

logger = logging.getLogger("veredus.store")

Argument = str | bytes | int | float
_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


def _pack_any(args: Sequence[Argument]) -> bytes:
    """Names that are not UTF-8 have been decoded with surrogateescape."""
    return _pack(tuple([arg.encode("utf-8", "surrogateescape") if isinstance(arg, str) else arg for arg in args]))


OnMessage = Callable[[bytes, bytes], None]

STANDSTILL = 0.5
"""The watchdog's delay in seconds beyond which this process, not the server, stood still."""
SECOND_CHANCE = 1.0
"""Seconds for reading replies after that, at least."""
IDLE = 5.0
"""Seconds without data after which an idle connection is checked before it is used."""
SILENCE = 1.0
"""Seconds without a byte after which a waiting call tries another connection."""
_AT_ONCE = 64 * 1024
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""TCP keepalive, in seconds, where the system supports it: early enough that nothing on the way forgets the
connection; a connection whose other end is gone is closed after half a minute."""


class Connection(asyncio.Protocol):
    """A connected socket. Made by `open_connection`; unusable once it has failed."""

    def __init__(self, where: str, timeout: float) -> None:
        self.where = where
        self.alive = False
        self.on_message: OnMessage | None = None
        self.on_close: Callable[[], None] | None = None
        self.on_silence: Callable[[], None] | None = None
        self.heard_at = 0.0
        """When data was last received; initially, when the connection was made."""
        self.silence = min(SILENCE, timeout / 2)
        """Seconds without a byte after which `on_silence` is called while a call waits."""
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=error_replies.from_reply, protocolError=ConnectionLost)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._written = 0
        self._unsent = 0
        self._sent = 0
        """Bytes still to send, and bytes sent, when the watchdog last looked."""
        self._sent_at = 0.0
        """When the watchdog last saw that bytes had been sent."""
        self._pid = os.getpid()
        self._fd = -1

    @property
    def is_idle(self) -> bool:
        return not self._waiting and time.monotonic() - self.heard_at > IDLE

    def call(self, *args: Argument, timeout: float | None = None) -> asyncio.Future[Any]:
        """Send one command; the future gets its reply. `timeout` is for commands that block on purpose."""
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
            raise error_replies.NotSent(f"the connection to {self.where} {self._why()}")
        expires = time.monotonic() + (self._timeout if timeout is None else timeout)
        futures = [self._loop.create_future() for _ in range(count)]
        self._waiting.extend([(future, expires) for future in futures])
        self._transport.write(data)
        self._written += len(data)
        if self._watchdog is None:
            self._is_sending()
            self._watch_in(self.silence)
        return futures

    def is_next(self, reply: Any) -> bool:
        """Whether everything was sent and this reply is the only one to come."""
        transport = self._transport
        if not self.alive or transport is None or transport.get_write_buffer_size():
            return False
        return len(self._waiting) == 1 and self._waiting[0][0] is reply

    def read_here(self) -> bool:
        """Read what has come without the event loop, for a thread that has stopped it. False if there is nothing: the
        loop must look then. Not for TLS."""
        try:
            data = os.read(self._fd, _AT_ONCE)
        except OSError:
            return False
        if data:
            self.data_received(data)
        return bool(data)

    def probe_every(self, seconds: float) -> None:
        """Let the system ask more often whether the other end still has this connection. That costs no command; an end
        that has closed it refuses the probe, which closes it here."""
        if self._transport is not None:
            _keep_alive(self._transport, {"TCP_KEEPIDLE": seconds, "TCP_KEEPALIVE": seconds, "TCP_KEEPINTVL": seconds})

    def _watch_in(self, seconds: float) -> None:
        self._watch_at = time.monotonic() + seconds
        self._watchdog = self._loop.call_later(seconds, self._watch)

    def _is_sending(self) -> bool:
        """Whether some of the bytes that were still to send at the last check have been sent since."""
        unsent, sent = self._unsent, self._sent
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._sent = self._written - self._unsent
        return unsent > 0 and self._sent > sent

    def close(self, reason: StoreError | None = None) -> None:
        """Close the socket; waiting callers get the reason."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(reason or ConnectionLost(f"the connection to {self.where} was closed"))

    def _watch(self) -> None:
        """Treat a server that does not answer in time as gone. Checked periodically, without a timer per call. While
        a reply is being received, or the command is still being sent, the server is only slow."""
        self._watchdog = None
        if not self._waiting or not self.alive or self._transport is None:
            return
        now = time.monotonic()
        left = max(self._waiting[0][1], self.heard_at + self._timeout) - now
        if self._is_sending():
            self._sent_at = now
        if left > 0:
            self._watch_in(min(left, self.silence) + 0.01)
            silence = now - max(self.heard_at, self._sent_at, self._waiting[0][1] - self._timeout)
            if self.on_silence is not None and silence >= self.silence:
                self.on_silence()
        elif now - self._watch_at > STANDSTILL:
            # This process was late: the reply may have arrived long ago without being read.
            self._watch_in(max(self._timeout, SECOND_CHANCE))
        elif now - self._sent_at < self._timeout:
            self._watch_in(self.silence)
        else:
            self.close(error_replies.NoAnswer(f"{self.where} did not answer in time"))

    def forked(self) -> None:
        """After a fork: the socket and the waiting callers belong to the parent."""
        if self.alive:
            forks.close_socket(self._transport)
        forks.leak(self._transport, self._waiting, self._watchdog)
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
                future.exception()  # a cancelled caller does not look at the result: no warning about it
        if was_alive and self.on_close is not None:
            self.on_close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is one in all but name
        raw = transport.get_extra_info("socket")
        self._fd = -1 if raw is None else raw.fileno()
        _keep_alive(transport, KEEPALIVE)
        self.heard_at = time.monotonic()
        forks.register(self)
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
            except Exception:  # any program can publish anything: one message must not end the subscription
                logger.exception("a message on channel %s could not be handled", reply[1].decode(errors="replace"))
        elif reply[0] == b"sunsubscribe":  # not requested: the slot of the channel has moved to another node
            self.close(ConnectionLost(f"{self.where} no longer has the slot of a channel"))
        elif self._waiting:
            future = self._waiting.popleft()[0]
            if not future.done():
                future.set_result(reply)


def _keep_alive(transport: asyncio.BaseTransport, options: Mapping[str, float]) -> None:
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), round(value))


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
    """Connect and authenticate. Raises ConnectionLost or AuthError, nothing else."""
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
            raise error_replies.from_system(exc, where) from exc
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
        # A user without permission for CLIENT can still work; one that is not logged in cannot.
        if str(exc).startswith("NOAUTH") or isinstance(exc, ConnectionLost | NotReady):
            raise
