"""Limits: how many tasks run at once and how many start within a period, over all workers; declared as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import ConfigError
from veredus.model.checks import choice, whole
from veredus.model.duration import parse_duration

_RATE = re.compile(r"(\d+)\s*/\s*(\d*\.?\d*(?:ms|s|m|h|d)|second|minute|hour|day)")
_WORDS = {"second": "1s", "minute": "1m", "hour": "1h", "day": "24h"}
_MOST = 1_000_000
_LONGEST_MS = 31 * 86_400_000
RATE_FORM = 'a rate such as "100/s", "1000/m", "5/10s" or "20/h"'
PER = ("all", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `concurrency` tasks at once and at most `rate` starts per period, over all workers.

    A limit of a task counts the tasks of that type; a limit of a queue counts all of its tasks. With `per="key"` each
    limit key (or order key, if there is none) is counted separately, and tasks without a key are not limited.
    """

    concurrency: int | None = None
    rate: str | None = None
    per: str = "all"

    def __post_init__(self) -> None:
        most = self.concurrency
        if most is not None:
            whole("concurrency", most, 1, _MOST)
        if self.rate is not None:
            parse_rate(self.rate)
        if most is None and self.rate is None:
            raise ConfigError("limit", self, "concurrency, rate or both")
        choice("per", self.per, PER)

    def as_text(self) -> str:
        """The form in Redis: how many at once, how many starts, per how many milliseconds; 0 for none."""
        count, period_ms = (0, 0) if self.rate is None else parse_rate(self.rate)
        return f"{self.concurrency or 0} {count} {period_ms}"


Limits = Limit | Sequence[Limit] | None


def parse_rate(rate: Any) -> tuple[int, int]:
    """The number of starts, and the period in milliseconds."""
    match = _RATE.fullmatch(rate.strip().lower()) if isinstance(rate, str) else None
    if match is None:
        raise ConfigError("rate", rate, RATE_FORM)
    text = _WORDS.get(match[2], match[2])
    if not text[0].isdigit():
        text = f"1{text}"
    in_days = text.endswith("d")
    milliseconds = round(float(text[:-1]) * 86_400_000) if in_days else parse_duration(text, "rate") // 1_000_000
    count = int(match[1])
    if not 1 <= count <= _MOST:
        raise ConfigError("rate", rate, f"from 1 to {_MOST:,} starts")
    if not 1 <= milliseconds <= _LONGEST_MS:
        raise ConfigError("rate", rate, "a time from 1ms to 31d")
    return count, milliseconds


def rate_text(count: int, period_ms: int) -> str:
    """The reverse of `parse_rate`, for display; empty for none."""
    if not count:
        return ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        if period_ms % size == 0:
            number = period_ms // size
            return f"{count}/{number if number > 1 or unit == 'ms' else ''}{unit}"
    return f"{count}/{period_ms}ms"


def check_limits(field: str, given: Limits) -> tuple[Limit, ...]:
    """One limit, or one for all and one per key."""
    found = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(limit, Limit) for limit in found):
        raise ConfigError(field, given, "Limit(...), or a list of them")
    if len({limit.per for limit in found}) != len(found):
        raise ConfigError(field, given, "at most one limit for all and one per key")
    return found


def queue_specs(limits: Iterable[Limit]) -> dict[str, str]:
    """What a worker declares for a queue: each limit, or an empty text where there is none."""
    texts = {limit.per: limit.as_text() for limit in limits}
    return {"queue": texts.get("all", ""), "queue-key": texts.get("key", "")}


def task_specs(task_type: str, limits: Iterable[Limit]) -> dict[str, str]:
    """The same for a task type, or for a pattern that ends in *: all matching types share it."""
    texts = {limit.per: limit.as_text() for limit in limits}
    return {f"task:{task_type}": texts.get("all", ""), f"task-key:{task_type}": texts.get("key", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInfo:
    """One scope of a limit at one moment: the queue, a type, or one key with waiting tasks."""

    queue: str
    scope: str
    """As in Redis: queue, task:<type>, queue-key:<key>, task-key:<length>:<type>:<key>."""
    concurrency: int
    """0 for any number."""
    rate: str
    """Empty for none."""
    running: int
    begun: int
    """Within the last period of the rate."""
    waiting: int
    """Parked until there is room; those of a queue's own limit simply stay pending."""

    def as_dict(self) -> dict[str, Any]:
        names = "queue scope concurrency rate running begun waiting"
        return {name: getattr(self, name) for name in names.split()}
