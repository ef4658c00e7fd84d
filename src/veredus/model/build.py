"""The only maker of messages: a task's type, payload and options become what travels."""

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
    """Rules as in Asynq: without timeout and deadline the timeout is 30 min; with a deadline alone there is none."""
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
    """A random UUID (version 4) as Asynq makes them; written out by hand because it is made for every task."""
    try:
        h = _random.pop()
    except IndexError:
        digits = os.urandom(16 * IDS_AT_ONCE).hex()
        _random.extend(digits[at : at + 32] for at in range(32, len(digits), 32))
        h = digits[:32]
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:]}"


IDS_AT_ONCE = 64
"""To ask the system for random bytes takes as long as everything else about an id."""
_random: list[str] = []
if hasattr(os, "register_at_fork"):  # a fork must not make the ids of its parent
    os.register_at_fork(after_in_child=_random.clear)
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def due_text(options: Options, now: float) -> str:
    """When it is due: `+ms` from now, absolute ms, or empty for at once (also for an instant that has passed)."""
    if options.delay:
        return f"+{math.ceil(round(options.delay * 1000, 6))}"
    if options.at is not None and options.at.timestamp() > now:
        return str(math.ceil(round(options.at.timestamp() * 1000, 3)))
    return ""


def expires_text(options: Options, now: float) -> str:
    """Until when it may start: `+ms` from now, absolute ms, or empty for ever."""
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
