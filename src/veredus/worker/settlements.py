"""Makes the settlement that carries out a verdict."""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from typing import Any

from veredus.handlers.failure_log import log_hook_failure
from veredus.handlers.mux import Mux
from veredus.model.failure import traceback_of, write_traceback
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.retry import RetryDelayFunction, asynq_default
from veredus.model.settlement import Archive, Complete, Done, Park, Requeue, Retry, Settlement
from veredus.model.verdict import Action, End, Outcome, Verdict, is_poison, killed_text, write_failure
from veredus.wire.messages import encode_completed, encode_task
from veredus.worker.attempt import Attempt
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.config import WorkerConfig

LONGEST_DELAY = 100 * 365 * 86400.0
"""The longest delay of a retry, in seconds: a message of another program may claim two billion retries."""


def settlement_for(
    attempt: Attempt,
    outcome: Outcome,
    verdict: Verdict,
    config: WorkerConfig,
    mux: Mux,
    records: AttemptRecords,
    now: float,
) -> Settlement | None:
    """None if nothing is to be written, because the lease was lost."""
    message, task_id, owner = attempt.message, attempt.task_id, attempt.owner
    if verdict.action is Action.DONE:
        return Done(task_id, owner, message.unique_key)
    if verdict.action is Action.COMPLETE:
        message.completed_at, message.retention = int(now), verdict.retention
        data, record = encode_completed(attempt.data, message), records.of(attempt, outcome, now)
        return Complete(task_id, owner, message.unique_key, data, verdict.retention, outcome.result, record)
    if verdict.action is Action.RETRY:
        delay_of: RetryDelayFunction = mux.retry_delay(message.type, config.retry_delay)
        if verdict.delay is not None:
            delay_of = functools.partial(_said, verdict.delay)
        delay = retry_delay_ms(delay_of, message, outcome.error, attempt.context.job)
        record = records.of(attempt, outcome, now, is_failure=verdict.is_failure)
        text = records.stored("error", outcome.error_text, message)
        write_failure(message, text, now, counts=verdict.is_failure)
        front = mux.retry_front(message.type, config.retry_front)
        data, trace = encode_task(message), _traceback(message, outcome, config, records)
        return Retry(task_id, owner, data, delay, verdict.is_failure, front, outcome.crashes > 0, trace, record)
    if verdict.action is Action.ARCHIVE:
        is_out = is_poison(outcome.crashes, config.max_crashes)
        record = records.of(attempt, outcome, now, is_failure=verdict.is_failure)
        text = records.stored("error", outcome.error_text, message)
        write_failure(message, f"{killed_text(outcome.crashes)}: {text}" if is_out else text, now, counts=False)
        data, trace = encode_task(message), _traceback(message, outcome, config, records)
        return Archive(task_id, owner, message.unique_key, data, b"", verdict.is_failure, trace, record)
    if verdict.action is Action.PARK and attempt.context.wait is not None:
        wait = attempt.context.wait
        ends = wait.ends
        if message.deadline:  # it limits the whole run: a look at that instant archives the task
            ends = min(ends or message.deadline * 1000, message.deadline * 1000)
        return Park(task_id, owner, wait.kind, ends, wait.field)
    if verdict.action is not Action.REQUEUE:
        return None
    has_begun = math.isfinite(attempt.began_at)
    return Requeue(task_id, owner, records.of(attempt, outcome, now) if has_begun else b"")


def quarantine(
    queue: str, owner: str, task_id: str, data: bytes, reason: str, now: float, records: AttemptRecords | None = None
) -> Archive:
    """Archives bytes that are not a message as the payload of a message, so that Go's tools can show them."""
    stand_in = TaskMessage(
        type="undecodable", payload=data, id=task_id, queue=queue, error_msg=reason, last_failed_at=int(now)
    )
    record = b"" if records is None else records.unreadable(stand_in, reason, now)
    return Archive(task_id, owner, "", encode_task(stand_in), data, attempt=record)


def retry_delay_ms(delay_of: RetryDelayFunction, message: TaskMessage, error: BaseException | None, job: Job) -> int:
    """The delay that the user's function returns. If it raises or returns nonsense, Asynq's default."""
    error = error or RuntimeError("unknown")
    try:
        delay = delay_of(message.retried, error, job)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"{seconds} seconds")
    except BaseException as exc:  # a hook may raise anything
        log_hook_failure("retry_delay", exc, "; using the default delay")
        seconds = asynq_default(message.retried, error, job)
    return max(0, math.ceil(round(min(seconds, LONGEST_DELAY) * 1000, 6)))


def _said(delay: float, retried: int, error: BaseException, task: Any) -> float:
    return delay


def _traceback(message: TaskMessage, outcome: Outcome, config: WorkerConfig, records: AttemptRecords) -> bytes:
    if not config.tracebacks or outcome.end is End.CANCELLED:
        return b""
    text = records.stored("traceback", traceback_of(outcome.error), message)
    return write_traceback(message.last_failed_at, message.retried, text)
