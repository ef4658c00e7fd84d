"""Enqueue options: one frozen value, validated where it is made, merged from task to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from veredus.errors import ConfigError
from veredus.model.names import check_name, check_queue, is_utf8

DEFAULT_QUEUE = "default"
DEFAULT_MAX_RETRY = 25
DEFAULT_TIMEOUT = 1800
DURABILITIES = ("any", "replica", "fsync")
LONGEST = 3_000_000_000
"""Seconds in a duration: 95 years."""
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""No task is due then or later: a day in the year 2286 marks those that wait for their turn."""
_INT32 = 2**31 - 1


class OptionArgs(TypedDict, total=False):
    """What `using(...)`, `@app.task(...)` and `app.enqueue(...)` accept."""

    queue: str
    max_retry: int
    timeout: float | timedelta | None
    deadline: datetime | None
    delay: float | timedelta | None
    at: datetime | None
    retention: float | timedelta | None
    expires: float | timedelta | datetime | None
    task_id: str | None
    headers: Mapping[str, str]
    unique_for: float | timedelta | None
    group: str | None
    replace: bool
    order_key: str | None
    order_hold: bool
    limit_key: str | None
    durability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Durations in seconds, instants as aware datetimes; None means "not given"."""

    queue: str = DEFAULT_QUEUE
    max_retry: int = DEFAULT_MAX_RETRY
    timeout: float | None = None
    deadline: datetime | None = None
    delay: float | None = None
    at: datetime | None = None
    retention: float | None = None
    expires: float | datetime | None = None
    task_id: str | None = None
    headers: Mapping[str, str] | None = None
    unique_for: float | None = None
    group: str | None = None
    replace: bool = False
    """A task with the same `task_id` that has ended, archived or completed, makes room for this one."""
    order_key: str | None = None
    """Tasks of a queue with the same one run one at a time, in the order in which they were enqueued."""
    order_hold: bool = False
    """Archived, it holds up those behind it that have the same order key."""
    limit_key: str | None = None
    """What limits per key count it by; without one, its order key."""
    durability: str = "any"
    """When it counts as sent: once the master has it, once replicas confirmed it, or once it is on disk."""

    def merged(self, given: Mapping[str, Any]) -> Options:
        """These options with others on top; headers are merged key by key, `delay` and `at` replace each other."""
        if not given:
            return self
        if not _VARYING.isdisjoint(given):
            return self._merged(given)
        key = (id(self), *[(name, type(value), value) for name, value in given.items()])
        try:
            known = _MERGED.get(key)
        except TypeError:  # headers cannot be hashed
            return self._merged(given)
        if known is None:
            if len(_MERGED) >= MAX_MERGED:
                _MERGED.clear()
            known = _MERGED[key] = (self, self._merged(given))
        return known[1]

    def _merged(self, given: Mapping[str, Any]) -> Options:
        values = {name: getattr(self, name) for name in NAMES}
        for name, value in given.items():
            check = _CHECKS.get(name)
            if check is None:
                raise ConfigError("option", name, f"one of {', '.join(NAMES)}", known=NAMES)
            values[name] = check(name, value)
        if given.get("headers") and self.headers:
            values["headers"] = {**self.headers, **values["headers"]}
        if given.get("delay") is not None and given.get("at") is not None:
            raise ConfigError("delay", given["delay"], "either delay or at, not both")
        if given.get("delay") is not None:
            values["at"] = None
        if given.get("at") is not None:
            values["delay"] = None
        if values["group"] is not None and values["order_key"] is not None:
            raise ConfigError("order_key", values["order_key"], "either order_key or group: a group runs as one task")
        return Options(**values)


MAX_MERGED = 1_000
_MERGED: dict[tuple[Any, ...], tuple[Options, Options]] = {}
"""The same options given twice make one object: a batch of calls is checked once and encoded by one template. The first
of each pair is kept because its id is part of the key."""
_VARYING = frozenset(("task_id", "at", "deadline", "expires", "order_key", "limit_key"))
"""Options that differ from call to call: nothing is gained by keeping them."""


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _INT32:
        raise ConfigError(name, value, f"a whole number from 0 to {_INT32}")
    return value


def seconds(name: str, value: Any) -> float:
    """A duration as people give it, in seconds."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number) or number < 0:
        raise ConfigError(name, value, "seconds (a number or timedelta) of at least 0")
    if number > LONGEST:
        raise ConfigError(name, value, f"at most {LONGEST:,} seconds")
    return float(number)


def _duration(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value)


def check_unserved(value: Any) -> str:
    """What happens to a task whose options nobody alive keeps."""
    choices = ("warn", "refuse", "ignore")
    if value not in choices:
        raise ConfigError("unserved", value, "one of " + ", ".join(map(repr, choices)), known=choices)
    return str(value)


def _positive(name: str, value: Any) -> float | None:
    number = _duration(name, value)
    if number == 0:
        raise ConfigError(name, value, "more than 0 seconds (leave it out for the default)")
    return number


def _unique(name: str, value: Any) -> float | None:
    number = _duration(name, value)
    if number is not None and number < 1:
        raise ConfigError(name, value, "at least 1 second")
    return number


def instant(name: str, value: Any) -> datetime:
    """A moment as people give it, within what all parts can write down."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigError(name, value, "an aware datetime, such as datetime.now(UTC) + timedelta(hours=1)")
    if not 1 <= value.timestamp() < LATEST.timestamp():
        raise ConfigError(name, value, f"an instant from 1970 to {LATEST.year - 1}")
    return value


def _instant(name: str, value: Any) -> datetime | None:
    return None if value is None else instant(name, value)


def _expiry(name: str, value: Any) -> float | datetime | None:
    return _instant(name, value) if isinstance(value, datetime) else _positive(name, value)


def _name(name: str, value: Any) -> str | None:
    return None if value is None else check_name(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")
    return value


def _durability(name: str, value: Any) -> str:
    if value not in DURABILITIES:
        raise ConfigError(name, value, f"one of {', '.join(DURABILITIES)}", known=DURABILITIES)
    return str(value)


def _headers(name: str, value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ConfigError(name, value, "a mapping of texts to texts")
    for text in (*value, *value.values()):
        if not is_utf8(text):
            raise ConfigError(name, text, "texts that can be written as UTF-8")
    return dict(value)


_CHECKS: dict[str, Any] = {
    "queue": check_queue,
    "max_retry": _count,
    "timeout": _positive,
    "deadline": _instant,
    "delay": _duration,
    "at": _instant,
    "retention": _duration,
    "expires": _expiry,
    "task_id": _name,
    "headers": _headers,
    "unique_for": _unique,
    "group": _name,
    "replace": _flag,
    "order_key": _name,
    "order_hold": _flag,
    "limit_key": _name,
    "durability": _durability,
}
NAMES = tuple(field.name for field in fields(Options))
