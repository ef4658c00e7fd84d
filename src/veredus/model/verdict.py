"""The judge: what an attempt's outcome means for the task. Pure, used by processor and recoverer alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from veredus.errors import RevokeTask, SkipRetry
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
    """The payload does not fit the handler: it never will."""
    ABORTED = "aborted"
    """The worker stops; the task is given back."""
    LEASE_LOST = "lease lost"
    """Somebody else has the task: nobody here writes anything."""


@dataclass(slots=True)
class Outcome:
    end: End
    result: bytes | None = None
    error: BaseException | None = None
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
    message: TaskMessage, outcome: Outcome, *, result_ttl: int, is_failure: bool, deferred_out: bool = False
) -> Verdict:
    """In Asynq's order: revoked, then exhausted or skipped, then retried. `deferred_out`: it was no failure, but it has
    been put off as often as allowed."""
    end = outcome.end
    if end is End.SUCCEEDED:
        if message.retention > 0 or outcome.result is not None:
            kept = max(message.retention, result_ttl if outcome.result is not None else 0)
            return Verdict(Action.COMPLETE, retention=kept)
        return _DONE
    if end is End.ABORTED:
        return Verdict(Action.REQUEUE)
    if end is End.LEASE_LOST:
        return Verdict(Action.NOTHING)
    if end is End.CANCELLED and outcome.then in CANCELLATIONS:
        return Verdict(CANCELLATIONS[outcome.then])
    if wraps(outcome.error, RevokeTask):
        return Verdict(Action.DONE)
    if end is End.UNREADABLE or message.retried >= message.retry or deferred_out or wraps(outcome.error, SkipRetry):
        return Verdict(Action.ARCHIVE)
    return Verdict(Action.RETRY, is_failure=is_failure)


def judge_lost_lease(message: TaskMessage, cancel: str = "") -> Verdict:
    """A crash counts as an attempt, so that a task that kills its worker every time ends archived. One that was to be
    cancelled ends as asked."""
    if cancel in CANCELLATIONS:
        return Verdict(CANCELLATIONS[cancel])
    return Verdict(Action.ARCHIVE if message.retried >= message.retry else Action.RETRY)


def failed_message(message: TaskMessage, error_text: str, now: float, *, counts: bool) -> TaskMessage:
    """The message with what happened written into it. `counts` adds a retry."""
    message.retried += 1 if counts else 0
    message.error_msg = error_text
    message.last_failed_at = int(now)
    return message


def describe(error: BaseException) -> str:
    """The error's own words, as a Go service would store them; its class where the words alone say nothing."""
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    if not text:
        return _WORDLESS.get(type(error), type(error).__name__)
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text


_WORDLESS: dict[type, str] = {SkipRetry: "skip retry for the task", RevokeTask: "revoke task"}


def wraps(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this is the error's class, or that of one it was raised from (Go's errors.Is)."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False
