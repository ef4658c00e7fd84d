"""Processor: takes as many tasks as there are free hands and starts them; asleep while there is nothing to take."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

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
FIRST_PAUSE = 0.05
"""Seconds after which one whose server is gone is asked for again; longer each time, up to that."""


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
        self._missing: dict[str, float] = {}
        """Queues whose server could not be reached, and the last pause."""
        self._full: dict[str, asyncio.TimerHandle] = {}
        """Queues at their limit, and when to ask again."""
        self._rooms = dict.fromkeys(queues, 0)
        """How often somebody said that a queue at its limit has room again."""
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

    def room(self, queue: str) -> None:
        """A queue that was at its limit has room."""
        self._rooms[queue] += 1
        self.found(queue)

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        self._watchers = [asyncio.create_task(self._watch(queue)) for queue in self._queues]
        try:
            while not self.stopping.is_set():
                # Cleared before Redis is asked, never after: what happens meanwhile must not be slept through.
                self._wake.clear()
                if not await self._fetch():
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
        return not self._ready and not self._missing

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
        await self._ask(asked)
        return bool(asked)

    async def _fetch_in_order(self, hands: int) -> bool:
        asked = False
        able = [queue for queue in by_priority(self._ready) if self._capacity(queue) > 0]
        for place, queue in enumerate(able):
            if place and len(able) - place > 2:
                return await self._fetch_by_length(able[place:], hands) or asked
            asked = True
            hands -= await self._ask([(queue, min(hands, self._capacity(queue)))])
            if hands <= 0:
                break
        return asked

    async def _fetch_by_length(self, queues: Sequence[str], hands: int) -> bool:
        """Many in their order, without a round trip for each: see first how much every one has."""
        wanted: list[tuple[str, int]] = []
        for queue, length in zip(queues, await self._work.lengths(queues), strict=True):
            if length == 0:
                self._ready.pop(queue, None)
                self._empty[queue].set()
            elif hands > 0:
                number = min(hands, self._capacity(queue), hands if length is None else length)
                wanted.append((queue, number))
                hands -= number
        await self._ask([(queue, number) for queue, number in wanted if number > 0])
        return bool(wanted)

    async def _ask(self, asked: Sequence[tuple[str, int]]) -> int:
        """Ask these queues for so many tasks each, and begin what they give; returns how many.

        No asyncio task stands between here and the socket: it would run only after the handlers of the batch before,
        and Redis would wait for them.
        """
        rooms = [self._rooms[queue] for queue, _ in asked]
        # From before the question on: Redis writes the leases later, so they end no earlier there.
        leased_until = time.monotonic() + self._lease
        answers = await self._work.dequeue_each(asked)
        return sum(
            self._answered(queue, answer, room, leased_until)
            for (queue, _), answer, room in zip(asked, answers, rooms, strict=True)
        )

    def _answered(self, queue: str, answer: Batch | StoreError, rooms: int, leased_until: float) -> int:
        if isinstance(answer, ConnectionLost | NotReady):
            # Of a cluster, one server may be gone: those who serve the other queues must not wait for it.
            self.complaints.outage(answer, ("dequeue", queue))
            pause = self._missing[queue] = min(2 * self._missing.get(queue, FIRST_PAUSE / 2), RETRY_AFTER)
            self._look_again_later(queue, pause)
            return 0
        if isinstance(answer, StoreError):
            self.complaints.error(("dequeue", queue), f"cannot take tasks from queue {queue}", answer)
            self._look_again_later(queue)
            return 0
        self._missing.pop(queue, None)
        self.complaints.recovered(("dequeue", queue))
        self._begin(queue, answer, leased_until)
        if answer.wait is not None and self._rooms[queue] == rooms:  # else there was room meanwhile: ask again
            self._look_again_in(queue, answer.wait)
        return len(answer.rows)

    def _begin(self, queue: str, batch: Batch, leased_until: float) -> None:
        for task_id, reason in batch.dropped:
            self.complaints.say(
                (queue, task_id), f"task {task_id} of queue {queue} cannot be run and was removed: {reason}"
            )
            self._bus.emit(ItemDropped(queue, task_id, reason))
        self._workshop.start(queue, batch, leased_until)
        if batch.left == 0:
            self._ready.pop(queue, None)
            self._empty[queue].set()
        elif batch.left < 0:
            self._look_again_later(queue)

    def _look_again_later(self, queue: str, seconds: float = RETRY_AFTER) -> None:
        """Paused, damaged or not to be reached: waiting for work would end at once, so wait for time instead."""
        self._ready.pop(queue, None)
        asyncio.get_running_loop().call_later(seconds * random.uniform(0.5, 0.9), self.found, queue)

    def _look_again_in(self, queue: str, seconds: float) -> None:
        """At its limit: until there is room, or somebody says that there is."""
        self._ready.pop(queue, None)
        alarm = self._full.pop(queue, None)
        if alarm is not None:
            alarm.cancel()
        self._full[queue] = asyncio.get_running_loop().call_later(seconds, self.found, queue)

    async def _watch(self, queue: str) -> None:
        """While this queue is empty, wait for its next task."""
        pause = FIRST_PAUSE
        while True:
            await self._empty[queue].wait()
            try:
                if await self._watches[queue].wait(BLOCK):
                    self.found(queue)
                pause = FIRST_PAUSE
            except (ConnectionLost, NotReady) as exc:
                self.complaints.outage(exc, ("dequeue", queue))
                await self.pause(pause)
                pause = min(2 * pause, RETRY_AFTER)
                self.found(queue)
            except StoreError as exc:
                self.complaints.error(("watch", queue), f"cannot wait for work in queue {queue}", exc)
                await self.pause(RETRY_AFTER)
                self.found(queue)
