"""Processor: takes as many tasks as the worker can start now; asleep while there is nothing to take."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from veredus.errors import ConnectionLost, StoreError
from veredus.events import Bus, ItemDropped
from veredus.model.pools import Look, Progress, Rooms
from veredus.model.priority import by_priority, shares
from veredus.model.sharing import Share
from veredus.store.redis import Redis
from veredus.store.wakeups import Watch
from veredus.store.work import Ask, Batch, Work
from veredus.worker.attempt import Workshop
from veredus.worker.complaints import OUTAGES, Complaints
from veredus.worker.hands import Hands
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

BLOCK = 5.0
"""Seconds for which one wait for work lasts; a new one follows at once."""
BRIEFLY = 0.1
"""Seconds for the first wait after an outage, which tells whether it is over."""
RETRY_AFTER = 1.0
"""Seconds after which a queue that is paused or damaged is looked at again."""
FIRST_PAUSE = 0.05
"""Seconds after which one whose server is gone is asked for again; longer each time, up to that."""
LOOK_AGAIN = 0.01
"""Seconds between two looks for new tasks behind those passed over: a queue that is not empty wakes nobody."""
LOOKS_BETWEEN = 50
"""After so many of these looks the front of the queue is looked at too, for tasks that somebody gave back."""


class Question(NamedTuple):
    """What was asked of one queue, and what the worker knew then."""

    ask: Ask
    look: Look
    rooms: int
    """How often somebody had said that the queue has room again."""


class Unseen(NamedTuple):
    """A question without an answer: the server may have handed out tasks that this worker has not seen."""

    question: Question
    until: float
    """No lease of such a task ends later, unless it is asked for again."""


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
        rooms: Callable[[], Rooms],
        on_unknown: Callable[[str, Sequence[str]], None] = lambda queue, types: None,
        shares: Mapping[str, Share] | None = None,
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
        self._room_now = rooms
        self._on_unknown = on_unknown
        self._on_idle = on_idle
        self._shares = shares or {}
        self._most = (hands.size + 1) // 2
        self._rng = random.Random()
        self._ready = dict(queues)
        self._progress = {queue: Progress() for queue in queues}
        self._looking: dict[str, asyncio.TimerHandle] = {}
        """Queues in which new tasks are soon looked for, behind those that were passed over."""
        self._looks = 0
        self._unseen: dict[str, Unseen] = {}
        """Questions whose answer was lost. They are asked again before any other, whether or not there is room."""
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
        self._failure: BaseException | None = None
        """Why a watch ended: nobody would wait for work in its queue any more, so this ends the role too."""

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
        self._failure = None
        self._watchers = [asyncio.create_task(self._watch(queue)) for queue in self._queues]
        for watcher in self._watchers:
            watcher.add_done_callback(self._watcher_ended)
        try:
            while not self.stopping.is_set():
                if self._failure is not None:
                    raise self._failure
                # Cleared before Redis is asked, never after: what happens meanwhile must not be slept through.
                self._wake.clear()
                if not await self._fetch():
                    if self._on_idle is not None:
                        self._on_idle()
                    await self._wake.wait()
            if self._unseen:
                # What was handed out unseen would count as lost with its worker, though it never ran.
                await self._ask_again(list(self._unseen))
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            for alarm in self._looking.values():
                alarm.cancel()
            self._looking.clear()
            for watch in self._watches.values():
                watch.close()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    def _watcher_ended(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            self._failure = error
            self._wake.set()

    @property
    def all_empty(self) -> bool:
        """Whether there is nothing left that this worker could start."""
        return not self._missing and all(self._progress[queue].is_at_end for queue in self._ready)

    @property
    def passed_over(self) -> set[str]:
        """Queues in which only tasks are left that this worker cannot start."""
        return {queue for queue in self._ready if self._progress[queue].is_at_end}

    async def _fetch(self) -> bool:
        """Ask for what this worker can start now. False when there is nothing to ask for.

        Never for more than half of all hands at once: while one half runs, the other half's tasks are on their way, so
        that neither Redis nor this process waits for the other.
        """
        if not self._ready:
            return False
        if self._unseen:
            lost = [queue for queue in self._unseen if queue in self._ready]
            if lost:
                await self._ask_again(lost)
                return True
        rooms = self._rooms_now()
        # Only among those that have something for a pool with room: the others' share would be lost.
        able = {queue: weight for queue, weight in self._ready.items() if self._progress[queue].next(rooms) is not None}
        if not able:
            return False
        number = max(rooms)
        if self._strict or len(able) == 1:
            await self._fetch_in_order(by_priority(able), number)
        else:
            await self._ask_each(shares(able, number, self._rng))
        return True

    def _rooms_now(self) -> Rooms:
        rooms = self._room_now()
        if self._unseen:
            now = time.monotonic()
            rooms = rooms.less(sum(lost.question.ask.wanted for lost in self._unseen.values() if now < lost.until))
        return rooms.at_most(self._most)

    async def _ask_again(self, queues: Sequence[str]) -> None:
        """Repeat the questions to these queues. Tasks handed out the first time come whether or not there is room; if
        the question never arrived, room was kept free for it, but not for ever."""
        questions = []
        for queue in queues:
            question, until = self._unseen[queue]
            if self.stopping.is_set() or time.monotonic() >= until:
                number = 0 if self.stopping.is_set() else max(self._rooms_now())
                ask = replace(question.ask, wanted=min(question.ask.wanted, number))
                question = question._replace(ask=ask)
            questions.append(question)
        await self._put(questions)

    async def _fetch_in_order(self, queues: Sequence[str], hands: int) -> None:
        for place, queue in enumerate(queues):
            if place and len(queues) - place > 2:
                await self._fetch_by_length(queues[place:], hands)
                break
            hands -= await self._ask([(queue, hands)])
            if hands <= 0:
                break

    async def _fetch_by_length(self, queues: Sequence[str], hands: int) -> None:
        """Many in their order, without a round trip for each: see first how much every one has."""
        wanted: list[tuple[str, int]] = []
        for queue, length in zip(queues, await self._work.lengths(queues), strict=True):
            if length == 0:
                self._emptied(queue)
            elif hands > 0:
                number = min(hands, hands if length is None else length)
                wanted.append((queue, number))
                hands -= number
        await self._ask_each(wanted)

    async def _ask_each(self, asked: Sequence[tuple[str, int]]) -> None:
        """In one round trip, unless together they could get more than a pool can start: then one after the other."""
        together = sum(number for _, number in asked)
        if any(0 < room < together for room in self._rooms_now()):
            for one in asked:
                await self._ask([one])
        else:
            await self._ask(asked)

    async def _ask(self, asked: Sequence[tuple[str, int]]) -> int:
        """Ask these queues for so many tasks each, and begin what they give; returns how many.

        No asyncio task stands between here and the socket: it would run only after the handlers of the batch before,
        and Redis would wait for them.
        """
        rooms = self._rooms_now()
        questions = []
        for queue, number in asked:
            look = self._progress[queue].next(rooms.at_most(number))
            if look is not None:
                ask = Ask(queue, min(number, max(look.rooms)), look.rooms, look.cursor, self._terms(queue))
                questions.append(Question(ask, look, self._rooms[queue]))
        return await self._put(questions)

    def _terms(self, queue: str) -> str:
        share = self._shares.get(queue)
        return "" if share is None or not share.percent else share.terms(time.monotonic())

    async def _put(self, questions: Sequence[Question]) -> int:
        if not questions:
            return 0
        # From before the question on: Redis writes the leases later, so they end no earlier there.
        leased_until = time.monotonic() + self._lease
        answers = await self._work.dequeue_each([question.ask for question in questions])
        return sum(
            self._answered(question, answer, leased_until) for question, answer in zip(questions, answers, strict=True)
        )

    def _answered(self, question: Question, answer: Batch | StoreError, leased_until: float) -> int:
        queue = question.ask.queue
        if isinstance(answer, OUTAGES):
            # Of a cluster, one server may be gone: those who serve the other queues must not wait for it.
            self.complaints.outage(answer, ("dequeue", queue))
            if isinstance(answer, ConnectionLost):
                self._unseen.setdefault(queue, Unseen(question, time.monotonic() + self._lease))
            pause = self._missing[queue] = min(2 * self._missing.get(queue, FIRST_PAUSE / 2), RETRY_AFTER)
            self._look_again_later(queue, pause)
            return 0
        if isinstance(answer, StoreError):
            self.complaints.error(("dequeue", queue), f"cannot take tasks from queue {queue}", answer)
            self._look_again_later(queue)
            return 0
        self._missing.pop(queue, None)
        self._unseen.pop(queue, None)
        self.complaints.recovered(("dequeue", queue))
        self._begin(queue, answer, leased_until)
        self._note_progress(queue, answer, question.look)
        if question.ask.for_go:
            self._shares[queue].answered(answer.rows, answer.left_for_go, time.monotonic())
            if answer.left_for_go:  # everything else that could be started was taken
                self._look_again_in(queue, LOOK_AGAIN)
        if answer.wait is not None and self._rooms[queue] == question.rooms:  # else there was room meanwhile: ask again
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
            self._emptied(queue)
        elif batch.left < 0:
            self._look_again_later(queue)

    def _emptied(self, queue: str) -> None:
        self._progress[queue].start_over()
        self._ready.pop(queue, None)
        self._empty[queue].set()

    def _note_progress(self, queue: str, batch: Batch, look: Look) -> None:
        if batch.unknown:
            self._on_unknown(queue, batch.unknown)
        if batch.left > 0:
            progress = self._progress[queue]
            progress.answered(look, batch.cursors, len(batch.rows), batch.behind)
            if progress.is_at_end and queue not in self._looking:
                loop = asyncio.get_running_loop()
                self._looking[queue] = loop.call_later(LOOK_AGAIN, self._look_for_arrivals, queue)

    def _look_for_arrivals(self, queue: str) -> None:
        del self._looking[queue]
        self._looks += 1
        self._progress[queue].arrivals(at_front=self._looks % LOOKS_BETWEEN == 0)
        self._wake.set()

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
        """While this queue is empty, wait for its next task. A server that is full or read-only refuses to let anybody
        wait: then it is asked from time to time."""
        pause, block = FIRST_PAUSE, BLOCK
        while True:
            await self._empty[queue].wait()
            try:
                if await self._watches[queue].wait(block):
                    self.found(queue)
                self.complaints.recovered(("watch", queue))
                pause, block = FIRST_PAUSE, BLOCK
            except OUTAGES as exc:
                self.complaints.outage(exc, ("watch", queue))
                await self.pause(pause)
                pause, block = min(2 * pause, RETRY_AFTER), BRIEFLY
                self.found(queue)
            except StoreError as exc:
                self.complaints.error(("watch", queue), f"cannot wait for work in queue {queue}", exc)
                await self.pause(RETRY_AFTER)
                self.found(queue)
