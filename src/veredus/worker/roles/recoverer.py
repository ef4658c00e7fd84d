"""Recoverer: finds tasks whose worker has gone, in every queue there is, and walks them to the judge."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from veredus.clock import Clock
from veredus.errors import ConnectionLost, LeaseLost, StoreError
from veredus.events import Bus, ItemDropped, TaskRecovered
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.request import SESSION, answers
from veredus.model.settlement import Archive, Done, Retry, Settlement
from veredus.model.verdict import (
    CANCELED,
    CANCELLATIONS,
    LEASE_EXPIRED,
    Action,
    Verdict,
    failed_message,
    is_poison,
    judge_lost_lease,
    killed_text,
)
from veredus.store.leases import Claimed
from veredus.store.store import Store
from veredus.store.work import Work
from veredus.wire import holding
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task
from veredus.worker.attempt import quarantine, retry_delay_ms
from veredus.worker.complaints import Complaints
from veredus.worker.config import WorkerConfig
from veredus.worker.mux import Mux
from veredus.worker.requests import Requests
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

CLAIM_MS = 5_000
"""How long a claimed task is ours: enough to settle it, short if we die with it."""
OWN_CLAIMS = "recoverer:"
"""How the owner of a claim goes on after its worker; lua/lease/recover.lua knows claims by it."""
STANDSTILL = 2.0
"""More seconds than this beyond what was to be expected mean that somebody stood still; fewer for short leases."""
FURTHEST = 5
"""A lease that ends further ahead than so many of our own was written before the server's clock went back."""


class Calm:
    """When leases may be judged: not before the living have had a whole lease to renew theirs since the last upset.

    An upset is a server, a network or a process that stood still, or a clock of the server that was changed: of all of
    them a sweep sees only that the server's time since the sweep before is not what it should be. So there is one rule.
    Known per queue, because each may have a server of its own.
    """

    def __init__(self, lease: float, interval: float) -> None:
        self._lease = lease
        self._most = interval * 1.1
        self._slack = min(STANDSTILL, lease / 6)
        self._began = time.monotonic()
        self._from: dict[str, float] = {}
        """From when on each queue may be judged, on the monotonic clock."""
        self._last: dict[str, tuple[int, float]] = {}
        """The server's time in ms at the last sweep of each queue, and when that was asked for, as above."""

    def since(self, queue: str, now: float, steady_since: float) -> tuple[int, int]:
        """The server's time at the last sweep in ms, or 0 if nobody is to be judged now; and how much of it may have
        passed since. A loop that was blocked explains any gap, if the heart of this process went on beating."""
        if queue not in self._from:
            self._from[queue] = max(self._from.values(), default=self._began + self._lease)
        last, asked = self._last.get(queue, (0, now))
        most = max(self._most, now - asked) if steady_since <= asked else self._most
        return last if now >= self._from[queue] else 0, round((most + self._slack) * 1000)

    def swept(self, queue: str, asked: float, most_ms: int, now_ms: int) -> None:
        """A sweep that was asked for at that moment found this time on the server's clock."""
        if queue in self._last and not 0 <= now_ms - self._last[queue][0] <= most_ms:
            self._from[queue] = time.monotonic() + self._lease
        self._last[queue] = (now_ms, asked)

    def forget_all_but(self, queues: Sequence[str]) -> None:
        for queue in self._last.keys() - set(queues):
            del self._last[queue]


class Recoverer(Role):
    name = "recoverer"

    def __init__(
        self,
        store: Store,
        work: Work,
        worker_id: str,
        config: WorkerConfig,
        mux: Mux,
        clock: Clock,
        complaints: Complaints,
        bus: Bus,
        serves: Sequence[str] = (),
        steady_since: Callable[[], float] = lambda: math.inf,
    ) -> None:
        # Often enough to notice a standstill that short leases would not survive.
        super().__init__(min(config.sweep, config.lease / 6), complaints)
        self._store = store
        self._work = work
        self._worker_id = worker_id
        self._config = config
        self._mux = mux
        self._clock = clock
        self._bus = bus
        self._requests = Requests(store.outbox, clock)
        self._lost: list[tuple[Mapping[str, str], bool]] = []
        self._sweeps = 0
        self._calm = Calm(config.lease, self.interval)
        self._serves = serves
        self._steady_since = steady_since
        self._unanswered: set[str] = set()
        """Queues in which this recoverer may hold claims that it did not settle, because a call got no answer: they are
        claimed again at the next sweep, not when they have run out."""
        self._told: set[tuple[str, str]] = set()
        """Tasks, by queue and id, whose recovery was told but may not be written yet."""
        self._with_lanes: set[str] = set()
        self._queues: list[str] = []
        self._queues_read_at = -math.inf
        self._next_expiry = self.interval

    async def step(self) -> bool:
        """One sweep over all queues, also those that no live worker serves."""
        # Soon again if there is no answer: a gap between two sweeps puts off the recovery.
        self._next_expiry = self.interval / 4
        self._with_lanes.clear()
        if self._unanswered:
            await self._sweep(sorted(self._unanswered), dead_worker=holding.owner(self._worker_id, OWN_CLAIMS))
        queues = await self._all_queues()
        self._next_expiry = self.interval
        for queue, sweep in (await self._sweep(queues)).items():
            if isinstance(sweep, StoreError):
                self.complaints.error(("recover", queue), f"cannot recover the tasks of queue {queue}", sweep)
            elif self.complaints.outages:
                self.complaints.recovered(("recover", queue))
        if self._with_lanes:
            await self._tend(sorted(self._with_lanes))
        return bool(queues)

    async def _tend(self, queues: Sequence[str]) -> None:
        """Let lanes go on whose first task a Go worker or tool has ended; so many at a time, the rest next time."""
        looked = await self._store.lanes.tend(queues, round(self.interval * 500))
        for queue, result in zip(queues, looked, strict=True):
            if isinstance(result, StoreError):
                self.complaints.error(("tend", queue), f"cannot look after the lanes of queue {queue}", result)

    async def pause(self, seconds: float) -> None:
        """Not past the next expiry: a lease that is not prolonged is noticed when it ends, not at the next round."""
        if self._next_expiry < seconds:
            seconds = self._next_expiry + 0.01
        await super().pause(seconds)

    async def give_back(self, dead_worker: str) -> int:
        """Claim what a child known to be dead still holds, before its leases run out; returns how many."""
        claimed = 0
        for sweep in (await self._sweep(await self._store.queues(), dead_worker=dead_worker)).values():
            claimed += sweep if isinstance(sweep, int) else 0
        return claimed

    async def _all_queues(self) -> list[str]:
        now = time.monotonic()
        # A queue that is new must be known well before a lease in it can run out.
        if now - self._queues_read_at >= self._config.beat:
            self._queues = await self._store.queues()
            if missing := set(self._serves).difference(self._queues):  # somebody emptied or repaired the database
                await self._store.register(sorted(missing))
                self._queues = sorted({*self._queues, *missing})
            self._calm.forget_all_but(self._queues)
            self._queues_read_at = now
        return self._queues

    async def _sweep(self, queues: Sequence[str], dead_worker: str = "") -> dict[str, int | StoreError]:
        self._sweeps += 1
        owner = holding.owner(self._worker_id, f"{OWN_CLAIMS}{self._sweeps}")
        asked, steady_since = time.monotonic(), self._steady_since()
        since = {queue: self._calm.since(queue, asked, steady_since) for queue in queues}
        sweeps = await self._store.leases.recover(
            queues,
            owner,
            since=since,
            claim_ms=CLAIM_MS,
            furthest_ms=FURTHEST * self._config.lease_ms,
            dead_worker=dead_worker,
        )
        results: dict[str, int | StoreError] = {}
        decisions: list[tuple[str, list[Settlement]]] = []
        for queue, sweep in sweeps.items():
            if isinstance(sweep, StoreError):
                results[queue] = sweep
                self._next_expiry = min(self._next_expiry, self.interval / 4)
                if isinstance(sweep, ConnectionLost):
                    self._unanswered.add(queue)
                continue
            if dead_worker:
                self._unanswered.discard(queue)
            else:
                self._calm.swept(queue, asked, since[queue][1], sweep.now_ms)
            if sweep.has_lanes:
                self._with_lanes.add(queue)
            if sweep.next_expiry is not None:
                self._next_expiry = min(self._next_expiry, sweep.next_expiry)
            results[queue] = len(sweep.claimed)
            for task_id in sweep.tidied:
                self._bus.emit(ItemDropped(queue, task_id, "not active"))
            decisions += [(queue, settlements) for settlements in self._decide(queue, owner, sweep.claimed)]
        try:
            await self._tell_clients()
            await self._work.settle_each(decisions)
        except StoreError:
            self._unanswered.update(queue for queue, _ in decisions)
            self._next_expiry = self.interval / 4
            raise
        if not self._unanswered:
            self._told.clear()
        return results

    async def _tell_clients(self) -> None:
        """Requests that end with their worker are answered before they are settled: a claim that is not, comes back."""
        lost, self._lost = self._lost, []
        for headers, cancelled in lost:
            await self._requests.lost(headers, cancelled=cancelled)

    def _decide(self, queue: str, owner: str, claimed: Sequence[Claimed]) -> list[list[Settlement]]:
        """What shall become of each, by kind."""
        verdicts: dict[type, list[Settlement]] = {}
        for claim in claimed:
            settlement = self._judge(queue, owner, claim)
            verdicts.setdefault(type(settlement), []).append(settlement)
        return list(verdicts.values())

    def _judge(self, queue: str, owner: str, claim: Claimed) -> Settlement:
        now = self._clock.time()
        try:
            message = decode_task(claim.message)
        except UndecodableMessage as exc:
            return quarantine(queue, owner, claim.task_id, claim.message, str(exc), now)
        message.id, message.queue = claim.task_id, queue
        most = self._config.max_crashes
        verdict = judge_lost_lease(message, claim.cancel, crashes=claim.losses, max_crashes=most)
        if SESSION in message.headers and answers(verdict):
            self._lost.append((message.headers, claim.cancel in CANCELLATIONS))
        if claim.cancel in CANCELLATIONS:
            self._tell(message, claim, verdict, "it ends cancelled", logging.INFO)
            if verdict.action is Action.DONE:
                return Done(claim.task_id, owner, message.unique_key)
            data = encode_task(failed_message(message, CANCELED, now, counts=False))
            return Archive(claim.task_id, owner, message.unique_key, data, is_failure=False)
        delay, task = 0, self._mux.find(message.type)
        if verdict.action is Action.RETRY and claim.losses > 1:
            # Due at once only the first time: a task that kills its worker would take its neighbours with it each time.
            delay_of = (task.retry_delay if task is not None else None) or self._config.retry_delay
            delay = retry_delay_ms(delay_of, message, LeaseLost(LEASE_EXPIRED), Job(message))
        killed = killed_text(claim.losses) if is_poison(claim.losses, most) else ""
        failed_message(message, killed or LEASE_EXPIRED, now, counts=verdict.action is Action.RETRY)
        is_archived = verdict.action is Action.ARCHIVE
        fate = f"archived, {killed or 'its retries are used up'}" if is_archived else f"retried in {delay / 1000:g} s"
        self._tell(message, claim, verdict, fate)
        if is_archived:
            return Archive(claim.task_id, owner, message.unique_key, encode_task(message))
        front = self._config.retry_front if task is None or task.retry_front is None else task.retry_front
        return Retry(claim.task_id, owner, encode_task(message), delay, True, front)

    def _tell(
        self, message: TaskMessage, claim: Claimed, verdict: Verdict, fate: str, level: int = logging.WARNING
    ) -> None:
        """Once, also if what was decided has to be written a second time."""
        name = (message.queue, message.id)
        if name not in self._told:
            self._told.add(name)
            what = f"task {message.id} ({message.type}) of queue {message.queue}"
            logger.log(level, "%s lost its worker: %s", what, fate)
            self._bus.emit(TaskRecovered(message, claim.losses, verdict.action.value))
