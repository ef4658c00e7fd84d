"""Enqueues tasks by hand: of any type, or that of a schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from veredus.client.call import DEFAULT_MAX_PAYLOAD, Call
from veredus.client.client import Client
from veredus.errors import ConfigError
from veredus.model.duration import parse_duration
from veredus.model.info import SECOND, SchedulerEntryInfo
from veredus.model.options import Options
from veredus.store.store import Store

if TYPE_CHECKING:
    from veredus.client.handle import Handle
    from veredus.dashboard.backend import Source
    from veredus.store.connection.redis import Redis


def _seconds(text: str) -> float:
    return parse_duration(text, "option") / SECOND


_READABLE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Queue": ("queue", json.loads),
    "MaxRetry": ("max_retry", int),
    "Timeout": ("timeout", _seconds),
    "Retention": ("retention", _seconds),
    "Unique": ("unique_for", _seconds),
}
"""Options of a schedule that can be read back from the form in which it is listed."""


class Producer:
    """Uses the connection of the dashboard, and the tasks and schedules of the app if it has one."""

    def __init__(self, redis: Redis, source: Source | str) -> None:
        self._app: Any = None if isinstance(source, str) else source
        self._client = Client(
            Store(redis, max_lengths=getattr(source, "max_lengths", {})),
            max_payload=DEFAULT_MAX_PAYLOAD,
            middlewares=getattr(source, "send_middlewares", ()),
            is_limited=getattr(source, "is_limited", lambda task_type, queue: False),
        )

    async def enqueue(self, task_type: str, payload: bytes | None, options: Mapping[str, Any]) -> Handle[Any]:
        """The payload is stored as it is. Options that are not given are those of the task, if the app declares it."""
        if not task_type.strip():
            raise ConfigError("type", task_type, "a name that is not empty")
        if hasattr(self._app, "call"):
            call: Call[Any] = self._app.call(task_type, payload or b"", **options)
        else:
            call = Call(task_type, payload, Options().merged(options))
        return await self._client.enqueue(call)

    async def run(self, entry: SchedulerEntryInfo) -> Handle[Any]:
        """Enqueue the task of a schedule now, beside its ticks."""
        schedules = getattr(self._app, "schedules", None)
        declared = schedules.entries.get(entry.id) if schedules is not None else None
        if declared is not None:
            return await self._client.enqueue(declared.call)
        if getattr(self._app, "redact", None) is not None:  # the payload that the inspector read is not the real one
            raise ConfigError("schedule", entry.id, "one that the dashboard's app declares, as payloads are redacted")
        return await self._client.enqueue(Call(entry.task_type, entry.task_payload, _options(entry)))


def _options(entry: SchedulerEntryInfo) -> Options:
    given = {}
    for text in entry.opts:
        match = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
        if match is None or match[1] not in _READABLE:
            expected = (
                "options that can be read back; run it with `veredus cron run --app`, or give this dashboard the app"
            )
            raise ConfigError("schedule", text, expected)
        name, read = _READABLE[match[1]]
        given[name] = read(match[2])
    return Options().merged(given)
