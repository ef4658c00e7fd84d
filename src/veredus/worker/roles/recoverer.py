"""Recoverer: finds tasks whose lease has expired, in all queues, and decides how they go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from veredus.clock import Clock
from veredus.errors import ConnectionLost, LeaseLost, StoreError
from veredus.events import Bus, ItemDropped, TaskRecovered
from veredus.handlers.mux import Mux
from veredus.handlers.request_answers import RequestAnswers
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
    is_poison,
    judge_lost_lease,
    killed_text,
    write_failure,
)
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.leases import Claimed
from veredus.store.tasks.work import Work
from veredus.wire import lease_owner
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.config import WorkerConfig
from veredus.worker.role import Role
from veredus.worker.settlements import quarantine, retry_delay_ms
from veredus.worker.wait_looker import WaitLooker

logger = logging.getLogger("veredus.worker")

CLAIM_MS = 5_000
"""How long a claim lasts: long enough to settle the task, short if this process dies."""
OWN_CLAIMS = "recoverer:"
"""Follows the worker in the owner of a claim; lua/lease/recover.lua recognizes claims by it."""
STANDSTILL = 2.0
"""A sweep that is later than expected by more seconds means a standstill; with short leases, fewer seconds."""
FURTHEST = 5
"""A lease that ends further ahead than this many lease times was written before the server's clock went back."""


class RecoveryGate:
    """Decides when expired leases may be recovered: not before live workers have had one whole lease time to renew
    theirs since the last disturbance.

    A disturbance is a server, network or process that was suspended, or a change of the server's clock. A sweep sees
    all of them the same way: the server's time since the previous sweep is not as expected. It is tracked per queue,
    because each queue may be on a different server.
    """

    def __init__(self, lease: float, interval: float) -> None:
        self._lease = lease
        self._most = interval * 1.1
        self._slack = min(STANDSTILL, lease / 6)
        self._began = time.monotonic()
        self._from: dict[str, float] = {}
        """From when on each queue may be recovered, on the monotonic clock."""
        self._last: dict[str, tuple[int, float]] = {}
        """The server's time in ms at the last sweep of each queue, and when that sweep was sent, on the monotonic
        clock."""

    def since(self, queue: str, now: float, steady_since: float) -> tuple[int, int]:
        """The server's time at the last sweep in ms, or 0 if nothing may be recovered now; and how many ms may have
        passed since. A blocked event loop explains any gap, if the heartbeats of this process went on."""
        if queue not in self._from:
            self._from[queue] = max(self._from.values(), default=self._began + self._lease)
        last, asked = self._last.get(queue, (0, now))
        most = max(self._most, now - asked) if steady_since <= asked else self._most
        return last if now >= self._from[queue] else 0, round((most + self._slack) * 1000)

    def swept(self, queue: str, asked: float, most_ms: int, now_ms: int) -> None:
        """A sweep sent at `asked` found `now_ms` on the server's clock."""
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
        outages: OutageLog,
        bus: Bus,
        serves: Sequence[str] = (),
        steady_since: Callable[[], float] = lambda: math.inf,
        records: AttemptRecords | None = None,
        on_recovered: Callable[[str], None] = lambda worker_id: None,
    ) -> None:
        # Often enough to notice a standstill that short leases would not survive.
        super().__init__(min(config.sweep, config.lease / 6), outages)
        self._store = store
        self._work = work
        self._worker_id = worker_id
        self._config = config
        self._mux = mux
        self._clock = clock
        self._bus = bus
        self._requests = RequestAnswers(store.outbox, clock)
        self._lost: list[tuple[Mapping[str, str], bool]] = []
        self._sweeps = 0
        self._gate = RecoveryGate(config.lease, self.interval)
        self._serves = serves
        self._steady_since = steady_since
        self._records = records or AttemptRecords(worker_id)
        self._on_recovered = on_recovered
        self._dead: dict[str, None] = {}
        """Workers that were found dead before their leases have expired."""
        self._woken = asyncio.Event()
        self._unanswered: set[str] = set()
        """Queues in which this recoverer may hold unsettled claims, because a reply was lost. It claims them again at
        the next sweep, before they expire."""
        self._reported: set[tuple[str, str]] = set()
        """Tasks, by queue and id, whose recovery was reported but may not be written yet."""
        self._with_lanes: set[str] = set()
        self._with_waits: set[str] = set()
        self._looker = WaitLooker(store, outages, clock)
        self._queues: list[str] = []
        self._queues_read_at = -math.inf
        self._next_expiry = self.interval

    async def step(self) -> bool:
        """One sweep over all queues, including those that no live worker serves."""
        # Soon again if there is no reply: a gap between two sweeps delays the recovery.
        self._next_expiry = self.interval / 4
        self._with_lanes.clear()
        self._with_waits.clear()
        while self._dead:
            await self._recover_dead(next(iter(self._dead)))
        if self._unanswered:
            await self._sweep(sorted(self._unanswered), dead_worker=lease_owner.owner(self._worker_id, OWN_CLAIMS))
        queues = await self._all_queues()
        self._next_expiry = self.interval
        for queue, sweep in (await self._sweep(await self._with_leases(queues))).items():
            if isinstance(sweep, StoreError):
                self.outages.error(("recover", queue), f"cannot recover the tasks of queue {queue}", sweep)
            elif self.outages.count:
                self.outages.recovered(("recover", queue))
        if self._with_lanes:
            await self._advance_order_keys(sorted(self._with_lanes))
        if self._with_waits:
            await self._looker.look(sorted(self._with_waits))
        return bool(queues)

    async def _with_leases(self, queues: Sequence[str]) -> list[str]:
        """Those that have anything to look at. In the others there is nothing to recover now, but the time of this look
        counts: a standstill after it is noticed."""
        asked, steady_since = time.monotonic(), self._steady_since()
        survey = await self._store.surveys.survey("leases", queues)
        if survey.now_ms:
            for queue in set(queues).difference(survey.queues):
                _, most_ms = self._gate.since(queue, asked, steady_since)
                self._gate.swept(queue, asked, most_ms, survey.now_ms)
        return survey.queues

    async def _advance_order_keys(self, queues: Sequence[str]) -> None:
        """Release the next task of order keys whose first task a Go worker or tool has ended; a few at each sweep."""
        results = await self._store.lanes.advance_stale_lanes(queues, round(self.interval * 500))
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, StoreError):
                self.outages.error(("order keys", queue), f"cannot check the order keys of queue {queue}", result)

    async def pause(self, seconds: float) -> None:
        """Not past the next expiry, so that an expired lease is noticed at once."""
        if self._next_expiry < seconds:
            seconds = self._next_expiry + 0.01
        await super().pause(seconds)

    async def rest(self, seconds: float) -> None:
        """Also until a worker is found dead."""
        self._woken.clear()
        if not self._dead and not self.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    def stop(self) -> None:
        super().stop()
        self._woken.set()

    def found_dead(self, worker_id: str) -> None:
        """The connections of this worker are closed: recover its tasks now."""
        self._dead[worker_id] = None
        self._woken.set()

    async def _recover_dead(self, worker_id: str) -> None:
        """If that fails, it is found dead again, or its leases expire."""
        total = 0
        try:
            while (count := await self.give_back(lease_owner.owner(worker_id, ""))) > 0:
                total += count
        finally:
            del self._dead[worker_id]
            if total:
                logger.warning("worker %s has died: its connections are closed; it had %d tasks", worker_id, total)
                await self._store.liveness.judge(worker_id, total)
        self._on_recovered(worker_id)

    async def give_back(self, dead_worker: str) -> int:
        """Claim the tasks of a dead worker before its leases expire; returns how many."""
        claimed = 0
        queues = (await self._store.surveys.survey("leases", await self._store.queues())).queues
        for sweep in (await self._sweep(queues, dead_worker=dead_worker)).values():
            claimed += sweep if isinstance(sweep, int) else 0
        return claimed

    async def _all_queues(self) -> list[str]:
        now = time.monotonic()
        # A new queue must be known well before a lease in it can expire.
        if now - self._queues_read_at >= self._config.beat:
            self._queues = await self._store.queues()
            if missing := set(self._serves).difference(self._queues):  # the database was emptied or repaired
                await self._store.register(sorted(missing))
                self._queues = sorted({*self._queues, *missing})
            self._gate.forget_all_but(self._queues)
            self._queues_read_at = now
        return self._queues

    async def _sweep(self, queues: Sequence[str], dead_worker: str = "") -> dict[str, int | StoreError]:
        self._sweeps += 1
        own = lease_owner.owner(self._worker_id, OWN_CLAIMS)
        owner = f"{own}{self._sweeps}"
        asked, steady_since = time.monotonic(), self._steady_since()
        since = {queue: self._gate.since(queue, asked, steady_since) for queue in queues}
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
                if dead_worker.startswith(own):
                    self._unanswered.discard(queue)
            else:
                self._gate.swept(queue, asked, since[queue][1], sweep.now_ms)
            if sweep.has_lanes:
                self._with_lanes.add(queue)
            if sweep.has_waits:
                self._with_waits.add(queue)
            if sweep.next_expiry is not None:
                self._next_expiry = min(self._next_expiry, sweep.next_expiry)
            results[queue] = len(sweep.claimed)
            for task_id in sweep.tidied:
                self._bus.emit(ItemDropped(queue, task_id, "not active"))
            decisions += [(queue, settlements) for settlements in self._decide(queue, owner, sweep.claimed)]
        try:
            await self._answer_clients()
            await self._work.settle_each(decisions)
        except StoreError:
            self._unanswered.update(queue for queue, _ in decisions)
            self._next_expiry = self.interval / 4
            raise
        if not self._unanswered:
            self._reported.clear()
        return results

    async def _answer_clients(self) -> None:
        """Answer the requests that end here before their tasks are settled: an unsettled claim comes back."""
        lost, self._lost = self._lost, []
        for headers, cancelled in lost:
            await self._requests.lost(headers, cancelled=cancelled)

    def _decide(self, queue: str, owner: str, claimed: Sequence[Claimed]) -> list[list[Settlement]]:
        """The settlements of all claims, grouped by kind."""
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
            return quarantine(queue, owner, claim.task_id, claim.message, str(exc), now, self._records)
        message.id, message.queue = claim.task_id, queue
        most = self._config.max_crashes
        verdict = judge_lost_lease(message, claim.cancel, crashes=claim.losses, max_crashes=most)
        if SESSION in message.headers and answers(verdict):
            self._lost.append((message.headers, claim.cancel in CANCELLATIONS))
        if claim.cancel in CANCELLATIONS:
            self._report(message, claim, verdict, "it ends cancelled", logging.INFO)
            if verdict.action is Action.DONE:
                return Done(claim.task_id, owner, message.unique_key)
            record = self._records.lost(message, claim.lost_by, CANCELED, now)
            data = encode_task(write_failure(message, CANCELED, now, counts=False))
            return Archive(claim.task_id, owner, message.unique_key, data, is_failure=False, attempt=record)
        delay = 0
        if verdict.action is Action.RETRY and claim.losses > 1:
            # Due at once only the first time: a task that kills its worker would kill its neighbours each time.
            delay_of = self._mux.retry_delay(message.type, self._config.retry_delay)
            delay = retry_delay_ms(delay_of, message, LeaseLost(LEASE_EXPIRED), Job(message))
        killed = killed_text(claim.losses) if is_poison(claim.losses, most) else ""
        record = self._records.lost(message, claim.lost_by, "", now)
        write_failure(message, killed or LEASE_EXPIRED, now, counts=verdict.action is Action.RETRY)
        is_archived = verdict.action is Action.ARCHIVE
        fate = f"archived, {killed or 'its retries are used up'}" if is_archived else f"retried in {delay / 1000:g} s"
        self._report(message, claim, verdict, fate)
        if is_archived:
            return Archive(claim.task_id, owner, message.unique_key, encode_task(message), attempt=record)
        front = self._mux.retry_front(message.type, self._config.retry_front)
        return Retry(claim.task_id, owner, encode_task(message), delay, True, front, attempt=record)

    def _report(
        self, message: TaskMessage, claim: Claimed, verdict: Verdict, fate: str, level: int = logging.WARNING
    ) -> None:
        """Once, even if the decision has to be written again."""
        name = (message.queue, message.id)
        if name not in self._reported:
            self._reported.add(name)
            self._records.count_lost(message, claim.lost_by, self._clock.time(), failed=verdict.is_failure)
            what = f"task {message.id} ({message.type}) of queue {message.queue}"
            logger.log(level, "%s lost its worker: %s", what, fate)
            self._bus.emit(TaskRecovered(message, claim.losses, verdict.action.value))
