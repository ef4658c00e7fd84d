"""Reads the runs of durable tasks for people and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from veredus.errors import DamagedRun
from veredus.model.durable import GATHER, FanOutRecord, child_id
from veredus.model.run_info import EXCERPT, ChildLink, RunInfo, child_link, run_info
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import InspectPart, data, raise_first_error, text
from veredus.store.tasks.runs import KIDS, DurableRuns, kid_keys
from veredus.wire import keys

FIRST = 20
"""Children of a fan-out that are shown with its run."""


class PositionRow(NamedTuple):
    position: int


EXCERPT_CHILDREN = load("durable/excerpt", keys="kids", args="most", rows=PositionRow)


class WaitingParent(NamedTuple):
    """A task that waits for the children of this fan-out."""

    task_id: str
    mark: str
    name: str


class DurableRunReader(InspectPart):
    async def of(self, queue: str, task_id: str) -> RunInfo | None:
        """What a task has done so far; None if it has used no durable call."""
        key = keys.task(queue, task_id)
        found, waiting = await self.redis.command("HMGET", data(key), "run", "waiting", key=key)
        if found is None:
            return None
        mark, fields = text(found), await DurableRuns(self.redis).fields(queue, task_id)
        names = [field[len(GATHER) :] for field in fields if field.startswith(GATHER)]
        counted = await ended_children(self.redis, queue, [WaitingParent(task_id, mark, name) for name in names])
        ended = {name: count[0] for name, count in zip(names, counted, strict=True) if count is not None}
        children = {}
        for name in names:
            try:
                record = FanOutRecord.unpack(fields[GATHER + name])
            except DamagedRun:
                continue  # shown as damaged
            children[name] = await self._excerpt_children(
                queue, task_id, mark, name, record, range(min(FIRST, record.size))
            )
        return run_info(mark, fields, text(waiting or b""), ended, children)

    async def children(self, queue: str, task_id: str, name: str, start: int, size: int) -> list[ChildLink] | None:
        """Children of a fan-out, in the order of its calls; None if the task has no such fan-out."""
        runs = DurableRuns(self.redis)
        mark, value = await runs.mark_and_field(queue, task_id, GATHER + name)
        if not value:
            return None
        record = FanOutRecord.unpack(value)
        positions = range(min(start, record.size), min(start + size, record.size))
        return list(await self._excerpt_children(queue, task_id, mark, name, record, positions))

    async def _excerpt_children(
        self, queue: str, task_id: str, mark: str, name: str, record: FanOutRecord, positions: Sequence[int]
    ) -> tuple[ChildLink, ...]:
        by_chunk: dict[int, list[int]] = {}
        for at in positions:
            by_chunk.setdefault(at // KIDS, []).append(at)
        calls = [
            ScriptCall(
                EXCERPT_CHILDREN,
                [keys.kids(queue, task_id, mark, name, chunk)],
                EXCERPT_CHILDREN.args((4 * EXCERPT,), list(map(PositionRow, inside))),
            )
            for chunk, inside in by_chunk.items()
        ]
        outcomes = [one for reply in raise_first_error(await self.redis.run_each(calls)) for one in reply]
        queues = record.queue_of()
        return tuple(
            child_link(queues[at], child_id(task_id, mark, name, at), outcome)
            for at, outcome in zip(positions, outcomes, strict=True)
        )


async def ended_children(redis: Redis, queue: str, parents: Sequence[WaitingParent]) -> list[tuple[int, int] | None]:
    """Of each fan-out, how many children have an outcome, and how many there are; None where it is not known."""
    records = await redis.command_each(
        [("HGET", data(keys.task(queue, one.task_id)), GATHER + one.name) for one in parents]
    )
    sizes = list(map(_size_of, records))
    names = [kid_keys(queue, *one, size) for one, size in zip(parents, sizes, strict=True)]
    lengths = iter(await redis.command_each([("HLEN", data(key)) for each in names for key in each]))
    found: list[tuple[int, int] | None] = []
    for each, size in zip(names, sizes, strict=True):
        ended = sum(length for length in [next(lengths) for _ in each] if isinstance(length, int))
        found.append((ended, size) if size else None)
    return found


def _size_of(record: object) -> int:
    """0 for a fan-out that is gone or damaged."""
    try:
        return FanOutRecord.unpack(record).size if isinstance(record, bytes) else 0
    except DamagedRun:
        return 0
