"""Recoverer: finds tasks whose worker has gone, in every queue there is, and walks them to the judge."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

from veredus.clock import Clock
from veredus.errors import LeaseLost, StoreError
from veredus.events import Bus, ItemDropped, TaskRecovered
from veredus.model.job import Job
from veredus.model.request import SESSION, answers
from veredus.model.settlement import Archive, Done, Retry, Settlement
from veredus.model.verdict import (
    CANCELED,
    CANCELLATIONS,
    LEASE_EXPIRED,
    Action,
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
STANDSTILL = 2.0
"""Seconds beyond the interval since the last sweep after which somebody stood still; less for short leases."""


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
        self._since: dict[str, int] = {}
        self._answered: dict[str, float] = {}
        """When each queue's server last answered, on the monotonic clock."""
        self._steady: dict[str, float] = {}
        """Since when it has answered without a gap."""
        self._failing: set[str] = set()
        """Queues whose last sweep had no answer."""
        self._with_lanes: set[str] = set()
        self._queues: list[str] = []
        self._queues_read_at = -math.inf
        self._next_expiry = self.interval

    async def step(self) -> bool:
        """One sweep over all queues, also those that no live worker serves."""
        # Soon again if there is no answer: a gap between two sweeps puts off the recovery.
        self._next_expiry = self.interval / 4
        self._with_lanes.clear()
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
            self._queues_read_at = now
        return self._queues

    async def _sweep(self, queues: Sequence[str], dead_worker: str = "") -> dict[str, int | StoreError]:
        self._sweeps += 1
        owner = holding.owner(self._worker_id, f"recoverer:{self._sweeps}")
        max_gap = self.interval * 1.1 + min(STANDSTILL, self._config.lease / 6)
        # After an outage the heartbeats of the living may still be on their way: they get the time of a lease.
        trusted_since = time.monotonic() - self._config.lease
        trusted = {
            queue: self._since.get(queue, 0) if self._steady.get(queue, math.inf) <= trusted_since else 0
            for queue in queues
        }
        sweeps = await self._store.leases.recover(
            queues,
            owner,
            since=trusted,
            max_gap_ms=round(max_gap * 1000),
            claim_ms=CLAIM_MS,
            dead_worker=dead_worker,
        )
        results: dict[str, int | StoreError] = {}
        decisions: list[tuple[str, list[Settlement]]] = []
        for queue, sweep in sweeps.items():
            if isinstance(sweep, StoreError):
                results[queue] = sweep
                self._failing.add(queue)
                self._next_expiry = min(self._next_expiry, self.interval / 4)
                continue
            self._note_answer(queue, max_gap)
            self._since[queue] = sweep.now_ms
            if sweep.has_lanes:
                self._with_lanes.add(queue)
            if sweep.next_expiry is not None:
                self._next_expiry = min(self._next_expiry, sweep.next_expiry)
            results[queue] = len(sweep.claimed)
            for task_id in sweep.tidied:
                self._bus.emit(ItemDropped(queue, task_id, "not active"))
            decisions += [(queue, settlements) for settlements in self._decide(queue, owner, sweep.claimed)]
        await self._tell_clients()
        await self._work.settle_each(decisions)
        return results

    def _note_answer(self, queue: str, max_gap: float) -> None:
        """A connection that breaks and is made again at once is no outage: what counts is how long nobody answered."""
        now = time.monotonic()
        was_away = queue in self._failing and now - self._answered[queue] > max_gap if queue in self._answered else True
        self._failing.discard(queue)
        self._answered[queue] = now
        if was_away:
            self._steady[queue] = now

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
            logger.info("task %s of queue %s lost its worker and ends cancelled", claim.task_id, queue)
            self._bus.emit(TaskRecovered(message, claim.losses, verdict.action.value))
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
        logger.warning(
            "task %s (%s) of queue %s lost its worker: %s",
            claim.task_id,
            message.type,
            queue,
            f"archived, {killed or 'its retries are used up'}"
            if verdict.action is Action.ARCHIVE
            else f"retried in {delay / 1000:g} s",
        )
        self._bus.emit(TaskRecovered(message, claim.losses, verdict.action.value))
        if verdict.action is Action.ARCHIVE:
            return Archive(claim.task_id, owner, message.unique_key, encode_task(message))
        front = self._config.retry_front if task is None or task.retry_front is None else task.retry_front
        return Retry(claim.task_id, owner, encode_task(message), delay, True, front)
