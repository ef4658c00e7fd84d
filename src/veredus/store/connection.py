"""One socket to one server: commands go out as they come, replies are matched in order.

Many callers share a connection, so concurrent calls are pipelined without waiting for each other; cancelling a caller
only drops its reply. Nothing is ever sent twice from here: whether to repeat is decided by those who know if they may.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from veredus.errors import AuthError, ConnectionLost, StoreError
from veredus.store import faults

Argument = str | bytes | int | float
_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
OnMessage = Callable[[bytes, bytes], None]


class Connection(asyncio.Protocol):
    """A connected socket. Made by `open_connection`, unusable once it broke."""

    def __init__(self, where: str, timeout: float) -> None:
        self.where = where
        self.alive = False
        self.connected_at = 0.0
        self.on_message: OnMessage | None = None
        self.on_close: Callable[[], None] | None = None
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=faults.from_reply, protocolError=ConnectionLost)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None

    def call(self, *args: Argument, timeout: float | None = None) -> asyncio.Future[Any]:
        """Send one command; the future has its reply. `timeout` is for commands that block on purpose."""
        return self._send(_pack(args), 1, timeout)[0]

    def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[asyncio.Future[Any]]:
        """Send several commands in one write."""
        return self._send(b"".join([_pack(tuple(args)) for args in commands]), len(commands), None)

    def _send(self, data: bytes, count: int, timeout: float | None) -> list[asyncio.Future[Any]]:
        if not self.alive or self._transport is None:
            raise ConnectionLost(f"the connection to {self.where} is closed")
        expires = time.monotonic() + (self._timeout if timeout is None else timeout)
        futures = [self._loop.create_future() for _ in range(count)]
        self._waiting.extend([(future, expires) for future in futures])
        self._transport.write(data)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout, self._watch)
        return futures

    def close(self, reason: StoreError | None = None) -> None:
        """Close the socket; whoever still waits gets the reason."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(reason or ConnectionLost(f"the connection to {self.where} was closed"))

    def _watch(self) -> None:
        """A server that does not answer in time is treated as gone; checked rarely, not with a timer per call."""
        self._watchdog = None
        if not self._waiting or not self.alive:
            return
        left = self._waiting[0][1] - time.monotonic()
        if left <= 0:
            self.close(ConnectionLost(f"{self.where} did not answer in time"))
        else:
            self._watchdog = self._loop.call_later(left + 0.01, self._watch)

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
        self.alive = True
        self.connected_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionLost(f"{self.where} closed the connection" + (f": {exc}" if exc else "")))

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
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
            self.on_message(reply[1], reply[2])
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
    try:
        async with asyncio.timeout(timeout):
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
        if str(exc).startswith("NOAUTH") or isinstance(exc, ConnectionLost):
            raise
