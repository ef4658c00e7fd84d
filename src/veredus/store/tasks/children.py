"""Children of durable tasks: stored with a note of their parent; when they end, the parent is notified."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from veredus.model.durable import child_failure, succeeded
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load, with_insert
from veredus.store.inspect.inspect_part import text
from veredus.store.inspect.tasks import Tasks
from veredus.store.tasks import results
from veredus.store.tasks.intake import InsertValue, Intake, NewTask, no_record
from veredus.store.tasks.results import Results, TaskReport, heard
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task


class ChildRow(NamedTuple):
    task_id: str
    waiter: str


class ForgetRow(NamedTuple):
    task_id: str


SPAWN = load("durable/spawn", keys="MORE insert_keys", args="queue_prefix", rows=(ChildRow, InsertValue))
FORGET = load("durable/forget", keys="completed", args="queue_prefix", rows=ForgetRow)
PAGE = 500
TAKEN = 100
"""Outcomes that are taken off the list in one call: each has up to 64 KiB."""
FORGOTTEN = 100
"""Tasks that are deleted in one call: a server needs some 20 us for one that it has not used for a while."""
UNDER_WAY = (b"pending", b"active", b"scheduled", b"retry")


class ChildTask(NamedTuple):
    """A child, and the position of its parent that gets its outcome."""

    queue: str
    task_id: str
    parent_queue: str
    parent: str
    mark: str
    name: str
    position: int

    @property
    def channel(self) -> str:
        """As it stands among those who wait for the child (lua/include/notify_waiters.lua)."""
        return f"{_fan_out_of(self.parent_queue, self.parent, self.mark, self.name)}|{self.position}"


class EndedChild(NamedTuple):
    """A child that has ended; without an outcome, it has to be looked at."""

    child: ChildTask
    outcome: bytes | None


class Children:
    def __init__(self, redis: Redis, intake: Intake, results_: Results) -> None:
        self._redis = redis
        self._intake = intake
        self._results = results_
        self._tasks = Tasks(redis)

    async def spawn(self, queue: str, entries: Sequence[NewTask], children: Sequence[ChildTask]) -> list[int]:
        """Store children of one queue and kind, each with its parent. Their ids are given, so it may be repeated."""
        await self._intake.register(queue)
        insert = self._intake.insertion(queue, entries, no_record(queue))
        rows = [ChildRow(child.task_id, child.channel) for child in children]
        args = SPAWN.args((keys.queue_prefix(queue),), rows, [(value,) for value in insert.args])
        codes: list[int] = await self._redis.run(with_insert(SPAWN, insert.script), insert.keys, args)
        return codes

    async def take_ended(self, queue: str) -> list[EndedChild]:
        """Take children that have ended off the list. If this process dies now, a later look finds their outcomes."""
        key = keys.ended(queue)
        records = await self._redis.command("LPOP", key, TAKEN, key=key)
        return [_ended(queue, record) for record in records or ()]

    async def look(self, children: Sequence[ChildTask]) -> list[EndedChild]:
        """Those of them that have ended, in one round trip per server."""
        found = []
        for start in range(0, len(children), PAGE):
            page = children[start : start + PAGE]
            seen = await self._results.look_at_all([(child.queue, child.task_id) for child in page], "")
            found += [
                EndedChild(child, outcome_of(report)) for child, report in zip(page, seen, strict=True) if report.ended
            ]
        return found

    async def look_at_late(self, children: Sequence[ChildTask]) -> list[EndedChild]:
        """The same of many of which most are still under way: those are asked for their state only."""
        found = []
        for start in range(0, len(children), PAGE):
            page = children[start : start + PAGE]
            names = [keys.task(child.queue, child.task_id) for child in page]
            states = await self._redis.command_each([("HGET", name, "state") for name in names])
            found += await self.look(
                [child for child, state in zip(page, states, strict=True) if state not in UNDER_WAY]
            )
        return found

    async def run_again(self, children: Sequence[ChildTask]) -> None:
        """Run those that are archived, and have their parent notified when they end."""
        by_queue: dict[str, list[ChildTask]] = {}
        for child in children:
            by_queue.setdefault(child.queue, []).append(child)
        for queue, rows in by_queue.items():
            for start in range(0, len(rows), PAGE):
                page = rows[start : start + PAGE]
                told = [(queue, child.task_id, child.channel) for child in page]
                seen = await self._results.look_at_each(told)
                archived = [child for child, report in zip(page, seen, strict=True) if report.state == results.ARCHIVED]
                await self._tasks.run(queue, [(child.task_id, None) for child in archived])
                await self._results.look_at_each([(queue, child.task_id, child.channel) for child in archived])

    async def forget(self, queue: str, task_ids: Sequence[str]) -> None:
        """Delete those that have completed."""
        for start in range(0, len(task_ids), FORGOTTEN):
            rows = [ForgetRow(task_id) for task_id in task_ids[start : start + FORGOTTEN]]
            args = FORGET.args((keys.queue_prefix(queue),), rows)
            await self._redis.run(FORGET, (keys.completed(queue),), args)


def outcome_of(report: TaskReport) -> bytes:
    """What the end of a child means to its parent."""
    if report.state in (results.DONE, results.COMPLETED):
        return succeeded(report.result)
    if report.state == results.ARCHIVED:
        try:
            error = decode_task(report.message).error_msg
        except UndecodableMessage as exc:
            error = str(exc)
        return child_failure(error or "it was archived before it had ended")
    if report.state == results.CANCELLED:
        return child_failure("it was deleted before it had ended", "cancelled")
    if report.state == results.EXPIRED:
        return child_failure("it expired before it could begin")
    return child_failure("it is gone, and may or may not have run", "unknown")


@lru_cache(256)
def _fan_out_of(*parts: str) -> str:
    """The part of a channel that all children of a fan-out share."""
    return "^" + "|".join(quote(part, safe="") for part in parts)


@lru_cache(256)
def _parts_of(fan_out: bytes) -> list[str]:
    return [unquote(part) for part in text(fan_out[1:]).split("|")]


def _ended(queue: str, record: bytes) -> EndedChild:
    """`lua/include/notify_waiters.lua` writes it."""
    channel, rest = record.split(b" ", 1)
    fan_out, position = channel.rsplit(b"|", 1)
    parent_queue, parent, mark, name = _parts_of(fan_out)
    key, report = heard(rest)
    task_id = key.removeprefix(keys.task_prefix(queue))
    child = ChildTask(queue, task_id, parent_queue, parent, mark, name, int(position))
    return EndedChild(child, outcome_of(report) if report.whole else None)
