"""Statistics of task types: what workers count per minute, and what is shown of it."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veredus.model.info import SECOND, instant_text

MINUTE, HOUR, DAY = 60, 3600, 86400
MINUTES_KEPT = 12 * HOUR
"""Seconds for which single minutes are kept."""
HOURS_KEPT = 30 * DAY
"""Seconds for which single hours are kept."""
_NEGATIVE = 0x8000
_INFINITE = 0x7FF0 >> 1
OTHERS = "(others)"
"""Stands for the types, or groups of errors, for which there was no more room."""

_WORD = 3 if sys.byteorder == "little" else 0
"""Which of the four 16-bit words of a float has its sign, its exponent and the first 4 bits of its fraction."""


def buckets_of(milliseconds: Sequence[float]) -> dict[int, int]:
    """Count durations in buckets: 8 for each doubling, at most 12.5 % wide. Durations below 0 are left out.

    The first bits of a float are its bucket, so that all of them are counted without a loop in Python."""
    words = array("H", array("d", milliseconds).tobytes())[_WORD::4]
    counted: dict[int, int] = {}
    for word, number in Counter(words).items():
        if word < _NEGATIVE:
            counted[word >> 1] = counted.get(word >> 1, 0) + number
    return counted


def middle_of(bucket: int) -> float:
    """The duration that stands for all of a bucket, in milliseconds."""
    if not 0 < bucket < _INFINITE:
        return 0.0
    (middle,) = struct.unpack(">d", struct.pack(">Q", ((2 * bucket + 1) << 48)))
    return float(middle)


@dataclass(slots=True)
class Durations:
    """Counted durations. Percentiles are exact to about 6 %."""

    total: float = 0.0
    """Milliseconds."""
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, other: Durations) -> None:
        self.total += other.total
        for bucket, number in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + number

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def percentile(self, share: float) -> float | None:
        """The duration that this share of all does not exceed, in seconds; None if there are none."""
        left = math.ceil(self.count * share)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return middle_of(bucket) / 1000
        return None

    def as_dict(self) -> dict[str, Any]:
        shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        shown = {name: _rounded(self.percentile(share)) for name, share in shares}
        return {
            "count": self.count,
            "mean": _rounded(self.total / self.count / 1000 if self.count else None),
            **shown,
        }


@dataclass(slots=True)
class Counted:
    """What was counted of one type in one span of time."""

    processed: int = 0
    """Attempts that ended, failed ones included."""
    failed: int = 0
    run: Durations = field(default_factory=Durations)
    wait: Durations = field(default_factory=Durations)

    def add(self, other: Counted) -> None:
        self.processed += other.processed
        self.failed += other.failed
        self.run.add(other.run)
        self.wait.add(other.wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatsInfo:
    """One task type over a window of time, in all queues that were asked for."""

    type: str
    counted: Counted
    series: Sequence[tuple[int, Counted]]
    """What was counted in each span, by the Unix second at which the span begins. Spans without any are left out."""
    span: int
    """Seconds of one span: 60 or 3600."""
    window: int
    """Seconds of the whole window."""

    def as_dict(self) -> dict[str, Any]:
        series = [{"at": instant_text(at * SECOND)} | counted_dict(counted) for at, counted in self.series]
        return self.summary() | {"series": series}

    def summary(self) -> dict[str, Any]:
        """Without percentiles for each span, which are long where there are many types."""
        shown = {"type": self.type, "span_s": self.span, "window_s": self.window} | counted_dict(self.counted)
        return shown | {
            "series": [
                {"at": instant_text(at * SECOND), "processed": counted.processed, "failed": counted.failed}
                for at, counted in self.series
            ]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputInfo:
    """One queue over a window of time."""

    queue: str
    series: Sequence[tuple[int, int, int]]
    """The Unix second at which each span begins, attempts that ended, and of these failed. Every span is there."""


def counted_dict(counted: Counted) -> dict[str, Any]:
    return {
        "processed": counted.processed,
        "failed": counted.failed,
        "run_s": counted.run.as_dict(),
        "wait_s": counted.wait.as_dict(),
    }


@dataclass(frozen=True, slots=True)
class Window:
    """The spans of time that are read: minutes for up to 12 hours, else hours."""

    start: int
    """Unix seconds at which the first span begins."""
    end: int
    span: int

    @classmethod
    def last(cls, seconds: int, now: int) -> Window:
        """The spans that end within the last seconds, the current one included."""
        span = MINUTE if seconds <= MINUTES_KEPT else HOUR
        end = now - now % span + span
        return cls(end - max(span, math.ceil(seconds / span) * span), end, span)


def by_queue(
    queues: Sequence[str], found: Iterable[tuple[str, int, str, Counted]], window: Window
) -> list[ThroughputInfo]:
    """Sum up rows of queue, start of the span, type and counts."""
    spans = {queue: {at: [0, 0] for at in range(window.start, window.end, window.span)} for queue in queues}
    for queue, at, _, counted in found:
        sums = spans[queue][at]
        sums[0] += counted.processed
        sums[1] += counted.failed
    return [
        ThroughputInfo(queue=queue, series=[(at, ended, failed) for at, (ended, failed) in series.items()])
        for queue, series in spans.items()
    ]


def by_type(found: Iterable[tuple[str, int, Counted]], window: Window) -> list[TypeStatsInfo]:
    """Sum up rows of type, start of the span and counts: the type with the most attempts first."""
    spans: dict[str, dict[int, Counted]] = {}
    for task_type, at, counted in found:
        if window.start <= at < window.end:
            spans.setdefault(task_type, {}).setdefault(at, Counted()).add(counted)
    infos = [_info(task_type, series, window) for task_type, series in spans.items()]
    return sorted(infos, key=lambda info: (-info.counted.processed, info.type))


def _info(task_type: str, series: Mapping[int, Counted], window: Window) -> TypeStatsInfo:
    total = Counted()
    for counted in series.values():
        total.add(counted)
    length = window.end - window.start
    return TypeStatsInfo(type=task_type, counted=total, series=sorted(series.items()), span=window.span, window=length)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.4g}")
