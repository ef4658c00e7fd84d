"""What is kept of each attempt of a task: when and where it ran, how it ended and why. The last ten, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from veredus.model.failure import cut
from veredus.model.info import as_datetime, instant_text

KEPT = 10
"""Attempts of a task that are kept, the last ones."""
MOST_ERROR = 1024
"""Bytes of the error's text in the record of an attempt."""
MOST_TRACEBACK = 4 * 1024
"""Bytes of the traceback in the record of an attempt."""
MOST_LINES = 30
"""Lines that an attempt may log, the last ones."""
MOST_LINE = 200
"""Bytes of such a line."""

KILLED = "killed"
GIVEN_BACK = "given back"
UNRECORDED = "not recorded"
OUTCOMES = (
    "succeeded", "failed", "timed out", "cancelled", "unreadable", KILLED, "lease lost", GIVEN_BACK, UNRECORDED,
)  # fmt: skip
"""How an attempt can have ended. `killed`: the process of its handler died. `given back`: its worker stopped before the
handler had ended. `lease lost`: its worker died or lost its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """One attempt of a task."""

    attempt: int
    """Its number, from 1, as `current().attempt`. An attempt that did not count has the number of the next one."""
    outcome: str
    """succeeded, failed, timed out, cancelled, unreadable, killed, lease lost, given back or not recorded."""
    worker: str = ""
    """`host:pid:id` of the worker, or only the beginning of its id if the worker was lost."""
    started_at: float = 0.0
    """Unix seconds; 0 if unknown."""
    ended_at: float = 0.0
    error_class: str = ""
    error: str = ""
    traceback: str = ""
    place: str = ""
    """Where the error was raised, as `shop.tasks.charge:41`."""
    log: tuple[tuple[float, str], ...] = ()
    """The lines that `current().log` added, with their Unix seconds."""

    @property
    def started(self) -> datetime | None:
        """When its handler began, or when its worker took the task."""
        return _datetime(self.started_at)

    @property
    def ended(self) -> datetime | None:
        """When it ended, or when its end was noticed."""
        return _datetime(self.ended_at)

    @property
    def seconds(self) -> float | None:
        """How long it took; None if that is not known."""
        return max(0.0, self.ended_at - self.started_at) if self.started_at and self.ended_at else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "outcome": self.outcome,
            "worker": self.worker,
            "started": _instant(self.started_at),
            "ended": _instant(self.ended_at),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "error_class": self.error_class,
            "error": self.error,
            "traceback": self.traceback,
            "place": self.place,
            "log": [{"at": _instant(at), "text": text} for at, text in self.log],
        }


class LogLines:
    """The lines that one attempt logs: each cut to its size, the last ones kept."""

    __slots__ = ("_left_out", "_lines")

    def __init__(self) -> None:
        self._lines: list[tuple[float, str]] = []
        self._left_out = 0

    def add(self, at: float, text: str) -> None:
        self._lines.append((at, cut(text, MOST_LINE)))
        if len(self._lines) > MOST_LINES:
            del self._lines[0]
            self._left_out += 1

    def taken(self) -> tuple[tuple[float, str], ...]:
        """All lines; the first one says how many are missing before it."""
        if not self._left_out:
            return tuple(self._lines)
        note = f"... {self._left_out:,} earlier lines left out ..."
        return ((self._lines[0][0], note), *self._lines)


def with_gaps(records: Sequence[AttemptInfo], *, total: int, retried: int, ended_at: int) -> list[AttemptInfo]:
    """The attempts of a task, the first one first. Attempts that Go or an earlier version of Veredus ran have no
    record: where one is missing, the list says so. `total` is how many were recorded, `retried` what the task's message
    says, `ended_at` when it says that an attempt last ended, in Unix seconds."""
    known = {record.attempt for record in records}
    first = min(known, default=1) if total > KEPT else 1
    found = list(records)
    for number in range(max(first, retried - KEPT + 1), retried + 1):
        if number not in known:
            later = [at for at, record in enumerate(found) if record.attempt > number]
            found.insert(later[0] if later else len(found), AttemptInfo(attempt=number, outcome=UNRECORDED))
    last = records[-1].ended_at if records else 0.0
    if ended_at and ended_at > last + 1 and (found[-1].outcome if found else "") != UNRECORDED:
        found.append(AttemptInfo(attempt=retried + 1, outcome=UNRECORDED, ended_at=float(ended_at)))
    return found


def _instant(seconds: float) -> str | None:
    return instant_text(round(seconds * 1000) * 1_000_000)


def _datetime(seconds: float) -> datetime | None:
    return None if not seconds else (as_datetime(round(seconds * 1_000_000) * 1000) or datetime.fromtimestamp(0, UTC))
