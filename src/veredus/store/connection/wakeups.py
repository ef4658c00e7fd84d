"""Wakes a sleeping worker: for tasks that arrive in a list, and for messages on channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from veredus.errors import NotReady
from veredus.store.connection import error_replies
from veredus.store.connection.connection import Connection
from veredus.store.connection.redis import Redis
from veredus.wire import keys

CHECK = 30.0
"""Seconds of silence before a subscription is pinged."""


class Watch:
    """Waits for tasks in one queue, on a connection of its own.

    `BLMOVE P P RIGHT RIGHT` takes the next task and puts it back in one step. No worker can miss it, the order does not
    change, and it wakes every client that waits like this, even for a plain LPUSH from a Go client, which sends no
    notification.
    """

    def __init__(self, redis: Redis, queue: str) -> None:
        self._redis = redis
        self._key = keys.pending(queue)
        self._connection: Connection | None = None

    async def wait(self, seconds: float) -> bytes | None:
        """The next pending task as soon as the queue has one, None after that many seconds without one."""
        if self._connection is None or not self._connection.alive:
            self._connection = await self._redis.open(self._key)
        # The server ends the wait; the margin is used up only if the server is gone.
        waiting = self._connection.call(
            "BLMOVE", self._key, self._key, "RIGHT", "RIGHT", seconds, timeout=seconds + 5.0
        )
        try:
            found: bytes | None = await waiting
            return found
        except NotReady as exc:
            self._connection.close()  # this node no longer has the queue: find the one that does
            if not isinstance(exc, error_replies.Moved) or exc.asking:
                raise
            return await self.next_task()

    async def next_task(self) -> bytes | None:
        """The next pending task now."""
        found: bytes | None = await self._redis.command("LINDEX", self._key, -1, key=self._key)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Subscription:
    """Messages of some channels, on a connection of its own, until it breaks."""

    def __init__(
        self,
        redis: Redis,
        channels: Sequence[str],
        on_message: Callable[[str, bytes], None],
        *,
        key: str = "",
        probes: float = 0.0,
    ) -> None:
        """On the server that has `key`; without one, on the server that a key named like the first channel would be
        on. With `probes`, the system checks after that many seconds of silence whether the other end is still there."""
        self._redis = redis
        self._key = key or channels[0]
        self._channels = channels
        self._probes = probes
        self._on_message = on_message
        self._connection: Connection | None = None

    async def open(self, on_close: Callable[[], None]) -> None:
        """Subscribe. `on_close` is called once if the connection breaks later."""
        connection = await self._redis.open(self._key)
        connection.on_message = lambda channel, data: self._on_message(channel.decode(), data)
        if self._probes:
            connection.probe_every(self._probes)
        try:
            await asyncio.gather(*connection.call_many([("SUBSCRIBE", channel) for channel in self._channels]))
        except BaseException:  # also when cancelled: nobody else has this connection
            connection.close()
            raise
        connection.on_close = on_close
        self._connection = connection

    async def stay(self, broken: asyncio.Event) -> None:
        """Until the connection breaks, which sets `broken`, or is to be closed."""
        while not broken.is_set():
            try:
                async with asyncio.timeout(CHECK):
                    await broken.wait()
            except TimeoutError:
                await self.ping()

    async def ping(self) -> None:
        """Detect that the other end is gone when nothing else would."""
        if self._connection is not None:
            await self._connection.call("PING")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.on_close = None
            self._connection.close()
