"""Which names are allowed for queues, types, tasks, groups and keys. Names are checked where they are made, never
where they are read: whatever another program wrote can be read."""

from __future__ import annotations

import re
from typing import Any

from veredus.errors import ConfigError

MAX_QUEUE = 200
"""Characters in the name of a queue."""
MAX_NAME = 500
"""Characters in the type of a task, in its id, in a group, in an order key and in a limit key."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_IN_QUEUES = re.compile("[{},=]")


def check_name(field: str, value: Any, most: int = MAX_NAME) -> str:
    """Any text of up to `most` characters that is valid UTF-8, without control characters (such as line breaks) and
    without blanks at its ends."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(field, value, "a text with one or more characters")
    if not is_utf8(value):
        raise ConfigError(field, value, "a text that can be written as UTF-8")
    if len(value) > most:
        raise ConfigError(field, f"{value[:40]}...", f"at most {most} characters, not {len(value):,}")
    if _CONTROL.search(value):
        raise ConfigError(field, value, "a text without line breaks and other control characters")
    if value != value.strip():
        raise ConfigError(field, value, f"a text without blanks around it: {value.strip()!r}")
    return value


def check_queue(field: str, value: Any) -> str:
    """Like `check_name`, but shorter, and without braces, which mark the name in its keys, and without commas and
    equals signs, which separate names and weights: `critical=6,default`."""
    name = check_name(field, value, MAX_QUEUE)
    if _IN_QUEUES.search(name):
        raise ConfigError(field, value, "a name without any of { } , =")
    return name


def is_utf8(text: str) -> bool:
    """False for a text with lone surrogates: no message can contain it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
