"""When a schedule fires: cron lines, descriptors and `@every`, with the instants that Go's robfig/cron computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from veredus.errors import ConfigError
from veredus.model.cron_search import Cron, CronField, to_datetime
from veredus.model.duration import parse_duration

DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Schedule(Protocol):
    """Fires at whole seconds."""

    def next(self, after: datetime) -> datetime | None:
        """The first instant later than `after`, in UTC; None if it never fires again."""
        ...

    def next_unix(self, after: float) -> int | None:
        """The same in Unix seconds."""
        ...

    def aligned(self, at: int, since: int) -> int:
        """An instant from which `next` can go on without visiting all ticks between `at` and `since`."""
        ...


@dataclass(frozen=True, slots=True)
class CronLine:
    """A parsed spec: the line without its time zone, and the zone's name, empty for UTC."""

    text: str
    tz: str
    schedule: Schedule

    @property
    def spec(self) -> str:
        """As robfig/cron reads it, with the zone in front."""
        return f"CRON_TZ={self.tz} {self.text}" if self.tz else self.text


def parse(spec: str, tz: str | None = None) -> Schedule:
    """`*/5 * * * *`, `@daily`, `@every 1h30m`, each with or without `CRON_TZ=Europe/Paris ` in front, or with `tz`."""
    return parse_line(spec, tz).schedule


def parse_line(spec: str, tz: str | None = None) -> CronLine:
    if not isinstance(spec, str) or not spec.strip():
        raise ConfigError("spec", spec, "a cron line of 5 fields, @daily and the like, or @every 30s")
    text, zone = _split_zone(" ".join(spec.split()), tz)
    location = load_zone(zone)
    if text.startswith(_EVERY):
        return CronLine(text, zone, _every(text))
    if text.startswith("@"):
        if text not in DESCRIPTORS:
            known = [*DESCRIPTORS, "@every 30s"]
            raise ConfigError("spec", text, f"one of {', '.join(known)}", known=known)
        return CronLine(text, zone, _cron(DESCRIPTORS[text], location))
    return CronLine(text, zone, _cron(text, location))


def _split_zone(text: str, tz: str | None) -> tuple[str, str]:
    if tz is not None and (not isinstance(tz, str) or not tz.strip()):
        raise ConfigError("tz", tz, "the name of a time zone, such as Europe/Paris")
    if not text.startswith(("TZ=", "CRON_TZ=")):
        return text, tz or ""
    prefix, _, rest = text.partition(" ")
    zone = prefix.partition("=")[2]
    if not rest:
        raise ConfigError("spec", text, "a schedule after the time zone, such as CRON_TZ=Europe/Paris 0 9 * * *")
    if tz is not None and tz != zone:
        raise ConfigError("tz", tz, f"the zone that the line names, {zone!r}, or none")
    return rest, zone


def load_zone(name: str) -> tzinfo:
    """A zone of the IANA database; empty means UTC."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError("tz", name, "an IANA time zone, such as Europe/Paris, America/New_York or UTC") from None


# @every.


def _every(text: str) -> Every:
    nanoseconds = parse_duration(text.removeprefix(_EVERY).strip(), "spec: @every")
    if nanoseconds < 1_000_000_000:
        raise ConfigError("spec: @every", text.removeprefix(_EVERY), "a duration of at least 1s")
    return Every(nanoseconds // 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed number of whole seconds after the previous tick; fractions of a second are cut off."""

    seconds: int

    def next(self, after: datetime) -> datetime | None:
        return to_datetime(self.next_unix(after.timestamp()))

    def next_unix(self, after: float) -> int | None:
        return math.floor(after) + self.seconds

    def aligned(self, at: int, since: int) -> int:
        return since - (since - at) % self.seconds


# Cron lines.


@dataclass(frozen=True, slots=True)
class _Bounds:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        words = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"{self.least}-{self.most}{words}, and of these *, lists 1,2, ranges 1-5, steps */15"


_BOUNDS = (
    _Bounds("minute", 0, 59),
    _Bounds("hour", 0, 23),
    _Bounds("day of month", 1, 31),
    _Bounds("month", 1, 12, _MONTHS),
    _Bounds("day of week", 0, 6, _DAYS),
)


def _cron(text: str, location: tzinfo) -> Cron:
    fields = text.split()
    if len(fields) != 5:
        raise ConfigError(
            "spec", text, f"exactly 5 fields (minute hour day-of-month month day-of-week), found {len(fields)}"
        )
    minute, hour, day, month, weekday = [_field(field, bounds) for field, bounds in zip(fields, _BOUNDS, strict=True)]
    return Cron(minute, hour, day, month, weekday, location)


def _field(text: str, bounds: _Bounds) -> CronField:
    values: set[int] = set()
    restricted = True
    for item in text.split(","):
        if item:  # robfig/cron ignores empty items too
            found, is_star = _range(item, bounds)
            values.update(found)
            restricted = restricted and not is_star
    if not values:
        raise ConfigError(f"spec: {bounds.name}", text, bounds.allowed)
    return CronField(frozenset(values), restricted)


def _range(item: str, bounds: _Bounds) -> tuple[range, bool]:
    """One item of a list, and whether it is a star without a step above 1."""
    span, slash, step_text = item.partition("/")
    low, hyphen, high = span.partition("-")
    is_star = span in ("*", "?")
    if is_star:
        first, last = bounds.least, bounds.most
    else:
        first = _number(low, item, bounds)
        last = _number(high, item, bounds) if hyphen else first
        if slash and not hyphen:
            last = bounds.most  # N/step means N-most/step
    if first > last:
        raise ConfigError(
            f"spec: {bounds.name}", item, f"a range whose beginning ({first}) is not beyond its end ({last})"
        )
    step = 1
    if slash:
        if not (step_text.isascii() and step_text.isdigit()) or int(step_text) == 0:
            raise ConfigError(f"spec: {bounds.name}", item, "a step that is a whole number of at least 1")
        step = int(step_text)
    return range(first, last + 1, step), is_star and step == 1


def _number(text: str, item: str, bounds: _Bounds) -> int:
    if text.lower() in bounds.names:
        return bounds.names.index(text.lower()) + bounds.least
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"spec: {bounds.name}", item, bounds.allowed)
    number = int(text)
    if not bounds.least <= number <= bounds.most:
        raise ConfigError(f"spec: {bounds.name}", item, bounds.allowed)
    return number
