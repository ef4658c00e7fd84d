"""Schedules as Asynq's tools read them: SchedulerEntry, SchedulerEnqueueEvent, and options in Go's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from veredus.model.duration import format_duration
from veredus.model.options import Options
from veredus.wire.schema import message_class
from veredus.wire.times import NEVER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """One schedule, as `asynq cron ls` lists it. Instants are Unix seconds; None means never."""

    id: str
    spec: str
    task_type: str
    task_payload: bytes
    enqueue_options: tuple[str, ...] = ()
    next_at: float | None = None
    previous_at: float | None = None


@dataclass(frozen=True, slots=True)
class EnqueueEvent:
    """One tick that became a task."""

    task_id: str
    at: float


def encode_entry(record: EntryRecord) -> bytes:
    entry = message_class("SchedulerEntry")(
        id=record.id,
        spec=record.spec,
        task_type=record.task_type,
        task_payload=record.task_payload,
        enqueue_options=record.enqueue_options,
    )
    _set_time(entry.next_enqueue_time, record.next_at)
    _set_time(entry.prev_enqueue_time, record.previous_at)
    data: bytes = entry.SerializeToString(deterministic=True)
    return data


def decode_entry(data: bytes) -> EntryRecord:
    entry = message_class("SchedulerEntry")()
    entry.ParseFromString(data)
    return EntryRecord(
        id=entry.id,
        spec=entry.spec,
        task_type=entry.task_type,
        task_payload=entry.task_payload,
        enqueue_options=tuple(entry.enqueue_options),
        next_at=_get_time(entry.next_enqueue_time),
        previous_at=_get_time(entry.prev_enqueue_time),
    )


def encode_event(event: EnqueueEvent) -> bytes:
    record = message_class("SchedulerEnqueueEvent")(task_id=event.task_id)
    _set_time(record.enqueue_time, event.at)
    data: bytes = record.SerializeToString(deterministic=True)
    return data


def decode_event(data: bytes) -> EnqueueEvent:
    record = message_class("SchedulerEnqueueEvent")()
    record.ParseFromString(data)
    return EnqueueEvent(record.task_id, _get_time(record.enqueue_time) or 0.0)


def _set_time(field: Any, unix: float | None) -> None:
    seconds, fraction = divmod(NEVER_SECONDS if unix is None else unix, 1)
    field.seconds = int(seconds)
    field.nanos = int(fraction * 1e9)
    field.SetInParent()


def _get_time(field: Any) -> float | None:
    return None if field.seconds == NEVER_SECONDS else field.seconds + field.nanos / 1e9


# Options in the words of Asynq's own: readers take what stands between the brackets, and panic without any.

_DEFAULTS = Options()
_WORDS = {
    "max_retry": ("MaxRetry", lambda value: str(value)),
    "queue": ("Queue", lambda value: quoted(value)),
    "task_id": ("TaskID", lambda value: quoted(value)),
    "retention": ("Retention", format_duration),
    "timeout": ("Timeout", format_duration),
    "deadline": ("Deadline", lambda value: unix_date(value)),
    "unique_for": ("Unique", format_duration),
    "at": ("ProcessAt", lambda value: unix_date(value)),
    "delay": ("ProcessIn", format_duration),
    "group": ("Group", lambda value: quoted(value)),
}


def option_texts(options: Options) -> tuple[str, ...]:
    """What differs from the defaults. Options that Go does not have stand there too: its readers overlook them."""
    names = [field.name for field in fields(options)]
    texts = []
    for name in [*[name for name in _WORDS if name in names], *[name for name in names if name not in _WORDS]]:
        value = getattr(options, name)
        if value == getattr(_DEFAULTS, name):
            continue
        if name == "headers":
            texts += [f"Header({_json([key, value[key]])})" for key in sorted(value)]
            continue
        word, written = _WORDS.get(name, (name.title().replace("_", ""), _other))
        texts.append(f"{word}({written(value)})")
    return tuple(texts)


def _other(value: Any) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return format_duration(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return quoted(value) if isinstance(value, str) else _json(value)


def quoted(text: str) -> str:
    """Go's %q."""
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char.isprintable():
            out.append(char)
        elif ord(char) < 0x80:
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}")
    return '"' + "".join(out) + '"'


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"} | {
    "\t": "\\t",
    "\v": "\\v",
}


def unix_date(instant: datetime) -> str:
    """Go's time.UnixDate, always in UTC: `Tue Nov 14 22:13:20 UTC 2023`."""
    utc = instant.astimezone(UTC)
    day, month = _DAYS[utc.weekday()], _MONTHS[utc.month - 1]
    return f"{day} {month} {utc.day:2d} {utc:%H:%M:%S} UTC {utc.year}"


_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def _json(value: Any) -> str:
    """As Go's encoding/json writes it, safe inside HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
