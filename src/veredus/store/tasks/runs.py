"""What durable tasks keep between their attempts: results of steps, ends of waits, outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.store.connection.batching import Coalescer
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys


class StepRow(NamedTuple):
    task_id: str
    owner: str
    field: str
    value: bytes


class WakeRow(NamedTuple):
    task_id: str
    mark: str
    field: str
    outcome: bytes


class JoinRow(NamedTuple):
    task_id: str
    mark: str
    name: str
    position: int
    outcome: bytes


class FieldRow(NamedTuple):
    field: str


class KidRow(NamedTuple):
    """The outcome of a child that is to be forgotten."""

    name: str
    position: int


OPEN = load("durable/open", keys="lease", args="queue_prefix task_id owner new_mark most")
STEP = load("durable/step", keys="lease", args="queue_prefix", rows=StepRow)
WAIT = load("durable/wait", keys="lease", args="queue_prefix task_id owner field delay_ms outcome times_out")
WAKE = load("durable/wake", keys="pending scheduled due waits", args="queue_prefix", rows=WakeRow)
JOIN = load("durable/join", keys="pending scheduled due waits", args="queue_prefix", rows=JoinRow)
RETAKE = load("durable/retake", keys="lease", args="queue_prefix task_id owner is_last", rows=(FieldRow, KidRow))
OUTCOMES = load("durable/outcomes", keys="kids", args="first last most_bytes")
LOOK = load("durable/look", keys="waits scheduled", args="queue_prefix limit")

AT_ONCE = 500
"""Fields that `open` reads in one call; more are read in pages."""
PAGE = 1000
KIDS = 1000
"""Outcomes in one hash, as in `lua/include/joining.lua`."""
MOST_BYTES = 1024 * 1024
"""Bytes of outcomes that are read in one call."""
LOOKS = 1000
"""Waiting tasks of one queue that one sweep looks at."""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run as its handler finds it."""

    now_ms: int
    mark: str
    fields: dict[str, bytes]
    order_key: str = ""
    was_archived: bool = False
    """It was archived, and is run again: it forgets the failures that it kept."""
    woke: str = ""
    """The field `waiting` of the wait that has ended before this attempt."""


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task whose wait is to be looked at."""

    queue: str
    task_id: str
    mark: str
    kind: str
    field: str


class DurableRuns:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._writers: dict[str, Coalescer[Sequence[StepRow], bool]] = {}

    async def open(self, queue: str, task_id: str, owner: str, new_mark: str) -> OpenedRun | None:
        """What the task has kept; None if this owner no longer holds it. Repeated, it changes nothing."""
        args = (keys.queue_prefix(queue), task_id, owner, new_mark, AT_ONCE)
        now_ms, mark, flat, is_more, order_key, resumed, woke = await self._redis.run(OPEN, (keys.lease(queue),), args)
        if not mark:
            return None
        if is_more:
            flat = await self._read_pages(keys.task(queue, task_id))
        fields = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
        return OpenedRun(now_ms, text(mark), fields, text(order_key), bool(resumed), text(woke))

    async def fields(self, queue: str, task_id: str) -> dict[str, bytes]:
        """What a task has kept, for those who only look."""
        flat = await self._read_pages(keys.task(queue, task_id))
        return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}

    async def _read_pages(self, key: str) -> list[bytes]:
        """It has every field that exists during the whole scan, and perhaps some that are added during it."""
        found: list[bytes] = []
        cursor: Any = 0
        while True:
            cursor, flat = await self._redis.command("HSCAN", key, cursor, "MATCH", "?:*", "COUNT", PAGE, key=key)
            found += flat
            if int(cursor) == 0:
                return found

    async def write(self, queue: str, rows: Sequence[StepRow]) -> bool:
        """Fields of one task; concurrent callers share a round trip. False if its owner no longer holds it."""
        writer = self._writers.get(queue)
        if writer is None:
            writer = self._writers[queue] = Coalescer(lambda items: self._write_many(queue, items), _size)
        return await writer.add(rows)

    async def _write_many(self, queue: str, items: Sequence[Sequence[StepRow]]) -> list[bool]:
        rows = [row for item in items for row in item]
        args = STEP.args((keys.queue_prefix(queue),), rows)
        lost = {int(position) - 1 for position in await self._redis.run(STEP, (keys.lease(queue),), args)}
        results, at = [], 0
        for item in items:
            results.append(lost.isdisjoint(range(at, at + len(item))))
            at += len(item)
        return results

    async def wait(
        self, queue: str, task_id: str, owner: str, field: str, delay_ms: int, outcome: bytes = b"", *, times_out: bool
    ) -> tuple[int, bytes]:
        """The server's time, and the end or the outcome of a wait, as stored first; empty if this owner no longer holds
        the task."""
        args = (keys.queue_prefix(queue), task_id, owner, field, delay_ms, outcome, int(times_out))
        now_ms, value = await self._redis.run(WAIT, (keys.lease(queue),), args)
        return now_ms, value

    async def wake(self, queue: str, rows: Sequence[WakeRow]) -> int:
        """Store outcomes; tasks that wait for them become pending. Returns how many."""
        names = (keys.pending(queue), keys.scheduled(queue), keys.due(queue), keys.waits(queue))
        woken: int = await self._redis.run(WAKE, names, WAKE.args((keys.queue_prefix(queue),), rows))
        return woken

    async def join(self, queue: str, rows: Sequence[JoinRow]) -> int:
        """Store outcomes of children; parents that have all become pending. Returns how many."""
        names = (keys.pending(queue), keys.scheduled(queue), keys.due(queue), keys.waits(queue))
        woken: int = await self._redis.run(JOIN, names, JOIN.args((keys.queue_prefix(queue),), rows))
        return woken

    async def ended_kids(self, queue: str, task_id: str, mark: str, name: str, count: int) -> set[int]:
        """The positions of the children that have an outcome."""
        found: set[int] = set()
        for reply in await self._redis.command_each(
            [("HKEYS", key) for key in kid_keys(queue, task_id, mark, name, count)]
        ):
            if isinstance(reply, BaseException):
                raise reply
            found.update(int(position) for position in reply if position.isdigit())
        return found

    async def outcomes(
        self, queue: str, task_id: str, mark: str, name: str, start: int, size: int
    ) -> tuple[dict[int, bytes], int]:
        """The outcomes of a fan-out's children by position, as far as they are there, from this position on; and the
        position from which to read on."""
        chunk = start // KIDS
        last = min((chunk + 1) * KIDS, size) - 1
        args = (start, last, MOST_BYTES)
        found = await self._redis.run(OUTCOMES, (keys.kids(queue, task_id, mark, name, chunk),), args)
        return {at: outcome for at, outcome in enumerate(found, start) if outcome}, start + len(found)

    async def unlink_kids(self, queue: str, task_id: str, mark: str, name: str, count: int) -> None:
        """Free the outcomes of a fan-out."""
        commands = [("UNLINK", key) for key in kid_keys(queue, task_id, mark, name, count)]
        for reply in await self._redis.command_each(commands):
            if isinstance(reply, BaseException):
                raise reply

    async def retake(self, queue: str, task_id: str, owner: str, fields: Sequence[str], kids: Sequence[KidRow]) -> bool:
        """Forget failures. False if this owner no longer holds the task."""
        rows = [FieldRow(field) for field in fields]
        for start in range(0, max(len(kids), 1), PAGE):
            is_last = start + PAGE >= len(kids)
            given = keys.queue_prefix(queue), task_id, owner, int(is_last)
            args = RETAKE.args(given, rows if is_last else (), kids[start : start + PAGE])
            if not await self._redis.run(RETAKE, (keys.lease(queue),), args):
                return False
        return True

    async def mark_and_field(self, queue: str, task_id: str, field: str) -> tuple[str, bytes]:
        """The run mark of a task and one of its fields; empty if it has none."""
        key = keys.task(queue, task_id)
        mark, value = await self._redis.command("HMGET", key, "run", field, key=key)
        return text(mark or b""), value or b""

    async def look(self, queues: Sequence[str]) -> list[list[WaitingTask] | StoreError]:
        """Of each queue, tasks whose turn it is to be looked at, in one round trip per server."""
        calls = [
            ScriptCall(LOOK, (keys.waits(queue), keys.scheduled(queue)), (keys.queue_prefix(queue), LOOKS))
            for queue in queues
        ]
        replies = await self._redis.run_each(calls)
        return [_waiting(queue, reply) for queue, reply in zip(queues, replies, strict=True)]


def is_position(field: bytes) -> bool:
    return field.isdigit() and len(field) < 9


def _size(rows: Sequence[StepRow]) -> int:
    return sum(len(row.value) for row in rows)


def _waiting(queue: str, reply: Any) -> list[WaitingTask] | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    return [WaitingTask(queue, *map(text, reply[i : i + 4])) for i in range(0, len(reply), 4)]


def kid_keys(queue: str, task_id: str, mark: str, name: str, count: int) -> list[str]:
    return [keys.kids(queue, task_id, mark, name, chunk) for chunk in range(-(-count // KIDS))]
