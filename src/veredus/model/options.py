"""Enqueue options: one frozen value, checked where it is made, merged from task to call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from veredus.errors import ConfigError
from veredus.model import checks
from veredus.model.key_rules import KeyFunction, KeyRule, key_or_rule
from veredus.model.names import check_name, check_queue, is_utf8

DEFAULT_QUEUE = "default"
DEFAULT_MAX_RETRY = 25
DEFAULT_TIMEOUT = 1800
DURABILITIES = ("any", "replica", "fsync")
LONGEST = 3_000_000_000
"""The longest duration in seconds: 95 years."""
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""The latest due time is before this: a score in the year 2286 marks tasks that wait for an order key or a limit."""
_INT32 = 2**31 - 1


KEY_OPTIONS = ("unique_key", "order_key", "limit_key")
"""Options that may be made of a task's arguments."""


class ActionOptionArgs(TypedDict, total=False):
    """Options of actions: `deadline` is another thing there."""

    queue: str
    max_retry: int
    timeout: float | timedelta | None
    delay: float | timedelta | None
    at: datetime | None
    retention: float | timedelta | None
    expires: float | timedelta | datetime | None
    task_id: str | None
    headers: Mapping[str, str]
    unique_for: float | timedelta | None
    group: str | None
    replace: bool
    unique_key: str | KeyFunction | None
    order_key: str | KeyFunction | None
    order_hold: bool
    limit_key: str | KeyFunction | None
    durability: str
    wait_for_room: float | timedelta | None


class OptionArgs(ActionOptionArgs, total=False):
    """What `using(...)`, `@app.task(...)` and `app.enqueue(...)` accept."""

    deadline: datetime | None


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
    """An ended task with the same `task_id`, archived or completed, is replaced by this one."""
    unique_key: str | KeyRule | None = None
    """What the lock of a unique task is about; without one, its whole payload."""
    order_key: str | KeyRule | None = None
    """Tasks of a queue with the same order key run one at a time, in the order in which they were enqueued."""
    order_hold: bool = False
    """If archived, it holds up the tasks behind it that have the same order key."""
    limit_key: str | KeyRule | None = None
    """The key that limits per key count; without one, the order key."""
    durability: str = "any"
    """When the task counts as sent: when the master has it, when replicas confirmed it, or when it is on disk."""

    wait_for_room: float | None = None
    """How long to wait until a full queue has room for it."""
    has_rules: bool = field(default=False, repr=False)
    """Whether one of its keys depends on the arguments of the task: see `resolved`."""

    def resolved(self, named: Mapping[str, Any]) -> Options:
        """With the keys for these arguments, which have their defaults."""
        values = [getattr(self, name) for name in KEY_OPTIONS]
        made = [rule.key(named) if isinstance(rule, KeyRule) else rule for rule in values]
        known = _MERGED.get((id(self), *made))
        if known is None:
            if len(_MERGED) >= MAX_MERGED:
                _MERGED.clear()
            keys: dict[str, Any] = dict(zip(KEY_OPTIONS, made, strict=True))
            if keys["unique_key"] is None and self.unique_key is not None:
                keys["unique_for"] = None  # its function says that this call is not unique
            known = _MERGED[id(self), *made] = (self, replace(self, **keys, has_rules=False))
        return known[1]

    def merged(self, given: Mapping[str, Any]) -> Options:
        """These options, overridden by others. Headers are merged key by key; `delay` and `at` replace each other."""
        if not given:
            return self
        if not _VARYING.isdisjoint(given):
            return self._merged(given)
        values = given.values()
        key = (id(self), *given, *map(type, values), *values)
        try:
            known = _MERGED.get(key)
        except TypeError:  # headers are not hashable
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
        for name in ("order_key", "limit_key"):
            if values["group"] is not None and values[name] is not None:
                raise ConfigError(name, values[name], f"either {name} or group: a group runs as one task")
        if values["unique_key"] is not None and not values["unique_for"]:
            if "unique_for" not in given:
                raise ConfigError("unique_key", given.get("unique_key"), "unique_for too: how long the key is taken")
            values["unique_key"] = None
        values["has_rules"] = any(isinstance(values[name], KeyRule) for name in KEY_OPTIONS)
        return Options(**values)


MAX_MERGED = 1_000
_MERGED: dict[tuple[Any, ...], tuple[Options, Options]] = {}
"""Equal options become one object: a batch of calls is checked once and encoded with one template. The first of each
pair is kept because its id is part of the key."""
_VARYING = frozenset(("task_id", "at", "deadline", "expires", "unique_key", "order_key", "limit_key"))
"""The size of the cache. Options that differ from call to call gain nothing from it."""


def _count(name: str, value: Any) -> int:
    return checks.whole(name, value, 0, _INT32)


def seconds(name: str, value: Any) -> float:
    """A duration from a user, in seconds."""
    number = checks.seconds(name, value, least=0)
    if number > LONGEST:
        raise ConfigError(name, value, f"at most {LONGEST:,} seconds")
    return number


def _duration(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value)


def check_unserved(value: Any) -> str:
    """What happens to a task whose options no live worker supports."""
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
    """An instant from a user, within the range that every part can store."""
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


def _durability(name: str, value: Any) -> str:
    return checks.choice(name, value, DURABILITIES)


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
    "replace": checks.flag,
    "unique_key": key_or_rule,
    "order_key": key_or_rule,
    "order_hold": checks.flag,
    "limit_key": key_or_rule,
    "durability": _durability,
    "wait_for_room": _duration,
}
NAMES = tuple(one.name for one in fields(Options) if one.name != "has_rules")
