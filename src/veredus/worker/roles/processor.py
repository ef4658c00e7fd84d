"""Processor: takes as many tasks as there are free hands and starts them; asleep while there is nothing to take."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from veredus.errors import ConnectionLost, NotReady, StoreError
from veredus.events import Bus, ItemDropped
from veredus.model.priority import by_priority, shares
from veredus.store.redis import Redis
from veredus.store.wakeups import Watch
from veredus.store.work import Batch, Work
from veredus.worker.attempt import Workshop
from veredus.worker.complaints import Complaints
from veredus.worker.hands import Hands
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

BLOCK = 5.0
"""Seconds for which one wait for work lasts; a new one follows at once."""
RETRY_AFTER = 1.0
"""Seconds after which a queue that is paused or damaged is looked at again."""


class Processor(Role):
    """One loop asks; one watch per empty queue waits. A queue is `ready` while there may be work in it."""

    name = "processor"

    def __init__(
        self,
        work: Work,
        redis: Redis,
        queues: Mapping[str, int],
        *,
        strict: bool,
        lease: float,
        hands: Hands,
        workshop: Workshop,
        bus: Bus,
        complaints: Complaints,
        capacity: Callable[[str], int],
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(0.0, complaints)
        self._work = work
        self._queues = dict(queues)
        self._strict = strict
        self._lease = lease
        self._hands = hands
        self._workshop = workshop
        self._bus = bus
        self._capacity = capacity
        self._on_idle = on_idle
        self._most = (hands.size + 1) // 2
        self._rng = random.Random()
        self._ready = dict(queues)
        self._wake = asyncio.Event()
        self._empty = {queue: asyncio.Event() for queue in queues}
        self._watches = {queue: Watch(redis, queue) for queue in queues}
        self._watchers: list[asyncio.Task[None]] = []

    def wake(self) -> None:
        """Something changed: a hand is free, or the worker stops."""
        self._wake.set()

    def found(self, queue: str) -> None:
        """There is work in this queue."""
        if queue in self._queues and queue not in self._ready:
            self._ready[queue] = self._queues[queue]
            self._empty[queue].clear()
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        self._watchers = [asyncio.create_task(self._watch(queue)) for queue in self._queues]
        pause = 0.05
        try:
            while not self.stopping.is_set():
                # Cleared before Redis is asked, never after: what happens meanwhile must not be slept through.
                self._wake.clear()
                try:
                    asked = await self._fetch()
                    pause = 0.05
                except (ConnectionLost, NotReady) as exc:
                    self.complaints.outage(exc)
                    await self.pause(pause)
                    pause = min(pause * 2, 1.0)
                    continue
                if not asked:
                    if self._on_idle is not None:
                        self._on_idle()
                    await self._wake.wait()
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            for watch in self._watches.values():
                watch.close()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    @property
    def all_empty(self) -> bool:
        return not self._ready

    async def _fetch(self) -> bool:
        """Ask for what the free hands can take. False when there is nobody to ask or no hand free.

        Never for more than half of all hands at once: while one half runs, the other half's tasks are on their way, so
        that neither Redis nor this process waits for the other.
        """
        hands = min(self._hands.free, self._most)
        if hands <= 0 or not self._ready:
            return False
        if self._strict or len(self._ready) == 1:
            return await self._fetch_in_order(hands)
        # Only among those that have room: hands dealt to a full pool would leave the others' work waiting.
        able = {queue: weight for queue, weight in self._ready.items() if self._capacity(queue) > 0}
        if not able:
            return False
        wanted = [(queue, min(number, self._capacity(queue))) for queue, number in shares(able, hands, self._rng)]
        asked = [(queue, number) for queue, number in wanted if number > 0]
        batches = await asyncio.gather(*[self._ask(queue, number) for queue, number in asked], return_exceptions=True)
        for error in batches:
            if isinstance(error, BaseException):
                raise error
        return bool(asked)

    async def _fetch_in_order(self, hands: int) -> bool:
        asked = False
        for queue in by_priority(self._ready):
            number = min(hands, self._capacity(queue))
            if number > 0:
                asked = True
                hands -= await self._ask(queue, number)
            if hands <= 0:
                break
        return asked

    async def _ask(self, queue: str, number: int) -> int:
        try:
            batch = await self._work.dequeue(queue, number)
        except (ConnectionLost, NotReady):
            raise
        except StoreError as exc:
            self.complaints.error(("dequeue", queue), f"cannot take tasks from queue {queue}", exc)
            self._look_again_later(queue)
            return 0
        self.complaints.recovered()
        self._begin(queue, batch)
        return len(batch.rows)

    def _begin(self, queue: str, batch: Batch) -> None:
        for task_id, reason in batch.dropped:
            self.complaints.say(
                (queue, task_id), f"task {task_id} of queue {queue} cannot be run and was removed: {reason}"
            )
            self._bus.emit(ItemDropped(queue, task_id, reason))
        start, owner, cancels = self._workshop.start, batch.owner, batch.cancels
        for task_id, data in batch.rows:
            start(queue, owner, task_id, data, self._lease, cancels.get(task_id, ""))
        if batch.left == 0:
            self._ready.pop(queue, None)
            self._empty[queue].set()
        elif batch.left < 0:
            self._look_again_later(queue)

    def _look_again_later(self, queue: str) -> None:
        """Paused or damaged: waiting for work would return at once, so wait for time instead."""
        self._ready.pop(queue, None)
        asyncio.get_running_loop().call_later(RETRY_AFTER * random.uniform(0.5, 0.9), self.found, queue)

    async def _watch(self, queue: str) -> None:
        """While this queue is empty, wait for its next task."""
        while True:
            await self._empty[queue].wait()
            try:
                if await self._watches[queue].wait(BLOCK):
                    self.found(queue)
            except (ConnectionLost, NotReady) as exc:
                self.complaints.outage(exc)
                await self.pause(RETRY_AFTER)
                self.found(queue)
            except StoreError as exc:
                self.complaints.error(("watch", queue), f"cannot wait for work in queue {queue}", exc)
                await self.pause(RETRY_AFTER)
                self.found(queue)
