"""Statistics of task types and errors: workers add what they counted, the inspector reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from veredus.errors import CommandRefused
from veredus.model.error_groups import ErrorGroupInfo
from veredus.model.type_stats import DAY, HOUR, HOURS_KEPT, MINUTE, MINUTES_KEPT, OTHERS, Counted, Window
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import raise_first_error, text
from veredus.wire import keys
from veredus.wire.stats import decode_counted, decode_error
from veredus.wire.times import count_of


class TypeRow(NamedTuple):
    """What was counted of one type in one minute."""

    minute: int
    task_type: str
    processed: int
    failed: int
    run: str
    wait: str


class ErrorRow(NamedTuple):
    """How many errors of one group there were in one minute, and the last one."""

    minute: int
    group_id: str
    amount: int
    at: int
    error: str


RECORD = load(
    "stats/record",
    keys="recorded errors",
    args="queue_prefix number memory_ms minutes_kept hours_kept most_types most_groups others",
    rows=(TypeRow, ErrorRow),
)
MEMORY_MS = 3_600_000
"""How long a worker's last number is remembered: longer than a record is repeated."""
MOST_TYPES = 200
"""Types per queue that are counted by themselves."""
MOST_GROUPS = 300
"""Groups of errors per queue that are kept."""


class Stats:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def record(
        self, queue: str, worker_id: str, number: int, types: Sequence[TypeRow], errors: Sequence[ErrorRow]
    ) -> bool:
        """Add what a worker counted; False if this number was added before. Raises StoreError."""
        args = RECORD.args(
            (keys.queue_prefix(queue), number, MEMORY_MS, MINUTES_KEPT, HOURS_KEPT, MOST_TYPES, MOST_GROUPS, OTHERS),
            types,
            errors,
        )
        return bool(await self._redis.run(RECORD, (keys.recorded(queue, worker_id), keys.errors(queue)), args))

    async def types(self, queues: Sequence[str], window: Window) -> list[tuple[str, int, Counted]]:
        """Type, start of the span in Unix seconds and what was counted, of all queues."""
        return [(name, at, counted) for _, at, name, counted in await self.counted(queues, window)]

    async def counted(self, queues: Sequence[str], window: Window) -> list[tuple[str, int, str, Counted]]:
        """Queue, start of the span in Unix seconds, type and what was counted."""
        make = keys.type_minutes if window.span == MINUTE else keys.type_hours
        spans = await self._spans(queues, window, make)
        decoded = [(queue, at, name, decode_counted(value)) for queue, at, name, value in spans]
        return [(queue, at, name, counted) for queue, at, name, counted in decoded if counted is not None]

    async def errors(self, queues: Sequence[str], window: Window) -> list[ErrorGroupInfo]:
        """The groups that had errors in the window, the one with the most first."""
        make = keys.error_minutes if window.span == MINUTE else keys.error_hours
        series: dict[str, dict[int, int]] = {}
        where: dict[str, set[str]] = {}
        for queue, at, name, value in await self._spans(queues, window, make):
            if value.isdigit():
                spans = series.setdefault(name, {})
                spans[at] = spans.get(at, 0) + count_of(value)
                where.setdefault(name, set()).add(queue)
        replies = await self._redis.command_each([("HGETALL", keys.errors(queue)) for queue in queues])
        known: dict[str, tuple[int, int, Any, str]] = {}
        for queue, reply in zip(queues, _readable(replies), strict=True):
            for name, data in _pairs(reply):
                error = decode_error(data)
                if error is None or name not in series:
                    continue
                before = known.get(name)
                first = min(error[0], before[0]) if before else error[0]
                latest = before if before and before[1] >= error[1] else (first, error[1], error[2], queue)
                known[name] = (first, *latest[1:])
        infos = [
            _group(name, series[name], sorted(where[name]), known.get(name, (0, 0, {}, "")), window.span)
            for name in series
        ]
        return sorted(infos, key=lambda info: (-info.count, -info.last, info.id))

    async def _spans(self, queues: Sequence[str], window: Window, make: Any) -> list[tuple[str, int, str, bytes]]:
        """Queue, start of the span in Unix seconds, name and value of every field in the window."""
        per_key = HOUR if window.span == MINUTE else DAY
        parts = range(window.start // per_key, (window.end - 1) // per_key + 1)
        wanted = [(queue, make(queue, part)) for queue in queues for part in parts]
        replies = await self._redis.command_each([("HGETALL", key) for _, key in wanted])
        found = []
        for (queue, _), reply in zip(wanted, _readable(replies), strict=True):
            for name, value in _pairs(reply):
                span, _, rest = name.partition(" ")
                at = count_of(span.encode()) * window.span if span.isascii() and span.isdigit() else -1
                if window.start <= at < window.end:
                    found.append((queue, at, rest, value))
        return found


def _readable(replies: list[Any]) -> list[Any]:
    """A key of a wrong type counts nothing, and hides no other. Raises any other error."""
    return raise_first_error([[] if isinstance(reply, CommandRefused) else reply for reply in replies])


def _pairs(reply: Any) -> list[tuple[str, bytes]]:
    if isinstance(reply, dict):
        return [(text(name), value) for name, value in reply.items()]
    return [(text(reply[i]), reply[i + 1]) for i in range(0, len(reply), 2)]


def _group(
    name: str, series: dict[int, int], queues: list[str], known: tuple[int, int, Any, str], span: int
) -> ErrorGroupInfo:
    first, last, error, queue = known

    def of(field: str) -> str:
        return str(error.get(field, ""))

    return ErrorGroupInfo(
        id=name,
        type=of("type"),
        error_class=of("class"),
        place=of("place"),
        error=of("error"),
        count=sum(series.values()),
        first=first or min(series),
        last=last or max(series),
        queues=tuple(queues),
        task_id=of("task"),
        queue=queue,
        series=sorted(series.items()),
        span=span,
    )
