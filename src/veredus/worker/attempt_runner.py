"""Runs attempts: from the bytes that dequeue returned, through the handler, to the settlement."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from veredus.clock import Clock
from veredus.errors import LeaseLost, TaskTimeout
from veredus.events import Bus, ItemDropped, TaskEnded, TaskStarted
from veredus.handlers.calling import UnreadablePayload, call_in_thread, call_on_loop
from veredus.handlers.context import enter
from veredus.handlers.deadlines import Deadlines
from veredus.handlers.durable_run import HandlerParked
from veredus.handlers.eager_runner import EagerRunner
from veredus.handlers.executors.processes import ProcessDied, ProcessPool
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.mux import AnyTask, HandlerNotFound, Mux
from veredus.handlers.reports import Reports
from veredus.handlers.request_answers import RequestAnswers
from veredus.model.failure import drop_older_raises, one_line
from veredus.model.job import Job
from veredus.model.lease import Lease
from veredus.model.options import DEFAULT_TIMEOUT
from veredus.model.request import SESSION, answers
from veredus.model.verdict import Action, End, Outcome, Verdict
from veredus.process import forks
from veredus.store.tasks.work import Batch
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.wire.results import check_size, encode_result
from veredus.worker.attempt import Attempt
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.config import WorkerConfig
from veredus.worker.judge import Judge
from veredus.worker.settlements import quarantine, settlement_for
from veredus.worker.settler import Settler
from veredus.worker.type_counts import UNKNOWN, TypeCounts

logger = logging.getLogger("veredus.worker")

SETTLED = (Action.DONE, Action.COMPLETE, Action.ARCHIVE)
"""Actions that end a task, whether or not it failed."""


@dataclass(frozen=True, slots=True)
class Executors:
    """Where handlers run that do not run on the event loop."""

    threads: ThreadPool
    processes: ProcessPool


class _Encoded(bytes):
    """A result that the handler's process has encoded."""


class AttemptRunner:
    """Whatever a handler or a hook raises ends its own attempt and nothing else."""

    def __init__(
        self,
        config: WorkerConfig,
        mux: Mux,
        settler: Settler,
        judge: Judge,
        executors: Executors,
        reports: Reports,
        requests: RequestAnswers,
        records: AttemptRecords,
        counts: TypeCounts,
        *,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._config = config
        self._mux = mux
        self._in_flight = settler.in_flight
        self._settler = settler
        self._judge = judge
        self._executors = executors
        self._reports = reports
        self._requests = requests
        self._records = records
        self._counts = counts
        self._bus = bus
        self._clock = clock
        self._runs: dict[str, Callable[[Job], Awaitable[Any]]] = {}
        self._deadlines: Deadlines[Attempt] = Deadlines(lambda attempt: attempt.force(End.TIMED_OUT))
        self._eager_runner: EagerRunner[Attempt] = EagerRunner(self._run)
        self._is_fork = False
        forks.register(self)
        self.started = 0

    def forked(self) -> None:
        """In a fork that a handler made: it must not settle its parent's attempts."""
        self._is_fork = True

    def start(self, queue: str, batch: Batch, leased_until: float) -> None:
        """Start an attempt for each task of a dequeued batch. A task to be cancelled gets one only to end it.

        The leases end no earlier than `leased_until` on the monotonic clock."""
        now, cancels = self._clock.time(), batch.cancels
        waits = batch.waits or itertools.repeat(-1)
        for (task_id, data), wait_ms in zip(batch.rows, waits, strict=False):
            attempt = self._attempt(queue, batch.owner, task_id, data, leased_until, now)
            if attempt is not None:
                attempt.wait_ms = wait_ms
                if task_id in cancels:
                    attempt.cancel(cancels[task_id])
                self._in_flight.take(attempt)
                self._eager_runner.start(attempt)

    def _attempt(
        self, queue: str, owner: str, task_id: str, data: bytes, leased_until: float, now: float
    ) -> Attempt | None:
        self.started += 1
        try:
            message = decode_task(data)
        except UndecodableMessage as exc:
            self._quarantine(queue, owner, task_id, data, exc)
            return None
        message.id, message.queue = task_id, queue
        task = self._mux.find(message.type)
        attempt = Attempt(
            queue,
            task_id,
            owner,
            data,
            message,
            Lease(leased_until),
            started_at=now,
            where="loop" if task is None else task.run_in,
            reports=self._reports,
        )
        if task is not None:
            attempt.context.retry_rule = task.retry_rule
        return attempt

    async def _run(self, attempt: Attempt) -> None:
        """Execute, judge, settle."""
        if self._bus.listeners:
            self._bus.emit(TaskStarted(attempt.message))
        try:
            outcome = await self._execute(attempt)
        except BaseException as exc:  # a GeneratorExit from a future passes every handler inside
            attempt.running = False
            outcome = Outcome(End.FAILED, error=exc)
        action = Action.NOTHING
        try:
            if not attempt.abandoned:
                action = await self._conclude(attempt, outcome)
        finally:
            self._in_flight.release(attempt)
        if self._bus.listeners:
            seconds = max(0.0, self._clock.monotonic() - attempt.began_at)  # 0 if its handler never began
            self._bus.emit(TaskEnded(attempt.message, outcome.end.value, action.value, seconds, outcome.error))

    async def end_without_handler(self, attempt: Attempt) -> None:
        """Settle an attempt as timed out although its handler still runs, because this process is about to end."""
        attempt.running, attempt.abandoned = False, True
        await self._conclude(attempt, Outcome(End.TIMED_OUT, error=_overran(attempt)))

    def given_back(self, attempt: Attempt) -> bytes:
        """The record of an attempt whose handler ignores its cancellation, because this worker stops."""
        return self._records.of(attempt, Outcome(End.ABORTED, error=asyncio.CancelledError()), self._clock.time())

    async def _conclude(self, attempt: Attempt, outcome: Outcome) -> Action:
        """Judge the outcome, answer the request if there is one, settle."""
        action = Action.NOTHING
        try:
            if attempt.context.reported:
                await self._reports.finish(attempt.context.job, attempt.owner)
            if outcome.error is None or outcome.end is End.PARKED:
                verdict = self._judge.succeeded(attempt, outcome)
            else:
                verdict = await self._judge.failed(attempt, outcome)
            action = verdict.action
            now = self._clock.time()
            settlement = settlement_for(attempt, outcome, verdict, self._config, self._mux, self._records, now)
            if SESSION in attempt.message.headers and not await self._answer(attempt, outcome, verdict):
                settlement = None  # unanswered, it must not end: its lease expires and the recoverer decides
            if settlement is not None:
                self._settler.settle(attempt.queue, settlement, attempt)
            else:
                self._in_flight.forget(attempt)
                if outcome.end is End.LEASE_LOST:
                    self._settler.void(attempt.queue, attempt.task_id)
            if outcome.error is None:
                run = 1000 * (now - attempt.started_at)
                self._counts.note(attempt.queue, attempt.message.type, now, run, attempt.wait_ms)
            else:
                self._count(attempt, verdict, now)
        except Exception:
            # All user code above is guarded, so this is a defect of ours. The lease expires and the recoverer decides.
            logger.exception("settling task %s failed", attempt.task_id)
            self._in_flight.forget(attempt)
        return action

    def _count(self, attempt: Attempt, verdict: Verdict, now: float) -> None:
        """For the statistics, as the counters of the queue count: a retry that is no failure is not counted."""
        is_failure = verdict.is_failure and (verdict.action is Action.RETRY or verdict.action is Action.ARCHIVE)
        if is_failure or verdict.action in SETTLED:
            run = 1000 * (now - attempt.started_at) if attempt.began_at < math.inf else UNKNOWN
            note = self._counts.note_failed if is_failure else self._counts.note
            note(attempt.queue, attempt.message.type, now, run, attempt.wait_ms)

    def close(self) -> None:
        """When no attempt is held any more."""
        self._deadlines.close()

    async def _execute(self, attempt: Attempt) -> Outcome:
        attempt.begun = True
        if attempt.where == "loop" or attempt.forced is not None:
            return await self._execute_now(attempt)
        task = self._mux.find(attempt.message.type)
        if task is None:  # the app lost the task since dequeue
            attempt.running = False
            return Outcome(End.FAILED, error=HandlerNotFound(attempt.message.type))
        pool = self._executors.threads if attempt.where == "thread" else self._executors.processes
        try:
            async with pool.slot(task) as attempt.slot:
                return await self._execute_now(attempt)
        except asyncio.CancelledError as exc:
            attempt.running = False
            return Outcome(attempt.forced or End.ABORTED, error=exc, then=attempt.then)

    async def _execute_now(self, attempt: Attempt) -> Outcome:
        if attempt.forced is not None:
            attempt.running = False
            return Outcome(attempt.forced, error=asyncio.CancelledError(), then=attempt.then)
        now = self._clock.monotonic()
        if not attempt.lease.is_valid(now):
            # Another worker may own the task. If we still do, it goes back without counting an attempt.
            attempt.running = False
            end = End.LEASE_LOST if attempt.lease.lost else End.ABORTED
            return Outcome(end, error=LeaseLost("the lease had ended before the attempt began"))
        attempt.begin(self._clock.time(), now, self._config.deadline_grace)
        if attempt.ends_at <= now:
            attempt.running = False
            return Outcome(End.TIMED_OUT, error=TaskTimeout("the deadline had passed before the attempt began"))
        slot = self._deadlines.set(attempt, attempt.ends_at, now)
        enter(attempt.context)
        try:
            value = await self._handler(attempt)(attempt.context.job)
            outcome = Outcome(End.SUCCEEDED, result=self._encode_result(value, attempt))
        except UnreadablePayload as exc:
            outcome = Outcome(End.UNREADABLE, error=exc.__cause__)
        except asyncio.CancelledError as exc:
            if attempt.forced is None and attempt.task is not None and attempt.task.cancelling():
                attempt.forced = End.ABORTED  # the event loop is shutting down
            outcome = Outcome(End.FAILED, error=exc)
        except BaseException as exc:  # a handler may raise anything
            drop_older_raises(exc)
            outcome = Outcome(End.FAILED, error=exc)
        if self._is_fork:
            forks.end(outcome.error)
        attempt.running = False
        self._deadlines.dismiss(attempt, slot)
        if attempt.context.durable is not None:
            attempt.context.durable.end()
        if attempt.lease.lost:
            attempt.forced = End.LEASE_LOST
        return outcome if attempt.forced is None else _forced_outcome(attempt, attempt.forced, outcome.error)

    def _handler(self, attempt: Attempt) -> Callable[[Job], Awaitable[Any]]:
        task = self._mux.find(attempt.message.type)
        if task is None:
            return self._mux.wrap(_not_found)
        if task.run_in == "process":
            return self._mux.wrap(functools.partial(self._run_in_process, task, attempt))
        run = self._runs.get(task.name)
        if run is None:
            if task.run_in == "loop":
                call = functools.partial(call_on_loop, task)
            else:
                call = functools.partial(call_in_thread, task, self._executors.threads)
            run = self._runs[task.name] = self._mux.wrap(call)
        return run

    async def _run_in_process(self, task: AnyTask, attempt: Attempt, job: Job) -> Any:
        returned = await attempt.slot.run(task, attempt.data, attempt.context)
        return returned.data if returned.data is None or returned.raw else _Encoded(returned.data)

    def _encode_result(self, value: Any, attempt: Attempt) -> bytes | None:
        if value is None:
            return attempt.context.written
        task_type = attempt.message.type
        if isinstance(value, bytes):
            attempt.context.raw = not isinstance(value, _Encoded)
            return check_size(value, self._reports.max_result, task_type)
        return check_size(encode_result(value, task_type), self._reports.max_result, task_type)

    async def _answer(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> bool:
        """Answer the client's request before its task is settled. False if the answer cannot be written."""
        if not answers(verdict):
            return True
        return await self._requests.answer(attempt.context.job, outcome, attempt.context)

    def _quarantine(self, queue: str, owner: str, task_id: str, data: bytes, exc: UndecodableMessage) -> None:
        logger.error("task %s of queue %s is archived: %s", task_id, queue, exc)
        self._bus.emit(ItemDropped(queue, task_id, "undecodable"))
        now = self._clock.time()
        self._settler.settle(queue, quarantine(queue, owner, task_id, data, str(exc), now, self._records), None)


def _forced_outcome(attempt: Attempt, end: End, error: BaseException | None) -> Outcome:
    """The outcome of an attempt that was ended from outside; `error` is what its handler raised."""
    if attempt.task is not None:
        while attempt.task.uncancel() > 0:
            pass
    if end is End.PARKED:
        if not isinstance(error, asyncio.CancelledError | HandlerParked | None):
            what = "task %s (%s) raised an error while its handler left its worker to wait: %s"
            logger.warning(what, attempt.task_id, attempt.kind, one_line(error))
        return Outcome(end)
    if end is End.CRASHED:
        return Outcome(End.FAILED, error=ProcessDied("the test ended its worker here"))
    if error is None or isinstance(error, asyncio.CancelledError):
        raised, error = error, error or asyncio.CancelledError()
        if end is End.TIMED_OUT:
            error = _overran(attempt)
            error.__cause__ = raised  # its traceback shows where the handler was
    return Outcome(end, error=error, then=attempt.then)


async def _not_found(job: Job) -> Any:
    raise HandlerNotFound(job.type)


def _overran(attempt: Attempt) -> TaskTimeout:
    message = attempt.message
    if message.deadline and attempt.deadline == message.deadline:
        return TaskTimeout("ran over its deadline")
    return TaskTimeout(f"ran over its timeout of {message.timeout or DEFAULT_TIMEOUT} s")
