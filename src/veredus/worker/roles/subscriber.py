"""Subscriber: listens for cancel commands, for new earliest due times, and for queues below their limit again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.store.connection.redis import Redis
from veredus.store.connection.wakeups import Subscription
from veredus.wire import keys
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

ROOM = b"room"
"""Published on the channel of due times when a queue at its limit has room again."""
FOLLOW = b"told"
"""Published on the same channel when clients that follow tasks are to be notified."""
ENDED = b"ended"
"""Published there when children of durable tasks have ended."""


class Subscriber(Role):
    name = "subscriber"

    def __init__(
        self,
        redis: Redis,
        queues: Sequence[str],
        outages: OutageLog,
        *,
        on_cancel: Callable[[str], None],
        on_delay: Callable[[str | None], None],
        on_room: Callable[[str], None],
        on_follow: Callable[[str], None],
        on_ended: Callable[[str], None] = lambda queue: None,
    ) -> None:
        super().__init__(1.0, outages)
        self._on_cancel = on_cancel
        self._on_delay = on_delay
        self._on_room = on_room
        self._on_follow = on_follow
        self._on_ended = on_ended
        self._queue_of = {keys.delay_wakeup(queue): queue for queue in queues}
        self._subscription = Subscription(redis, [keys.CANCEL_CHANNEL, *self._queue_of], self._receive)
        self._broken = asyncio.Event()

    def _receive(self, channel: str, data: bytes) -> None:
        queue = self._queue_of.get(channel)
        if queue is not None and data == ROOM:
            self._on_room(queue)
        elif queue is not None and data == FOLLOW:
            self._on_follow(queue)
        elif queue is not None and data == ENDED:
            self._on_ended(queue)
        elif queue is not None:
            self._on_delay(queue)
        else:
            self._on_cancel(data.decode(errors="replace"))

    def stop(self) -> None:
        super().stop()
        self._broken.set()

    async def run(self) -> None:
        try:
            while not self.stopping.is_set():
                await self._listen()
        finally:
            self._subscription.close()

    async def _listen(self) -> None:
        self._broken.clear()
        try:
            await self._subscription.open(on_close=self._broken.set)
            self.outages.recovered("subscribe")
            # Messages from before the subscription are lost: check all queues now.
            self._on_delay(None)
            await self._subscription.stay(self._broken)
        except StoreError as exc:
            self.outages.error("subscribe", "cannot listen for wake-ups", exc)
            await self.pause(self.interval)
