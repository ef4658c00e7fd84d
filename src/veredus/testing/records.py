"""What a test records: everything sent, every attempt, and the checks of expectations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from veredus.client.call import Call
from veredus.client.task import Task
from veredus.errors import ConfigError
from veredus.events import TaskEnded
from veredus.model.options import NAMES, Options

Expected = Task[..., Any, Any] | Call[Any] | str
"""A task, a call with its arguments, or a type's name."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One task as it was sent."""

    id: str
    type: str
    payload: bytes | None
    options: Options
    created: bool
    """False if another task had its id or its unique lock already."""
    at: datetime

    @property
    def queue(self) -> str:
        return self.options.queue

    @property
    def arguments(self) -> Any:
        """The payload as JSON values, usually the arguments by name; the bytes themselves if they are not JSON."""
        return _read(self.payload or b"")

    def __str__(self) -> str:
        return f"{self.type} {self.arguments!r} in {self.queue}{'' if self.created else ' (not created)'}"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt."""

    id: str
    type: str
    queue: str
    payload: bytes
    attempt: int
    """1 for the first."""
    action: str
    """What followed: done, complete, retry, archive, requeue or nothing."""
    error: BaseException | None
    at: datetime

    @property
    def arguments(self) -> Any:
        return _read(self.payload)

    def __str__(self) -> str:
        error = f": {self.error!r}" if self.error is not None else ""
        return f"{self.type} {self.arguments!r} attempt {self.attempt} -> {self.action}{error}"


def pack_sent(sent: Sent) -> dict[str, Any]:
    """Plain JSON values, for another process."""
    options = {name: getattr(sent.options, name) for name in NAMES}
    return {
        "id": sent.id,
        "type": sent.type,
        "payload": None if sent.payload is None else sent.payload.hex(),
        "options": {k: {"at": v.isoformat()} if isinstance(v, datetime) else v for k, v in options.items()},
        "created": sent.created,
    }


def unpack_sent(packed: Mapping[str, Any], at: datetime) -> Sent:
    options: dict[str, Any] = {
        name: datetime.fromisoformat(value["at"]) if name in ("deadline", "at", "expires") and isinstance(value, dict)
        else value
        for name, value in packed["options"].items()
    }  # fmt: skip
    payload = None if packed["payload"] is None else bytes.fromhex(packed["payload"])
    return Sent(packed["id"], packed["type"], payload, Options(**options), packed["created"], at)


def run_of(event: TaskEnded, at: datetime) -> Run:
    message = event.message
    # A retry has counted its failure in the message already.
    attempt = message.retried + (0 if event.action == "retry" and message.last_failed_at else 1)
    return Run(message.id, message.type, message.queue, message.payload, attempt, event.action, event.error, at)


def matching(sent: Sequence[Sent], expected: Expected, options: Mapping[str, Any]) -> list[Sent]:
    """Those that are of this task (and, for a call, with this payload) and have these options."""
    for name in options:
        if name not in NAMES:
            raise ConfigError("option", name, f"one of {', '.join(NAMES)}", known=NAMES)
    wanted = Options().merged(options)
    return [
        one
        for one in sent
        if _is_of(one, expected) and all(getattr(one.options, name) == getattr(wanted, name) for name in options)
    ]


def describe(expected: Expected, options: Mapping[str, Any]) -> str:
    name = expected if isinstance(expected, str) else expected.name if isinstance(expected, Task) else expected.type
    arguments = f" {_read(expected.payload or b'')!r}" if isinstance(expected, Call) else ""
    with_options = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
    return f"{name}{arguments}{with_options}"


def _is_of(sent: Sent, expected: Expected) -> bool:
    if isinstance(expected, Call):
        return sent.type == expected.type and _same(sent.payload, expected.payload)
    return sent.type == (expected.name if isinstance(expected, Task) else expected)


def _same(one: bytes | None, other: bytes | None) -> bool:
    return (one or b"") == (other or b"") or _read(one or b"") == _read(other or b"")


def _read(payload: bytes) -> Any:
    if not payload:
        return None
    try:
        return json.loads(payload)
    except ValueError:
        return payload
