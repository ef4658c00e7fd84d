"""A schedule in words: `0 9 * * 1-5` is "at 09:00 on Monday to Friday"."""

from __future__ import annotations

from veredus.errors import ConfigError
from veredus.model.cron import DESCRIPTORS, Every, parse_line

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = ("", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_ANY = ("*", "?", "*/1")


def in_words(spec: str) -> str:
    """What a spec means, for people. Specs that only another program understands stay as they are."""
    try:
        line = parse_line(spec)
    except ConfigError:
        return spec
    schedule = line.schedule
    zone = f" ({line.tz})" if line.tz else ""
    if isinstance(schedule, Every):
        return f"every {_length(schedule.seconds)}"
    minute, hour, day, month, weekday = DESCRIPTORS.get(line.text, line.text).split()
    time, is_daily = _time(minute, hour)
    days = _days(day, weekday) or (" every day" if is_daily and month in _ANY else "")
    months = "" if month in _ANY else f" in {_names(month, _MONTHS)}"
    return f"{time}{days}{months}{zone}"


def _length(seconds: int) -> str:
    parts: list[str] = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(unit if count == 1 and not parts and not seconds else f"{count} {unit}{'s' * (count > 1)}")
    return " ".join(parts)


def _time(minute: str, hour: str) -> tuple[str, bool]:
    """The time of the day, and whether it is only a few times a day."""
    hours = hour.split(",")
    if minute.isdigit() and all(one.isdigit() for one in hours):
        return "at " + _listed([f"{int(one):02}:{int(minute):02}" for one in hours]), True
    is_full = minute.isdigit() and int(minute) == 0
    if is_full and (hour in _ANY or hour.startswith("*/")):
        return ("every hour" if hour in _ANY else f"every {hour[2:]} hours"), False
    minutes = _minutes(minute)
    if hour in _ANY:
        return minutes if minutes.startswith("every") else f"{minutes} of every hour", False
    first, hyphen, last = hour.partition("-")
    if is_full and hyphen and first.isdigit() and last.isdigit():
        return f"every hour from {int(first):02}:00 to {int(last):02}:00", False
    return f"{minutes}{_hours(hour)}", False


def _minutes(minute: str) -> str:
    if minute in _ANY:
        return "every minute"
    if minute.startswith("*/"):
        return f"every {minute[2:]} minutes"
    return f"at minute {int(minute)}" if minute.isdigit() else f"at minutes {_names(minute, ())}"


def _hours(hour: str) -> str:
    if hour.startswith("*/"):
        return f", every {hour[2:]} hours"
    return f" of the hour {int(hour)}" if hour.isdigit() else f" of the hours {_names(hour, ())}"


def _days(day: str, weekday: str) -> str:
    """Cron fires if one of the two fits, when both are given."""
    days = "" if day in _ANY else f"on day{'' if day.isdigit() else 's'} {_names(day, ())} of the month"
    if day.startswith("*/"):
        days = f"every {day[2:]} days of the month"
    weekdays = "" if weekday in _ANY else f"on {_names(weekday, _DAYS)}"
    found = " or ".join(filter(None, (days, weekdays)))
    return f" {found}" if found else ""


def _names(field: str, names: tuple[str, ...]) -> str:
    def name(text: str) -> str:
        known = {full[:3].lower(): full for full in names if full}
        return names[int(text)] if text.isdigit() and names else known.get(text.lower(), text)

    shown = []
    for item in field.split(","):
        first, hyphen, last = item.partition("-")
        shown.append(f"{name(first)} to {name(last)}" if hyphen and "/" not in item else name(first))
    return _listed(shown)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
