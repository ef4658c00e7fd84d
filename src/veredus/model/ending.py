"""What can be known of a task from outside: how far it is, how it stands, and what came of cancelling it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from veredus.errors import ConfigError

THEN = ("archive", "delete", "retry")
"""What can become of a task that is cancelled."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running task is, in its own words."""

    share: float
    """From 0 to 1."""
    note: str
    at: datetime
    """When it was reported."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a task stands."""

    state: str
    """As on the wire (pending, active, retry, ...), or `gone`."""
    retried: int = 0
    max_retry: int = 0
    error: str = ""
    """Of the last attempt that failed."""
    progress: Progress | None = None
    cancelling: str = ""
    """What a running task that was cancelled will come to: archive, delete or retry."""
    traceback: str = ""
    """Of the last attempt that failed, at most 8 KiB."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state in ("gone", "completed", "archived")


class CancelOutcome(StrEnum):
    """What came of cancelling a task. True where it will not go on by itself."""

    CANCELLED = "cancelled"
    """It had not begun, and is archived or deleted now."""
    CANCELLING = "cancelling"
    """It runs; whoever runs it has been told, and the mark stays until somebody has ended it."""
    ALREADY_ENDED = "already ended"
    NOT_FOUND = "not found"
    NOT_RUNNING = "not running"
    """Only with then="retry": it waits to be run anyway."""

    def __bool__(self) -> bool:
        return self in (CancelOutcome.CANCELLED, CancelOutcome.CANCELLING)


def check_then(then: str) -> str:
    if then not in THEN:
        raise ConfigError("then", then, f"one of {', '.join(THEN)}", known=THEN)
    return then


def write_progress(share: float, note: str, now: float) -> bytes:
    """As it stands in the task's hash."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        raise ConfigError("share", share, "a number from 0 to 1")
    return json.dumps({"share": share, "note": str(note), "at": round(now, 3)}).encode()


def read_progress(data: bytes) -> Progress | None:
    """None for bytes that are none: what others wrote there must not disturb anybody."""
    try:
        fields = json.loads(data)
        return Progress(float(fields["share"]), str(fields["note"]), datetime.fromtimestamp(fields["at"], UTC))
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
