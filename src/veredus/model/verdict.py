"""The judge: decides what an attempt's outcome means for the task. No I/O; used by the worker and the recoverer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from veredus.errors import Retry as RetryAsked
from veredus.errors import RevokeTask, SkipRetry
from veredus.model.failure import describe
from veredus.model.message import TaskMessage

LEASE_EXPIRED = "asynq: task lease expired"
DEADLINE_EXCEEDED = "context deadline exceeded"
CANCELED = "context canceled"


class End(Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    UNREADABLE = "unreadable"
    """The payload does not fit the handler. Retried like a task without a handler, because a worker that can read it
    may be deployed soon."""
    ABORTED = "aborted"
    """The worker is stopping; the task goes back to pending."""
    LEASE_LOST = "lease lost"
    """Another worker has the task: this one writes nothing."""
    PARKED = "parked"
    """The handler waits for something: it has left its worker, and begins again when that has come."""
    CRASHED = "crashed"
    """Only in tests: its worker has died, as far as the test is concerned."""


@dataclass(slots=True)
class Outcome:
    end: End
    result: bytes | None = None
    error: BaseException | None = None
    crashes: int = 0
    """How often the task has killed the process that ran it, including now; 0 if it did not do so now."""
    then: str = ""
    """What a cancelled task should become: archive or delete; anything else is a retry."""

    @property
    def error_text(self) -> str:
        if self.end is End.TIMED_OUT:
            return DEADLINE_EXCEEDED
        if self.end is End.CANCELLED:
            return CANCELED
        if self.error is None:
            return ""
        return describe(self.error)


class Action(Enum):
    DONE = "done"
    COMPLETE = "complete"
    RETRY = "retry"
    ARCHIVE = "archive"
    REQUEUE = "requeue"
    PARK = "park"
    NOTHING = "nothing"


CANCELLATIONS = {"archive": Action.ARCHIVE, "delete": Action.DONE}
"""What a durable cancel asks for. A plain one from Asynq's tools ends in a retry."""


class Verdict(NamedTuple):
    action: Action
    retention: int = 0
    is_failure: bool = True
    delay: float | None = None
    """Seconds until the retry, if its handler said so."""


_DONE = Verdict(Action.DONE)


def judge(
    message: TaskMessage,
    outcome: Outcome,
    *,
    result_ttl: int,
    is_failure: bool,
    is_last: bool = False,
    max_crashes: int = 0,
) -> Verdict:
    """In Asynq's order: revoked, then exhausted or skipped, then retried. `is_last`: do not retry, whatever retries
    are left."""
    end = outcome.end
    if end is End.SUCCEEDED:
        if message.retention > 0 or outcome.result is not None:
            return Verdict(Action.COMPLETE, retention=message.retention if message.retention > 0 else result_ttl)
        return _DONE
    if end is End.ABORTED:
        return Verdict(Action.REQUEUE)
    if end is End.PARKED:
        return Verdict(Action.PARK, is_failure=False)
    if end is End.LEASE_LOST:
        return Verdict(Action.NOTHING)
    if end is End.CANCELLED and outcome.then in CANCELLATIONS:
        return Verdict(CANCELLATIONS[outcome.then], is_failure=False)
    if wraps(outcome.error, RevokeTask):
        return Verdict(Action.DONE)
    asked = asked_retry(outcome)
    if asked is not None and not asked.counts and not is_last:
        return Verdict(Action.RETRY, is_failure=False, delay=asked.after)
    if message.retried >= message.retry or is_last or wraps(outcome.error, SkipRetry):
        return Verdict(Action.ARCHIVE)
    if is_poison(outcome.crashes, max_crashes):
        return Verdict(Action.ARCHIVE)
    return Verdict(Action.RETRY, is_failure=is_failure, delay=None if asked is None else asked.after)


def asked_retry(outcome: Outcome) -> RetryAsked | None:
    """What a handler raised to be run again, if that is how the attempt ended."""
    return outcome.error if outcome.end is End.FAILED and isinstance(outcome.error, RetryAsked) else None


def judge_lost_lease(message: TaskMessage, cancel: str = "", *, crashes: int = 0, max_crashes: int = 0) -> Verdict:
    """A crash counts as an attempt, and the number of crashes is limited: a task that kills its worker every time is
    archived. A cancelled task ends as requested."""
    if cancel in CANCELLATIONS:
        return Verdict(CANCELLATIONS[cancel], is_failure=False)
    is_over = message.retried >= message.retry or is_poison(crashes, max_crashes)
    return Verdict(Action.ARCHIVE if is_over else Action.RETRY)


def is_poison(crashes: int, max_crashes: int) -> bool:
    """Whether a task has killed its workers as often as allowed; 0 allows any number."""
    return 0 < max_crashes <= crashes


def killed_text(crashes: int) -> str:
    """The error text of a task that is archived for that."""
    return "killed its worker " + ("once" if crashes == 1 else f"{crashes} times")


def write_failure(message: TaskMessage, error_text: str, now: float, *, counts: bool) -> TaskMessage:
    """Write this failure into the message, and return the message. `counts` adds a retry."""
    message.retried += 1 if counts else 0
    message.error_msg = error_text
    message.last_failed_at = int(now)
    return message


def wraps(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this is the error's class, or that of a cause of it or of an error in a group (Go's errors.Is)."""
    seen: set[int] = set()
    found = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, kind):
            return True
        seen.add(id(one))
        found.append(one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
    return False
