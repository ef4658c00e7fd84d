"""Enqueue options in the form of Go's Asynq, as its tools show them for a schedule: `Queue("low")`, `Timeout(1m30s)`.

Readers take the text between the brackets and ignore unknown words. A text without brackets makes them panic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from veredus.model.duration import format_duration
from veredus.model.options import Options


def option_texts(options: Options) -> tuple[str, ...]:
    """The options that differ from the defaults, including those that Go does not have: its readers ignore them."""
    names = [
        field.name for field in fields(options) if field.name not in ("durability", "wait_for_room", "has_rules")
    ]  # it affects sending, not the task
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


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _json(value: Any) -> str:
    """As Go's encoding/json writes it, safe in HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


_DEFAULTS = Options()
_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max_retry": ("MaxRetry", str),
    "queue": ("Queue", quoted),
    "task_id": ("TaskID", quoted),
    "retention": ("Retention", format_duration),
    "timeout": ("Timeout", format_duration),
    "deadline": ("Deadline", unix_date),
    "unique_for": ("Unique", format_duration),
    "at": ("ProcessAt", unix_date),
    "delay": ("ProcessIn", format_duration),
    "group": ("Group", quoted),
}
