"""What a producer can learn about a task: its progress, its status, and the result of cancelling it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from veredus.errors import ConfigError

THEN = ("archive", "delete", "retry")
"""What can happen to a cancelled task."""
CHILDREN = ("cancel", "keep")
"""What can happen to its children."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a running task, as its handler reported it."""

    share: float
    """From 0 to 1."""
    note: str
    at: datetime
    """When it was reported."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a task."""

    state: str
    """As on the wire (pending, active, retry, ...), or `gone`."""
    retried: int = 0
    max_retry: int = 0
    error: str = ""
    """Of the last attempt that failed."""
    progress: Progress | None = None
    cancelling: str = ""
    """What will happen to a running task that was cancelled: archive, delete or retry."""
    traceback: str = ""
    """Of the last attempt that failed, at most 8 KiB."""

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self.state in ("gone", "completed", "archived")


class CancelOutcome(StrEnum):
    """The result of cancelling a task. True if the task will not go on."""

    CANCELLED = "cancelled"
    """It had not started, and is archived or deleted now."""
    CANCELLING = "cancelling"
    """It is running. Its worker has been notified, and the mark stays until the task has ended."""
    ALREADY_ENDED = "already ended"
    NOT_FOUND = "not found"
    NOT_RUNNING = "not running"
    """Only with then="retry": the task is waiting to run anyway."""

    def __bool__(self) -> bool:
        return self in (CancelOutcome.CANCELLED, CancelOutcome.CANCELLING)


def check_then(then: str) -> str:
    if then not in THEN:
        raise ConfigError("then", then, f"one of {', '.join(THEN)}", known=THEN)
    return then


def check_children(children: str) -> bool:
    """Whether the children of a task are cancelled with it."""
    if children not in CHILDREN:
        raise ConfigError("children", children, f"one of {', '.join(CHILDREN)}", known=CHILDREN)
    return children == "cancel"


def write_progress(share: float, note: str, now: float) -> bytes:
    """The form that is stored in the task's hash."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        raise ConfigError("share", share, "a number from 0 to 1")
    return json.dumps({"share": share, "note": str(note), "at": round(now, 3)}).encode()


def read_progress(data: bytes) -> Progress | None:
    """None for invalid data, which another program may have written."""
    try:
        fields = json.loads(data)
        return Progress(float(fields["share"]), str(fields["note"]), datetime.fromtimestamp(fields["at"], UTC))
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
