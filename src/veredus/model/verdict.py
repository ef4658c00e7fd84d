"""The judge: what an attempt's outcome means for the task. Pure, used by processor and recoverer alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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
    """The payload does not fit the handler. Retried like a type without a handler: a worker that can read it may be
    deployed in a moment."""
    ABORTED = "aborted"
    """The worker stops; the task is given back."""
    LEASE_LOST = "lease lost"
    """Somebody else has the task: nobody here writes anything."""


@dataclass(slots=True)
class Outcome:
    end: End
    result: bytes | None = None
    error: BaseException | None = None
    crashes: int = 0
    """How often the task has killed the process that ran it, this time included; 0 if it did not do so now."""
    then: str = ""
    """What whoever cancelled it wants to become of the task: archive or delete; anything else is a retry."""

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
    NOTHING = "nothing"


CANCELLATIONS = {"archive": Action.ARCHIVE, "delete": Action.DONE}
"""What a durable cancel asks for; a plain one from Asynq's tools ends in a retry."""


class Verdict(NamedTuple):
    action: Action
    retention: int = 0
    is_failure: bool = True


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
    """In Asynq's order: revoked, then exhausted or skipped, then retried. `is_last`: it shall not be tried again,
    however many retries are left."""
    end = outcome.end
    if end is End.SUCCEEDED:
        if message.retention > 0 or outcome.result is not None:
            return Verdict(Action.COMPLETE, retention=message.retention if message.retention > 0 else result_ttl)
        return _DONE
    if end is End.ABORTED:
        return Verdict(Action.REQUEUE)
    if end is End.LEASE_LOST:
        return Verdict(Action.NOTHING)
    if end is End.CANCELLED and outcome.then in CANCELLATIONS:
        return Verdict(CANCELLATIONS[outcome.then], is_failure=False)
    if wraps(outcome.error, RevokeTask):
        return Verdict(Action.DONE)
    if message.retried >= message.retry or is_last or wraps(outcome.error, SkipRetry):
        return Verdict(Action.ARCHIVE)
    if is_poison(outcome.crashes, max_crashes):
        return Verdict(Action.ARCHIVE)
    return Verdict(Action.RETRY, is_failure=is_failure)


def judge_lost_lease(message: TaskMessage, cancel: str = "", *, crashes: int = 0, max_crashes: int = 0) -> Verdict:
    """A crash counts as an attempt, and there may be only so many crashes: a task that kills its worker every time ends
    archived. One that was to be cancelled ends as asked."""
    if cancel in CANCELLATIONS:
        return Verdict(CANCELLATIONS[cancel], is_failure=False)
    is_over = message.retried >= message.retry or is_poison(crashes, max_crashes)
    return Verdict(Action.ARCHIVE if is_over else Action.RETRY)


def is_poison(crashes: int, max_crashes: int) -> bool:
    """Whether a task has killed those that ran it as often as allowed; 0 allows any number."""
    return 0 < max_crashes <= crashes


def killed_text(crashes: int) -> str:
    """Why it is archived then."""
    return "killed its worker " + ("once" if crashes == 1 else f"{crashes} times")


def failed_message(message: TaskMessage, error_text: str, now: float, *, counts: bool) -> TaskMessage:
    """The message with what happened written into it. `counts` adds a retry."""
    message.retried += 1 if counts else 0
    message.error_msg = error_text
    message.last_failed_at = int(now)
    return message


def wraps(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this is the error's class, or that of one it was raised from (Go's errors.Is)."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False
