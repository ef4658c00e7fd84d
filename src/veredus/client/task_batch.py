"""A fan-out that is started from outside of a handler: many tasks, and one that runs when all of them have ended."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from veredus.client.call import Call
from veredus.client.handle import Handle
from veredus.errors import ConfigError
from veredus.model.options import Options
from veredus.wire.payload import encode_value

if TYPE_CHECKING:
    from veredus.client.task import Sender

T = TypeVar("T")

BATCH = "veredus:batch"
"""The type of the task that waits for them; every Veredus worker has a handler for it."""
_DEFAULTS = Options()


class TaskBatch(Generic[T]):
    """Made by `app.batch(...)`; `enqueue` sends it as one task."""

    def __init__(self, sender: Sender, calls: Iterable[Call[Any]], then: Call[T] | None, options: Options) -> None:
        self._sender = sender
        listed = list(calls)
        for call in [*listed, *([then] if then is not None else [])]:
            if not isinstance(call, Call):
                raise ConfigError("calls", call, "what task.call(...) or app.call(...) returns")
        packed = {"calls": [pack_call(call) for call in listed], "then": None if then is None else pack_call(then)}
        self._call: Call[T] = Call(BATCH, encode_value(packed), options)

    async def enqueue(self) -> Handle[T]:
        """Send it. Its result is that of `then`. Raises PayloadTooLarge if the calls together are too large."""
        return await self._sender.send(self._call)

    def enqueue_sync(self) -> Handle[T]:
        """`enqueue` for synchronous code."""
        return self._sender.send_sync(self._call)


def pack_call(call: Call[Any]) -> list[Any]:
    """A call as JSON: its type, its payload, and the options that are not the default."""
    given = {}
    for field in fields(Options):
        value = getattr(call.options, field.name)
        if value != getattr(_DEFAULTS, field.name):
            given[field.name] = ["at", value.isoformat()] if isinstance(value, datetime) else value
    payload = None if call.payload is None else base64.b64encode(call.payload).decode()
    return [call.type, payload, given]


def unpack_call(packed: list[Any]) -> Call[Any]:
    task_type, payload, given = packed
    options = {
        name: datetime.fromisoformat(value[1]) if isinstance(value, list) else value for name, value in given.items()
    }
    return Call(task_type, None if payload is None else base64.b64decode(payload), _DEFAULTS.merged(options))
