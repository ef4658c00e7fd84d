"""Subscriber: listens for cancel commands, for delayed tasks that became the earliest, and for room in full queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.store.redis import Redis
from veredus.store.wakeups import Subscription
from veredus.wire import keys
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

ROOM = b"room"
"""Said where due instants are said, when a queue that was at its limit has room again."""
TOLD = b"told"
"""Said in the same place, when there is something to pass on to clients who follow tasks."""
CHECK = 30.0
"""Seconds after which a silent connection is asked whether it still lives."""


class Subscriber(Role):
    name = "subscriber"

    def __init__(
        self,
        redis: Redis,
        queues: Sequence[str],
        complaints: Complaints,
        on_cancel: Callable[[str], None],
        on_delay: Callable[[str | None], None],
        on_room: Callable[[str], None],
        on_told: Callable[[str], None],
    ) -> None:
        super().__init__(1.0, complaints)
        self._on_cancel = on_cancel
        self._on_delay = on_delay
        self._on_room = on_room
        self._on_told = on_told
        self._queue_of = {keys.delay_wakeup(queue): queue for queue in queues}
        self._subscription = Subscription(redis, [keys.CANCEL_CHANNEL, *self._queue_of], self._receive)
        self._broken = asyncio.Event()

    def _receive(self, channel: str, data: bytes) -> None:
        queue = self._queue_of.get(channel)
        if queue is not None and data == ROOM:
            self._on_room(queue)
        elif queue is not None and data == TOLD:
            self._on_told(queue)
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
            self.complaints.recovered("subscribe")
            # Whatever was said while nobody listened is lost: look at everything now.
            self._on_delay(None)
            await self._stay()
        except StoreError as exc:
            self.complaints.error("subscribe", "cannot listen for wake-ups", exc)
            await self.pause(self.interval)

    async def _stay(self) -> None:
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(CHECK):
                    await self._broken.wait()
            except TimeoutError:
                await self._subscription.ping()
