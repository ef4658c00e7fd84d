"""Counts what a worker runs, per minute, queue and type; Redis gets the sums every few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from veredus.model.attempts import AttemptInfo
from veredus.model.error_groups import MOST_SHOWN, class_in, group_id
from veredus.model.failure import cut
from veredus.model.type_stats import MINUTE, Counted, Durations, buckets_of
from veredus.store.tasks.stats import ErrorRow, TypeRow
from veredus.wire.stats import encode_durations, encode_error

MOST_KEPT = 2000
"""Rows that are kept for a queue while Redis cannot be reached; beyond, the oldest minutes are dropped."""


UNKNOWN = -1.0
"""A duration that is not known."""
MOST_UNFOLDED = 4096
"""Durations that are collected before they are counted in buckets: that takes less than a millisecond."""


class _TypeCount:
    """One type in one queue and one minute. Durations are collected and counted many at once: a task costs two
    appends."""

    __slots__ = ("counted", "failed", "runs", "waits")

    def __init__(self) -> None:
        self.counted = Counted()
        self.failed = 0
        self.runs: list[float] = []
        self.waits: list[float] = []

    def fold(self) -> Counted:
        counted = self.counted
        counted.processed += len(self.runs)
        for durations, found in ((counted.run, self.runs), (counted.wait, self.waits)):
            durations.add(Durations(sum(found) + found.count(UNKNOWN), buckets_of(found)))
        counted.failed, self.runs, self.waits = self.failed, [], []
        return counted


@dataclass(slots=True)
class _ErrorCount:
    count: int = 0
    at: int = 0
    error: Mapping[str, str] = field(default_factory=dict)


class _Minute:
    """What one queue ran in one minute."""

    __slots__ = ("errors", "types")

    def __init__(self) -> None:
        self.types: dict[str, _TypeCount] = {}
        self.errors: dict[str, _ErrorCount] = {}


class TypeCounts:
    """Used on the worker's loop."""

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, int], _Minute] = {}
        self._current: dict[tuple[str, str], _TypeCount] = {}
        """By queue and type, of the current minute."""
        self._begins = self._ends = 0.0

    def note(self, queue: str, task_type: str, now: float, run_ms: float, wait_ms: float) -> _TypeCount:
        """An attempt has ended. Durations may be UNKNOWN."""
        if not self._begins <= now < self._ends:
            self._turn(now)
        count = self._current.get((queue, task_type))
        if count is None:
            count = self._count_for(queue, task_type)
        count.runs.append(run_ms)
        count.waits.append(wait_ms)
        if len(count.runs) >= MOST_UNFOLDED:
            count.fold()
        return count

    def note_failed(self, queue: str, task_type: str, now: float, run_ms: float, wait_ms: float) -> None:
        """An attempt has failed."""
        self.note(queue, task_type, now, run_ms, wait_ms).failed += 1

    def note_error(self, queue: str, task_type: str, task_id: str, attempt: AttemptInfo) -> None:
        """The error of an attempt that has failed."""
        now = attempt.ended_at
        name = class_in(attempt)
        group = group_id(task_type, name, attempt.place)
        errors = self._minutes.setdefault((queue, int(now // MINUTE)), _Minute()).errors
        error = errors.setdefault(group, _ErrorCount())
        error.count += 1
        error.at = int(now)
        text = cut(attempt.error, MOST_SHOWN)
        error.error = {"type": task_type, "class": name, "place": attempt.place, "error": text, "task": task_id}

    def take(self) -> dict[str, tuple[list[TypeRow], list[ErrorRow]]]:
        """All that was counted since the last call, by queue."""
        minutes, self._minutes, self._current = self._minutes, {}, {}
        taken: dict[str, tuple[list[TypeRow], list[ErrorRow]]] = {}
        for (queue, minute), counts in minutes.items():
            types, errors = taken.setdefault(queue, ([], []))
            for name, count in counts.types.items():
                one = count.fold()
                run, wait = encode_durations(one.run), encode_durations(one.wait)
                types.append(TypeRow(minute, name, one.processed, one.failed, run, wait))
            errors += [
                ErrorRow(minute, group, one.count, one.at, encode_error(one.error))
                for group, one in counts.errors.items()
            ]
        return taken

    def _turn(self, now: float) -> None:
        self._begins = now // MINUTE * MINUTE
        self._ends = self._begins + MINUTE
        self._current = {}

    def _count_for(self, queue: str, task_type: str) -> _TypeCount:
        minute = self._minutes.setdefault((queue, int(self._begins // MINUTE)), _Minute())
        count = self._current[queue, task_type] = minute.types.setdefault(task_type, _TypeCount())
        return count
