"""Processor: dequeues as many tasks as the worker can start now; sleeps while there is nothing to dequeue."""

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
from veredus.model.go_share import GoShare
from veredus.model.pools import FreeSlots, QueueScan, ScanPosition
from veredus.model.priority import by_priority, shares
from veredus.process.outage_log import OUTAGES, OutageLog
from veredus.store.tasks.work import Batch, DequeueRequest, Work
from veredus.worker.attempt_runner import AttemptRunner
from veredus.worker.config import WorkerConfig
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

RETRY_AFTER = 1.0
"""Seconds before the next try of a queue that is paused or damaged."""
FIRST_PAUSE = 0.05
"""Seconds before the next try of a queue whose server is away; doubles each time, up to RETRY_AFTER."""
SCAN_AGAIN = 0.01
"""Seconds between two scans for new tasks behind those passed over: a queue that is not empty wakes no worker."""
MANY, SORT_AGAIN = 32, 1.0
"""With more than MANY queues, the empty ones are sorted out together, every SORT_AGAIN seconds: a few at a time would
take long with thousands of queues."""
LONG_CALL = 0.25
"""Seconds for which a dequeue on one node of a cluster holds up those on the others."""
SCANS_BETWEEN = 50
"""One scan in this many also includes the front of the queue, where tasks are given back."""


class PendingDequeue(NamedTuple):
    """A dequeue of one queue, and what the worker knew when it was sent."""

    request: DequeueRequest
    position: ScanPosition
    room_signals: int
    """How often the queue had been reported below its limit."""


class UnansweredDequeue(NamedTuple):
    """A dequeue whose reply was lost: the server may have leased tasks to this worker."""

    pending: PendingDequeue
    until: float
    """The latest end of their leases, unless the dequeue is repeated."""


class Processor(Role):
    """One loop dequeues. A queue is `ready` while it may have work, and `asleep` once it was found empty: then the
    producer of its next task wakes an idle worker. A worker that was woken and has no free slot wakes the next one."""

    name = "processor"

    def __init__(
        self,
        work: Work,
        queues: Mapping[str, int],
        config: WorkerConfig,
        attempt_runner: AttemptRunner,
        bus: Bus,
        outages: OutageLog,
        *,
        free_slots: Callable[[], FreeSlots],
        channel_of: Callable[[str], str] = lambda queue: "",
        on_unknown: Callable[[str, Sequence[str]], None] = lambda queue, types: None,
        shares: Mapping[str, GoShare] | None = None,
        on_idle: Callable[[], None] | None = None,
        by_node: Callable[[Sequence[str]], Sequence[Sequence[str]]] | None = None,
    ) -> None:
        """`by_node` groups queues by the node of the cluster that has them; None for a single server."""
        super().__init__(0.0, outages)
        self._work = work
        self._queues = dict(queues)
        self._strict = config.strict
        self._lease = config.lease
        self._attempt_runner = attempt_runner
        self._bus = bus
        self._free_slots = free_slots
        self._channel_of = channel_of
        self._on_unknown = on_unknown
        self._on_idle = on_idle
        self._by_node = by_node
        self._shares = shares or {}
        self._most = (config.concurrency + 1) // 2
        self._rng = random.Random()
        self._ready = dict(queues)
        self._scans = {queue: QueueScan() for queue in queues}
        self._arrival_timers: dict[str, asyncio.TimerHandle] = {}
        """Queues that are scanned soon for new tasks, behind those that were passed over."""
        self._retry_timers: dict[str, asyncio.TimerHandle] = {}
        """Queues that are paused, damaged or unreachable, with the timer of the next try."""
        self._arrival_scans = 0
        self._unanswered: dict[str, UnansweredDequeue] = {}
        """They are repeated before any other dequeue, whether or not a slot is free."""
        self._under_way: dict[str, PendingDequeue] = {}
        """Dequeues on nodes of a cluster that have not been answered yet."""
        self._calls: set[asyncio.Task[int]] = set()
        self._failure: BaseException | None = None
        """What ended one of these calls unexpectedly: it ends the role, which is started again."""
        self._unreachable: dict[str, float] = {}
        """Queues whose server is away, with the last pause."""
        self._limited: dict[str, asyncio.TimerHandle] = {}
        """Queues at their limit, with the timer of the next try."""
        self._room_signals = dict.fromkeys(queues, 0)
        """How often each queue was reported below its limit."""
        self._wake = asyncio.Event()
        self.asleep = {queue: asyncio.Event() for queue in queues}
        """Set while the worker waits for work in a queue."""
        self._sort_at = 0.0
        """When to sort out empty queues again, if many are ready."""
        self._woken_for: set[str] = set()
        """Queues with work that this worker was woken for and has not asked since."""

    def wake(self) -> None:
        """Something changed: a slot is free, or the worker stops."""
        self._wake.set()

    def found(self, queue: str) -> None:
        """This queue has work."""
        if queue not in self._queues:
            return
        if queue not in self._ready:
            self._ready[queue] = self._queues[queue]
            self.asleep[queue].clear()
        self._woken_for.add(queue)
        self._wake.set()

    def below_limit(self, queue: str) -> None:
        """A queue that was at its limit accepts dequeues again."""
        self._room_signals[queue] += 1
        self.found(queue)

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        try:
            while not self.stopping.is_set():
                # Cleared before the dequeue, never after: an event during the call must end the wait.
                self._wake.clear()
                has_asked = await self._fetch()
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if not has_asked:
                    if self._woken_for:
                        await self._wake_others()
                        continue
                    if self._on_idle is not None:
                        self._on_idle()
                    await self._wake.wait()
            if self._calls:
                await asyncio.wait(self._calls)
            if self._unanswered:
                # Tasks of a lost reply would count as lost with their worker, though they never ran.
                await self._repeat(list(self._unanswered))
        finally:
            ended = [self._arrival_timers]
            if self.stopping.is_set():  # else the role is started again, and these bring back their queues
                ended += [self._retry_timers, self._limited]
            for timers in ended:
                for timer in timers.values():
                    timer.cancel()
                timers.clear()
            for call in self._calls:
                call.cancel()
            await self._leave()

    async def _wake_others(self) -> None:
        """This worker has no free slot for what it was woken for."""
        queues = sorted(self._woken_for)
        self._woken_for.clear()
        await self._work.wake_each(queues)

    async def _leave(self) -> None:
        """No longer be woken. What this worker was woken for in the meantime is for others."""
        entered = {
            queue: channel
            for queue, is_asleep in self.asleep.items()
            if is_asleep.is_set() and (channel := self._channel_of(queue))
        }
        try:
            if entered:
                self._woken_for.update(await self._work.leave_each(entered))
            if self._woken_for:
                await self._wake_others()
        except StoreError:
            pass  # they look by themselves, if later

    @property
    def all_empty(self) -> bool:
        """Whether the queues have nothing left that this worker could start."""
        if self._unreachable or self._under_way:
            return False
        return all(self._scans[queue].is_at_end for queue in self._ready)

    @property
    def passed_over(self) -> set[str]:
        """Queues with only tasks left that this worker cannot start."""
        return {queue for queue in self._ready if self._scans[queue].is_at_end}

    async def _fetch(self) -> bool:
        """Dequeue what this worker can start now. False if there is nothing to dequeue.

        Never more than half of all slots at once: while the tasks of one half run, those of the other half are on their
        way, so that neither Redis nor this process waits for the other.
        """
        if not self._ready:
            return False
        if self._unanswered:
            lost = [queue for queue in self._unanswered if queue in self._ready and queue not in self._under_way]
            if lost:
                await self._repeat(lost)
                return True
        free = self._free_now()
        # Only queues with tasks for a pool with free slots: the share of the others would be lost.
        able = {
            queue: weight
            for queue, weight in self._ready.items()
            if queue not in self._under_way and self._scans[queue].next(free) is not None
        }
        if not able:
            return False
        if len(able) > MANY and time.monotonic() >= self._sort_at:
            self._sort_at = time.monotonic() + SORT_AGAIN
            pending = set(await self._work.find_pending(list(able)))
            await self._sleep_in([queue for queue in able if queue not in pending])
            return True
        number = max(free)
        if self._strict or len(able) == 1:
            await self._fetch_in_order(by_priority(able), number)
        else:
            await self._ask_each(shares(able, number, self._rng))
        return True

    def _free_now(self) -> FreeSlots:
        free = self._free_slots()
        if self._unanswered:
            now = time.monotonic()
            free = free.less(sum(lost.pending.request.wanted for lost in self._unanswered.values() if now < lost.until))
        if self._under_way:
            calls = [pending for queue, pending in self._under_way.items() if queue not in self._unanswered]
            free = free.less(sum(pending.request.wanted for pending in calls))
        return free.at_most(self._most)

    async def _repeat(self, queues: Sequence[str]) -> None:
        """Repeat the unanswered dequeues of these queues. Tasks leased by the first call are returned whether or not a
        slot is free. If that call never arrived, slots were reserved for it, until the leases would have ended."""
        requests = []
        for queue in queues:
            pending, until = self._unanswered[queue]
            if self.stopping.is_set() or time.monotonic() >= until:
                number = 0 if self.stopping.is_set() else max(self._free_now())
                request = replace(pending.request, wanted=min(pending.request.wanted, number))
                pending = pending._replace(request=request)
            requests.append(pending)
        await self._send(requests)

    async def _fetch_in_order(self, queues: Sequence[str], slots: int) -> None:
        for place, queue in enumerate(queues):
            if place and len(queues) - place > 2:
                await self._fetch_by_length(queues[place:], slots)
                break
            slots -= await self._ask([(queue, slots)])
            if slots <= 0:
                break

    async def _fetch_by_length(self, queues: Sequence[str], slots: int) -> None:
        """Many queues in order without a round trip for each: read all lengths first."""
        wanted: list[tuple[str, int]] = []
        empty = []
        for queue, length in zip(queues, await self._work.lengths(queues), strict=True):
            if length == 0:
                empty.append(queue)
            elif slots > 0:
                number = min(slots, slots if length is None else length)
                wanted.append((queue, number))
                slots -= number
        await self._sleep_in(empty)
        await self._ask_each(wanted)

    async def _sleep_in(self, queues: Sequence[str]) -> None:
        """Be idle in those of these queues that are empty still."""
        channels = {queue: channel for queue in queues if (channel := self._channel_of(queue))}
        lengths = dict(zip(channels, await self._work.idle_each(channels), strict=True)) if channels else {}
        for queue in queues:
            length = lengths.get(queue, 0)
            if not isinstance(length, int) or length == 0:
                self._mark_empty(queue)
            self._woken_for.discard(queue)

    async def _ask_each(self, asked: Sequence[tuple[str, int]]) -> None:
        """In one round trip, unless together they could return more than a pool can start: then one by one."""
        together = sum(number for _, number in asked)
        if any(0 < slots < together for slots in self._free_now()):
            for one in asked:
                await self._ask([one])
        else:
            await self._ask(asked)

    async def _ask(self, asked: Sequence[tuple[str, int]]) -> int:
        """Dequeue up to this many tasks of each queue and start them; returns how many.

        No asyncio task is created between here and the socket: it would run only after the handlers of the previous
        batch, and Redis would wait for them.
        """
        free = self._free_now()
        requests = []
        for queue, number in asked:
            at = self._scans[queue].next(free.at_most(number))
            if at is not None:
                wanted, channel = min(number, max(at.rooms)), self._channel_of(queue)
                request = DequeueRequest(queue, wanted, at.rooms, at.cursor, self._terms(queue), channel)
                self._woken_for.discard(queue)
                requests.append(PendingDequeue(request, at, self._room_signals[queue]))
        return await self._send(requests)

    def _terms(self, queue: str) -> str:
        share = self._shares.get(queue)
        return "" if share is None or not share.percent else share.terms(time.monotonic())

    async def _send(self, requests: Sequence[PendingDequeue]) -> int:
        if not requests:
            return 0
        if self._by_node is None:
            return await self._dequeue(requests)
        pending = {one.request.queue: one for one in requests}
        calls = [
            asyncio.create_task(self._dequeue_on_node([pending[queue] for queue in queues]))
            for queues in self._by_node(list(pending))
        ]
        for call in calls:
            self._calls.add(call)
            call.add_done_callback(self._called)
        answered, _ = await asyncio.wait(calls, timeout=None if self.stopping.is_set() else LONG_CALL)
        return sum(call.result() for call in answered if call.exception() is None)

    def _called(self, call: asyncio.Task[int]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and call.exception() is not None:
            self._failure = call.exception()

    async def _dequeue_on_node(self, requests: Sequence[PendingDequeue]) -> int:
        """A node that hangs answers only after the timeout. Until then its queues are not asked again, and the slots
        that its tasks would need are kept free."""
        pending = {one.request.queue: one for one in requests}
        self._under_way.update(pending)
        try:
            return await self._dequeue(requests)
        finally:
            for queue in pending:
                del self._under_way[queue]
            self._wake.set()

    async def _dequeue(self, requests: Sequence[PendingDequeue]) -> int:
        # Measured before the call: Redis writes the leases later, so they end no earlier there.
        leased_until = time.monotonic() + self._lease
        replies = await self._work.dequeue_each([pending.request for pending in requests])
        return sum(
            self._answered(pending, reply, leased_until) for pending, reply in zip(requests, replies, strict=True)
        )

    def _answered(self, pending: PendingDequeue, answer: Batch | StoreError, leased_until: float) -> int:
        queue = pending.request.queue
        if isinstance(answer, OUTAGES):
            # One server of a cluster may be away: the queues on the others must not wait for it.
            self.outages.outage(answer, ("dequeue", queue))
            if isinstance(answer, ConnectionLost):
                self._unanswered.setdefault(queue, UnansweredDequeue(pending, time.monotonic() + self._lease))
            pause = self._unreachable[queue] = min(2 * self._unreachable.get(queue, FIRST_PAUSE / 2), RETRY_AFTER)
            self._retry_later(queue, pause)
            return 0
        if isinstance(answer, StoreError):
            self.outages.error(("dequeue", queue), f"cannot take tasks from queue {queue}", answer)
            self._retry_later(queue)
            return 0
        self._unreachable.pop(queue, None)
        self._unanswered.pop(queue, None)
        self.outages.recovered(("dequeue", queue))
        self._begin(queue, answer, leased_until)
        self._note_scan(queue, answer, pending.position)
        if pending.request.for_go:
            self._shares[queue].answered(answer.rows, answer.left_for_go, time.monotonic())
            if answer.left_for_go:  # this worker took everything else that it could start
                self._retry_in(queue, SCAN_AGAIN)
        if answer.wait is not None and self._room_signals[queue] == pending.room_signals:  # else there is room by now
            self._retry_in(queue, answer.wait)
        return len(answer.rows)

    def _begin(self, queue: str, batch: Batch, leased_until: float) -> None:
        for task_id, reason in batch.dropped:
            self.outages.log(
                (queue, task_id), f"task {task_id} of queue {queue} cannot be run and was removed: {reason}"
            )
            self._bus.emit(ItemDropped(queue, task_id, reason))
        self._attempt_runner.start(queue, batch, leased_until)
        if batch.left == 0:
            # Not entered as idle, because the batch was full: once a slot is free, the queue is asked again.
            self._mark_empty(queue, sleeps=batch.is_idle or not self._channel_of(queue))
        elif batch.left < 0:
            self._retry_later(queue)

    def _mark_empty(self, queue: str, *, sleeps: bool = True) -> None:
        self._scans[queue].start_over()
        if sleeps:
            self._ready.pop(queue, None)
            self.asleep[queue].set()

    def _note_scan(self, queue: str, batch: Batch, position: ScanPosition) -> None:
        if batch.unknown:
            self._on_unknown(queue, batch.unknown)
        if batch.left > 0:
            scan = self._scans[queue]
            scan.answered(position, batch.cursors, len(batch.rows), batch.behind)
            if scan.is_at_end and queue not in self._arrival_timers:
                loop = asyncio.get_running_loop()
                self._arrival_timers[queue] = loop.call_later(SCAN_AGAIN, self._scan_arrivals, queue)

    def _scan_arrivals(self, queue: str) -> None:
        del self._arrival_timers[queue]
        self._arrival_scans += 1
        self._scans[queue].arrivals(at_front=self._arrival_scans % SCANS_BETWEEN == 0)
        self._wake.set()

    def _retry_later(self, queue: str, seconds: float = RETRY_AFTER) -> None:
        """For a queue that is paused, damaged or unreachable: nobody wakes a worker for it, so use a timer."""
        self._ready.pop(queue, None)
        if timer := self._retry_timers.pop(queue, None):
            timer.cancel()
        pause = seconds * random.uniform(0.5, 0.9)
        self._retry_timers[queue] = asyncio.get_running_loop().call_later(pause, self.found, queue)

    def _retry_in(self, queue: str, seconds: float) -> None:
        """For a queue at its limit: until the limit allows the next task, or `below_limit` is called."""
        self._ready.pop(queue, None)
        timer = self._limited.pop(queue, None)
        if timer is not None:
            timer.cancel()
        self._limited[queue] = asyncio.get_running_loop().call_later(seconds, self.found, queue)
