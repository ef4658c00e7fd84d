"""Builds messages from a task's type, payload and options. Nothing else builds them."""

from __future__ import annotations

import math
import os
from datetime import datetime

from veredus.errors import ConfigError
from veredus.model.message import TaskMessage
from veredus.model.names import check_name
from veredus.model.options import DEFAULT_TIMEOUT, Options

_NO_HEADERS: dict[str, str] = {}


def build(task_type: str, payload: bytes | None, options: Options) -> TaskMessage:
    """As in Asynq: without a timeout and a deadline the timeout is 30 min; with only a deadline there is no timeout."""
    check_name("task type", task_type)
    timeout = math.ceil(options.timeout) if options.timeout else 0
    deadline = math.floor(options.deadline.timestamp()) if options.deadline else 0
    if not timeout and not deadline:
        timeout = DEFAULT_TIMEOUT
    return TaskMessage(
        type=task_type,
        payload=payload or b"",
        id=options.task_id or new_id(),
        queue=options.queue,
        retry=options.max_retry,
        timeout=timeout,
        deadline=deadline,
        retention=math.ceil(options.retention) if options.retention else 0,
        group_key=options.group or "",
        headers=options.headers or _NO_HEADERS,
    )


def new_id() -> str:
    """A random UUID (version 4) as Asynq makes them."""
    try:
        return _ready.pop()
    except IndexError:
        made = new_ids(IDS_AT_ONCE)
        last = made.pop()
        _ready.extend(made)
        return last


def new_ids(count: int) -> list[str]:
    """Many at once, column by column: a fifth of the time that making each by itself takes."""
    digits = os.urandom(16 * count).hex().encode()
    lines = bytearray(_LINE * count)
    for column, digit in _COLUMNS:
        lines[column :: len(_LINE)] = digits[digit::32]
    lines[_VARIANT_COLUMN :: len(_LINE)] = digits[16::32].translate(_VARIANTS)
    return lines.decode("ascii").split()


IDS_AT_ONCE = 64
"""Reading random bytes from the system takes longer than the rest of making an id, so read many at once."""
_LINE = b"xxxxxxxx-xxxx-4xxx-vxxx-xxxxxxxxxxxx "
_VARIANT_COLUMN = _LINE.index(b"v")
_DIGITS = [digit for digit in range(32) if digit not in (12, 16)]
_COLUMNS = list(zip([column for column, char in enumerate(_LINE) if char == ord("x")], _DIGITS, strict=True))
"""Where the random digits go: all but those that say version and variant."""
_VARIANTS = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)
_ready: list[str] = []
if hasattr(os, "register_at_fork"):  # a fork must not make the ids of its parent
    os.register_at_fork(after_in_child=_ready.clear)


def due_text(options: Options, now: float) -> str:
    """When the task is due: `+ms` from now, to the microsecond, or absolute ms; empty for now, and for an instant in
    the past."""
    if options.delay:
        whole, rest = divmod(math.ceil(round(options.delay * 1_000_000, 3)), 1000)
        return f"+{whole}.{rest:03}" if rest else f"+{whole}"
    if options.at is not None and options.at.timestamp() > now:
        return str(math.ceil(round(options.at.timestamp() * 1000, 3)))
    return ""


def expires_text(options: Options, now: float) -> str:
    """Until when the task may start: `+ms` from now, absolute ms, or empty for no limit."""
    expires = options.expires
    if expires is None:
        return ""
    due = options.delay or (options.at.timestamp() - now if options.at else 0.0)
    left = expires.timestamp() - now if isinstance(expires, datetime) else expires
    if left <= due:
        raise ConfigError("expires", expires, "later than the task is due, or it would never run")
    if isinstance(expires, datetime):
        return str(math.ceil(expires.timestamp() * 1000))
    return f"+{math.ceil(expires * 1000)}"
