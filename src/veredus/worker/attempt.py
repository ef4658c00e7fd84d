"""One attempt: from the bytes that dequeue returned, through the handler, to its settlement."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from veredus import forks
from veredus.clock import Clock
from veredus.errors import LeaseLost, PayloadError, StoreError, TaskTimeout
from veredus.events import Bus, ItemDropped, TaskEnded, TaskStarted
from veredus.model.failure import drop_older_raises, traceback_of, write_traceback
from veredus.model.job import Job
from veredus.model.lease import Lease
from veredus.model.message import TaskMessage
from veredus.model.request import SESSION, answers
from veredus.model.retry import RetryDelayFunction, asynq_default
from veredus.model.settlement import Archive, Complete, Done, Requeue, Retry, Settlement
from veredus.model.verdict import (
    CANCELLATIONS,
    Action,
    End,
    Outcome,
    Verdict,
    failed_message,
    is_poison,
    judge,
    killed_text,
)
from veredus.store.work import Batch
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task
from veredus.wire.results import check_size, encode_result
from veredus.worker.alarms import Alarms
from veredus.worker.carrier import Carrier
from veredus.worker.config import WorkerConfig
from veredus.worker.context import enter
from veredus.worker.endings import log_ending, log_hook_failure
from veredus.worker.executors.processes import ProcessDied, ProcessNotReady, ProcessPool, Unreadable
from veredus.worker.executors.threads import ThreadPool
from veredus.worker.hands import Attempt, Hands
from veredus.worker.injection import call_injected, dependencies
from veredus.worker.mux import AnyTask, HandlerNotFound, Mux
from veredus.worker.reports import Reports
from veredus.worker.settlement import Settler

logger = logging.getLogger("veredus.worker")


LONGEST_DELAY = 100 * 365 * 86400.0
"""Seconds until a retry, at most: a message of another program may say that it was retried two billion times."""
HOOK_TIMEOUT = 10.0
"""Seconds for an async on_error: the task waits for it before its new state is written."""


class _Unreadable(Exception):
    """The payload does not fit the handler."""


class _Encoded(bytes):
    """A result that was encoded in another process."""


class Workshop:
    """Runs attempts. Whatever a handler or a hook raises ends that attempt and nothing else."""

    def __init__(
        self,
        config: WorkerConfig,
        mux: Mux,
        hands: Hands,
        settler: Settler,
        bus: Bus,
        clock: Clock,
        threads: ThreadPool,
        processes: ProcessPool,
        result_ttl: int,
        reports: Reports | None = None,
        *,
        max_result: int,
    ) -> None:
        self._config = config
        self._mux = mux
        self._hands = hands
        self._settler = settler
        self._bus = bus
        self._clock = clock
        self._threads = threads
        self._processes = processes
        self._result_ttl = result_ttl
        self._reports = reports
        self._max_result = max_result
        self._runs: dict[str, Callable[[Job], Awaitable[Any]]] = {}
        self._alarms: Alarms[Attempt] = Alarms(lambda attempt: attempt.force(End.TIMED_OUT))
        self._carrier: Carrier[Attempt] = Carrier(self._run)
        self._is_fork = False
        forks.hold(self)
        self.started = 0

    def forked(self) -> None:
        """This is a fork that a handler made: it has no attempts of its own."""
        self._is_fork = True

    def start(self, queue: str, batch: Batch, leased_until: float) -> None:
        """Begin an attempt of every task that was just dequeued; of those to be cancelled only to end it. Their leases
        end no earlier than this instant of the monotonic clock."""
        now, cancels = self._clock.time(), batch.cancels
        for task_id, data in batch.rows:
            attempt = self._attempt(queue, batch.owner, task_id, data, leased_until, now)
            if attempt is not None:
                if task_id in cancels:
                    attempt.cancel(cancels[task_id])
                self._hands.take(attempt)
                self._carrier.carry(attempt)

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
        return Attempt(
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

    async def _run(self, attempt: Attempt) -> None:
        """Execute, judge, settle."""
        if self._bus.listeners:
            self._bus.emit(TaskStarted(attempt.message))
        try:
            outcome = await self._execute(attempt)
        except BaseException as exc:  # a future that ends with GeneratorExit goes past every guard inside
            attempt.running = False
            outcome = Outcome(End.FAILED, error=exc)
        action = Action.NOTHING
        try:
            if not attempt.abandoned:
                action = await self._conclude(attempt, outcome)
        finally:
            self._hands.release(attempt)
        if self._bus.listeners:
            seconds = max(0.0, self._clock.monotonic() - attempt.began_at)  # 0 if its handler never began
            self._bus.emit(TaskEnded(attempt.message, outcome.end.value, action.value, seconds, outcome.error))

    async def end_without_handler(self, attempt: Attempt) -> None:
        """Its handler runs on after the deadline and this process ends: settle it as timed out; what the handler still
        does is void."""
        attempt.running, attempt.abandoned = False, True
        await self._conclude(attempt, Outcome(End.TIMED_OUT, error=TaskTimeout("ran over its time")))

    async def _conclude(self, attempt: Attempt, outcome: Outcome) -> Action:
        """Judge, tell those who wait, settle."""
        action = Action.NOTHING
        try:
            if attempt.context.reported and self._reports is not None:
                await self._reports.finish(attempt.context.job, attempt.owner)
            verdict = (
                await self._judge(attempt, outcome) if outcome.error is not None else self._approve(attempt, outcome)
            )
            action = verdict.action
            settlement = self._settlement(attempt, outcome, verdict)
            if SESSION in attempt.message.headers and not await self._answer(attempt, outcome, verdict):
                settlement = None  # unanswered, it must not end: the lease runs out and the recoverer decides
            if settlement is not None:
                self._settler.settle(attempt.queue, settlement, attempt)
            else:
                self._hands.forget(attempt)
                if outcome.end is End.LEASE_LOST:
                    self._settler.void(attempt.queue, attempt.task_id)
        except Exception:
            # Nothing of the user's is called above without a guard: this is a defect of ours. The lease runs out and
            # the recoverer decides.
            logger.exception("settling task %s failed", attempt.task_id)
            self._hands.forget(attempt)
        return action

    async def _execute(self, attempt: Attempt) -> Outcome:
        attempt.begun = True
        if attempt.where == "loop" or attempt.forced is not None:
            return await self._execute_now(attempt)
        task = self._mux.find(attempt.message.type)
        assert task is not None, "else it would be for the loop"
        pool = self._threads if attempt.where == "thread" else self._processes
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
            # Somebody else may have it by now. It goes back if it is still ours, and no attempt is counted.
            attempt.running = False
            end = End.LEASE_LOST if attempt.lease.lost else End.ABORTED
            return Outcome(end, error=LeaseLost("the lease had ended before the attempt began"))
        attempt.begin(self._clock.time(), now, self._config.deadline_grace)
        if attempt.ends_at <= now:
            attempt.running = False
            return Outcome(End.TIMED_OUT, error=TaskTimeout("the deadline had passed before the attempt began"))
        slot = self._alarms.set(attempt, attempt.ends_at, now)
        enter(attempt.context)
        try:
            value = await self._handler(attempt)(attempt.context.job)
            outcome = Outcome(End.SUCCEEDED, result=self._encode_result(value, attempt))
        except _Unreadable as exc:
            outcome = Outcome(End.UNREADABLE, error=exc.__cause__)
        except asyncio.CancelledError as exc:
            if attempt.forced is None and attempt.task is not None and attempt.task.cancelling():
                attempt.forced = End.ABORTED  # the loop itself is being torn down
            outcome = Outcome(End.FAILED, error=exc)
        except BaseException as exc:
            drop_older_raises(exc)
            outcome = Outcome(End.FAILED, error=exc)
        if self._is_fork:
            forks.end(outcome.error)
        attempt.running = False
        self._alarms.dismiss(attempt, slot)
        if attempt.lease.lost:
            attempt.forced = End.LEASE_LOST
        if attempt.forced is not None:
            if attempt.task is not None:
                while attempt.task.uncancel() > 0:
                    pass
            error = outcome.error
            if error is None or isinstance(error, asyncio.CancelledError):
                where, error = error, error or asyncio.CancelledError()
                if attempt.forced is End.TIMED_OUT:
                    error = TaskTimeout("ran over its time")
                    error.__cause__ = where  # its traceback tells what the handler was at
            outcome = Outcome(attempt.forced, error=error, then=attempt.then)
        return outcome

    def _handler(self, attempt: Attempt) -> Callable[[Job], Awaitable[Any]]:
        task = self._mux.find(attempt.message.type)
        if task is None:
            return self._mux.wrap(_not_found)
        if task.run_in == "process":
            return self._mux.wrap(functools.partial(self._run_in_process, task, attempt))
        run = self._runs.get(task.name)
        if run is None:
            runner = self._run_on_loop if task.run_in == "loop" else self._run_in_thread
            run = self._runs[task.name] = self._mux.wrap(functools.partial(runner, task))
        return run

    async def _run_on_loop(self, task: AnyTask, job: Job) -> Any:
        args, kwargs = _decode(task, job)
        if not dependencies(task.function):
            return await task.function(*args, **kwargs)
        return await call_injected(task.function, lambda given: task.function(*args, **kwargs, **given))

    async def _run_in_thread(self, task: AnyTask, job: Job) -> Any:
        args, kwargs = _decode(task, job)
        run = functools.partial(task.function, *args, **kwargs)
        if not dependencies(task.function):
            return await self._threads.submit(run)
        return await call_injected(task.function, lambda given: self._threads.submit(functools.partial(run, **given)))

    async def _run_in_process(self, task: AnyTask, attempt: Attempt, job: Job) -> Any:
        try:
            returned = await attempt.slot.run(task, attempt.data, attempt.context)
        except Unreadable as exc:
            raise _Unreadable from exc.__cause__
        return returned.data if returned.data is None or returned.raw else _Encoded(returned.data)

    def _encode_result(self, value: Any, attempt: Attempt) -> bytes | None:
        if value is None:
            return attempt.context.written
        if isinstance(value, bytes):
            attempt.context.raw = not isinstance(value, _Encoded)
            return check_size(value, self._max_result, attempt.message.type)
        return check_size(encode_result(value, attempt.message.type), self._max_result, attempt.message.type)

    def _approve(self, attempt: Attempt, outcome: Outcome) -> Verdict:
        """Nothing went wrong: there is nobody to ask."""
        return judge(attempt.message, outcome, result_ttl=self._result_ttl, is_failure=False)

    async def _answer(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> bool:
        """A client waits for this task: it is told before the task ends. False if it could not be told."""
        if self._reports is None or not answers(verdict):
            return True
        return await self._reports.requests.answer(attempt.context.job, outcome, attempt.context)

    async def _judge(self, attempt: Attempt, outcome: Outcome) -> Verdict:
        error = outcome.error
        message = attempt.message
        # The client of an overdue request was told that it is too late: no attempt can change that. One whose body does
        # not fit is told so at once.
        requests = None if self._reports is None or SESSION not in message.headers else self._reports.requests
        is_last = requests is not None and (outcome.end is End.UNREADABLE or requests.overdue(message.headers))
        is_failure = True
        if error is not None and outcome.end not in (End.ABORTED, End.LEASE_LOST):
            if outcome.end is not End.CANCELLED or outcome.then not in CANCELLATIONS:
                await self._tell_error(error, attempt)
            is_failure = self._is_failure(error)
        if isinstance(error, ProcessDied) and not isinstance(error, ProcessNotReady):
            outcome.crashes = await self._crashes(attempt)
        verdict = judge(
            message,
            outcome,
            result_ttl=self._result_ttl,
            is_failure=is_failure,
            is_last=is_last or (not is_failure and await self._is_deferred_out(attempt)),
            max_crashes=self._config.max_crashes,
        )
        log_ending(message, message.retried + 1, outcome, verdict, quiet=self._config.on_error is not None)
        return verdict

    async def _crashes(self, attempt: Attempt) -> int:
        """How often its task has killed the process that ran it, this time included; if Redis cannot say, once."""
        try:
            return 1 + await self._settler.work.losses(attempt.queue, attempt.task_id)
        except (StoreError, ValueError):
            return 1

    async def _is_deferred_out(self, attempt: Attempt) -> bool:
        """Asked only where there is a limit; if Redis cannot say, the task is put off once more."""
        if not self._config.max_deferrals:
            return False
        try:
            return await self._settler.work.deferrals(attempt.queue, attempt.task_id) >= self._config.max_deferrals
        except (StoreError, ValueError):
            return False

    async def _tell_error(self, error: BaseException, attempt: Attempt) -> None:
        if self._config.on_error is None:
            return
        try:
            told = self._config.on_error(error, attempt.context.job)
            if told is not None:
                async with asyncio.timeout(HOOK_TIMEOUT):
                    await told
        except BaseException as exc:
            log_hook_failure("on_error", exc)

    def _is_failure(self, error: BaseException) -> bool:
        if self._config.is_failure is None:
            return True
        try:
            return bool(self._config.is_failure(error))
        except BaseException as exc:
            log_hook_failure("is_failure", exc, "; the error counts as a failure")
            return True

    def _settlement(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> Settlement | None:
        message, task_id, owner = attempt.message, attempt.task_id, attempt.owner
        if verdict.action is Action.DONE:
            return Done(task_id, owner, message.unique_key)
        now = self._clock.time()
        if verdict.action is Action.COMPLETE:
            message.completed_at, message.retention = int(now), verdict.retention
            data = encode_task(message)
            return Complete(task_id, owner, message.unique_key, data, verdict.retention, outcome.result)
        if verdict.action is Action.RETRY:
            task = self._mux.find(message.type)
            delay_of = self._mux.retry_delay(message.type, self._config.retry_delay)
            delay = retry_delay_ms(delay_of, message, outcome.error, attempt.context.job)
            failed_message(message, outcome.error_text, now, counts=verdict.is_failure)
            front = self._config.retry_front if task is None or task.retry_front is None else task.retry_front
            data, trace = encode_task(message), self._traceback(message, outcome)
            return Retry(task_id, owner, data, delay, verdict.is_failure, front, outcome.crashes > 0, trace)
        if verdict.action is Action.ARCHIVE:
            is_out = is_poison(outcome.crashes, self._config.max_crashes)
            reason = f"{killed_text(outcome.crashes)}: {outcome.error_text}" if is_out else outcome.error_text
            failed_message(message, reason, now, counts=False)
            data, trace = encode_task(message), self._traceback(message, outcome)
            return Archive(task_id, owner, message.unique_key, data, b"", verdict.is_failure, trace)
        return Requeue(task_id, owner) if verdict.action is Action.REQUEUE else None

    def _traceback(self, message: TaskMessage, outcome: Outcome) -> bytes:
        if not self._config.tracebacks or outcome.end is End.CANCELLED:
            return b""
        return write_traceback(message.last_failed_at, message.retried, traceback_of(outcome.error))

    def _quarantine(self, queue: str, owner: str, task_id: str, data: bytes, exc: UndecodableMessage) -> None:
        logger.error("task %s of queue %s is archived: %s", task_id, queue, exc)
        self._bus.emit(ItemDropped(queue, task_id, "undecodable"))
        self._settler.settle(queue, quarantine(queue, owner, task_id, data, str(exc), self._clock.time()), None)


def quarantine(queue: str, owner: str, task_id: str, data: bytes, reason: str, now: float) -> Archive:
    """Bytes that are no message, archived as a message that Go's tools can show: the bytes are its payload."""
    stand_in = TaskMessage(
        type="undecodable", payload=data, id=task_id, queue=queue, error_msg=reason, last_failed_at=int(now)
    )
    return Archive(task_id, owner, "", encode_task(stand_in), data)


def retry_delay_ms(delay_of: RetryDelayFunction, message: TaskMessage, error: BaseException | None, job: Job) -> int:
    """The user's function, guarded: one that raises or returns nonsense gets Asynq's default."""
    error = error or RuntimeError("unknown")
    try:
        delay = delay_of(message.retried, error, job)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"{seconds} seconds")
    except BaseException as exc:
        log_hook_failure("retry_delay", exc, "; using the default delay")
        seconds = asynq_default(message.retried, error, job)
    return max(0, math.ceil(round(min(seconds, LONGEST_DELAY) * 1000, 6)))


async def _not_found(job: Job) -> Any:
    raise HandlerNotFound(job.type)


def _decode(task: AnyTask, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return task.codec.decode(job)
    except PayloadError as exc:
        raise _Unreadable from exc
