"""What wakes a sleeping worker: work that appears in a list, and messages on channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from veredus.errors import NotReady
from veredus.store import faults
from veredus.store.connection import Connection
from veredus.store.redis import Redis
from veredus.wire import keys


class Watch:
    """Waits for work in one queue, on a connection of its own.

    `BLMOVE P P RIGHT RIGHT` takes the next task and puts it back where it was, in one step: nobody ever misses it, the
    order stays, and it wakes every waiting worker also for a plain LPUSH from a Go client that notifies nobody.
    """

    def __init__(self, redis: Redis, queue: str) -> None:
        self._redis = redis
        self._key = keys.pending(queue)
        self._connection: Connection | None = None

    async def wait(self, seconds: float) -> bool:
        """True as soon as the queue has a pending task, False after so many seconds without one."""
        if self._connection is None or not self._connection.alive:
            self._connection = await self._redis.open(self._key)
        # The server ends the wait; only a server that is gone makes the margin run out.
        waiting = self._connection.call(
            "BLMOVE", self._key, self._key, "RIGHT", "RIGHT", seconds, timeout=seconds + 5.0
        )
        try:
            return await waiting is not None
        except NotReady as exc:
            self._connection.close()  # whoever says so does not have this queue any more: find out who does
            if not isinstance(exc, faults.Moved) or exc.asking:
                raise
            return bool(await self._redis.command("LLEN", self._key, key=self._key))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Subscription:
    """Messages of some channels, on a connection of its own, until it breaks."""

    def __init__(self, redis: Redis, channels: Sequence[str], on_message: Callable[[str, bytes], None]) -> None:
        self._redis = redis
        self._channels = channels
        self._on_message = on_message
        self._connection: Connection | None = None

    async def open(self, on_close: Callable[[], None]) -> None:
        """Subscribe; `on_close` is called once if the connection breaks later."""
        connection = await self._redis.open(self._channels[0])
        connection.on_message = lambda channel, data: self._on_message(channel.decode(), data)
        try:
            for subscribed in connection.call_many([("SUBSCRIBE", channel) for channel in self._channels]):
                await subscribed
        except BaseException:  # also when cancelled: nobody else has this connection
            connection.close()
            raise
        connection.on_close = on_close
        self._connection = connection

    async def ping(self) -> None:
        """Find out that the other end is gone when nothing else would tell."""
        if self._connection is not None:
            await self._connection.call("PING")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.on_close = None
            self._connection.close()
