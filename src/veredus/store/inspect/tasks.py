"""Tasks and the containers of their states: read them, and change tasks that are not running."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.model.durable import ALL_THERE
from veredus.model.error_groups import class_in, group_id
from veredus.model.info import TaskInfo
from veredus.model.order_keys import UNTIL_WOKEN
from veredus.model.run_info import read_waiting, waiting_since, waiting_text
from veredus.store.connection.connection import Argument
from veredus.store.connection.scripts import Script, load
from veredus.store.inspect.durable_runs import WaitingParent, ended_children
from veredus.store.inspect.inspect_part import CONTAINERS, InspectPart, Seen, TaskId, data, text
from veredus.wire import keys, lease_owner
from veredus.wire.attempts import COUNT, decode_attempt, record_field
from veredus.wire.records import task_info
from veredus.wire.times import whole


class Anchor(NamedTuple):
    anchor: bytes


LIST = load(
    "inspect/list",
    keys=CONTAINERS,
    args="queue_prefix state group newest_first start size max_bytes",
    rows=Anchor,
)
INFO = load("inspect/info", keys=CONTAINERS, args="queue_prefix", rows=TaskId)
RUN = load("inspect/run", keys=CONTAINERS, args="queue_prefix front from_start", rows=Seen)
ARCHIVE = load("inspect/archive", keys=CONTAINERS, args="queue_prefix max_size max_age", rows=Seen)
DELETE = load("inspect/delete", keys=CONTAINERS, args="queue_prefix", rows=Seen)
RESCHEDULE = load("inspect/reschedule", keys=CONTAINERS, args="queue_prefix channel due_at", rows=Seen)
EDIT = load("inspect/edit", keys=CONTAINERS, args="queue_prefix task_id old_message new_message new_lock from_start")
RUN_ALL = load("inspect/run_all", keys=CONTAINERS, args="queue_prefix state group limit from_start")
ARCHIVE_ALL = load("inspect/archive_all", keys=CONTAINERS, args="queue_prefix state group limit max_size max_age")
DELETE_ALL = load("inspect/delete_all", keys=CONTAINERS, args="queue_prefix state group limit")

CHUNK = 250
"""Tasks that one script moves. It takes a few milliseconds, however large the container is."""
MAX_BYTES = 4 * 1024 * 1024
"""Bytes of messages on one page."""
LONG_LIST = 20_000
"""Longer lists are not searched inside a script."""

DONE, NO_TASK, MISPLACED, CHANGED, ID_TAKEN = 1, 0, -3, -5, -6

Row = tuple[str, int | None]
"""A task's id, and its position in pending counted from the tail, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a container."""

    total: int
    """Ids in the whole container."""
    start: int
    """Position of the first id."""
    read: int
    """Ids on this page, including ids without a task."""
    tasks: list[TaskInfo]


class Tasks(InspectPart):
    limits: ArchiveLimits = ASYNQS
    """Limits of the archive."""

    async def info(self, queue: str, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        now, rows = await self.run_in(queue, INFO, [], [TaskId(data(task_id)) for task_id in task_ids])
        found: list[TaskInfo | None] = []
        for n, task_id in enumerate(task_ids):
            state, message, result, score, extra, held = rows[6 * n : 6 * n + 6]
            if not state or message is None:
                found.append(None)
                continue
            place = _place(text(state), now, score, extra)
            place["owner"] = lease_owner.owner_under(held, extra) or ""
            info = task_info(queue, task_id, message, text(state), result or b"", **place)
            found += await self._with_reasons(queue, [info])
        return found

    async def traceback(self, queue: str, task_id: str) -> bytes:
        """The stored bytes; model/failure.py decodes them."""
        [found] = await self.redis.command_each([("HGET", data(keys.task(queue, task_id)), "traceback")])
        return found if isinstance(found, bytes) else b""

    async def with_error_groups(self, queue: str, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
        """The tasks with the group of their last error, as the record of the attempt that raised it says. Empty for
        errors that Go or an earlier version wrote."""
        names = [data(keys.task(queue, task.id)) for task in tasks]
        counts = await self.redis.command_each([("HGET", name, COUNT) for name in names])
        fields = [record_field(count) if isinstance(count, bytes) else COUNT for count in counts]
        records = await self.redis.command_each(
            [("HGET", name, field) for name, field in zip(names, fields, strict=True)]
        )
        return [
            replace(task, error_group=_error_group(task, record)) for task, record in zip(tasks, records, strict=True)
        ]

    async def known_in(self, queues: Sequence[str], task_id: str) -> list[bool]:
        """Which of these queues have a task with this id, in one round trip per server."""
        replies = await self.redis.command_each(
            [("HEXISTS", data(keys.task(queue, task_id)), "msg") for queue in queues]
        )
        return [reply == 1 for reply in replies]

    async def page(
        self,
        queue: str,
        state: str,
        start: int,
        size: int,
        *,
        group: str = "",
        newest_first: bool = False,
        behind: Sequence[str] = (),
    ) -> Page:
        """A page of a list, from the end where tasks are taken (or where they are added, with `newest_first`), or of a
        sorted set by score. `behind`: start after the first of these ids that still exists."""
        args: list[Argument] = [state, group, int(newest_first), start, size, MAX_BYTES]
        anchors = [Anchor(data(task_id)) for task_id in behind]
        now, total, start, rows = await self.run_in(queue, LIST, args, anchors)
        tasks = []
        for at in range(0, len(rows), 5):
            task_id, score, message, result, extra = rows[at : at + 5]
            if message is not None:
                place = _place(state, now, score, extra)
                tasks.append(task_info(queue, text(task_id), message, state, result or b"", **place))
        return Page(total, start, len(rows) // 5, await self._with_reasons(queue, tasks))

    async def _with_reasons(self, queue: str, tasks: list[TaskInfo]) -> list[TaskInfo]:
        """Add what tasks wait for that have no due time, and what durable tasks wait for."""
        scheduled = [task for task in tasks if task.state == "scheduled"]
        if not scheduled:
            return tasks
        names = ("limited_by", "order_key", "waiting", "run")
        replies = await self.redis.command_each(
            [("HMGET", data(keys.task(queue, task.id)), *names) for task in scheduled]
        )
        reasons, parents, since = {}, [], {}
        for task, reply in zip(scheduled, replies, strict=True):
            limit, order_key, waiting, mark = reply if isinstance(reply, list) else (None, None, None, None)
            wait = read_waiting(text(waiting)) if waiting else None
            if wait is not None:
                reasons[task.id], since[task.id] = waiting_text(wait), waiting_since(text(waiting or b""))
                if wait.kind == "children":
                    parents.append((WaitingParent(task.id, text(mark or b""), wait.field[len(ALL_THERE) :]), wait))
            elif task.score >= UNTIL_WOKEN:
                reasons[task.id] = _reason(limit, order_key)
        if parents:
            counted = await ended_children(self.redis, queue, [one for one, _ in parents])
            for (one, wait), count in zip(parents, counted, strict=True):
                reasons[one.task_id] = waiting_text(wait, count)
        return [
            replace(task, waiting_for=reasons.get(task.id, ""), waiting_since=since.get(task.id, 0)) for task in tasks
        ]

    async def ids(self, queue: str, state: str, *, group: str = "", most: int = 500) -> list[str]:
        """Some ids of a container."""
        key = container(queue, state, group)
        command = "LRANGE" if state in ("pending", "active") else "ZRANGE"
        return [text(found) for found in await self.redis.command(command, key, 0, most - 1, key=key)]

    async def count(self, queue: str, state: str, *, group: str = "") -> int:
        key = container(queue, state, group)
        command = "LLEN" if state in ("pending", "active") else "ZCARD"
        counted: int = await self.redis.command(command, key, key=key)
        return counted

    async def place(self, queue: str, task_id: str) -> int | None:
        """The position of an id in a long pending list, counted from the tail; None if the list is short or has no such
        id. Reads page by page, because one search through a million ids would block Redis."""
        key = keys.pending(queue)
        size: int = await self.redis.command("LLEN", key, key=key)
        if size <= LONG_LIST:
            return None
        wanted, page = data(task_id), 5_000
        for start in range(0, size, page):
            found = await self.redis.command("LRANGE", key, -start - page, -start - 1, key=key)
            if wanted in found:
                return start + len(found) - 1 - int(found.index(wanted))
        return None

    # Tasks by id: one code each.

    async def run(self, queue: str, rows: Sequence[Row], *, front: bool = False, from_start: bool = False) -> list[int]:
        return await self._each(queue, RUN, [int(front), int(from_start)], rows)

    async def archive(self, queue: str, rows: Sequence[Row]) -> list[int]:
        return await self._each(queue, ARCHIVE, [self.limits.most, self.limits.seconds], rows)

    async def delete(self, queue: str, rows: Sequence[Row]) -> list[int]:
        return await self._each(queue, DELETE, [], rows)

    async def reschedule(self, queue: str, rows: Sequence[Row], due: str) -> list[int]:
        """`due`: `+250` ms from now, or absolute Unix ms."""
        return await self._each(queue, RESCHEDULE, [keys.delay_wakeup(queue), due], rows)

    async def _each(self, queue: str, script: Script, args: list[Argument], rows: Sequence[Row]) -> list[int]:
        codes: list[int] = []
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            seen = [Seen(data(task_id), "" if seen_at is None else seen_at) for task_id, seen_at in chunk]
            codes += await self.run_in(queue, script, args, seen)
        return codes

    # The first tasks of a container: returns tasks moved, ids removed from it, and old archived tasks deleted.

    async def run_all(
        self, queue: str, state: str, group: str, limit: int, *, from_start: bool = False
    ) -> tuple[int, int, int]:
        moved, left = await self.run_in(queue, RUN_ALL, [state, group, limit, int(from_start)])
        return moved, left, 0

    async def archive_all(self, queue: str, state: str, group: str, limit: int) -> tuple[int, int, int]:
        args: list[Argument] = [state, group, limit, self.limits.most, self.limits.seconds]
        moved, left, trimmed = await self.run_in(queue, ARCHIVE_ALL, args)
        return moved, left, trimmed

    async def delete_all(self, queue: str, state: str, group: str, limit: int) -> tuple[int, int, int]:
        moved, left = await self.run_in(queue, DELETE_ALL, [state, group, limit])
        return moved, left, 0

    # One message.

    async def message(self, queue: str, task_id: str) -> bytes | None:
        key = keys.task(queue, task_id)
        found: bytes | None = await self.redis.command("HGET", key, "msg", key=key)
        return found

    async def edit(
        self, queue: str, task_id: str, old: bytes, new: bytes, lock: str, *, from_start: bool = False
    ) -> int:
        code: int = await self.run_in(queue, EDIT, [task_id, old, new, lock, int(from_start)])
        return code

    async def publish_cancel(self, task_id: str) -> int:
        """Returns how many workers received it."""
        receivers: int = await self.redis.command("PUBLISH", keys.CANCEL_CHANNEL, task_id, key=keys.CANCEL_CHANNEL)
        return receivers


def container(queue: str, state: str, group: str = "") -> str:
    """The key with the ids of the tasks in this state."""
    return keys.group(queue, group) if state == "aggregating" else keys.queue_prefix(queue) + state


def _reason(limit: bytes | None, order_key: bytes | None) -> str:
    if limit:
        return f"limit {text(limit)}"
    return f"order key {text(order_key)}" if order_key else "its turn"


def _place(state: str, now_ms: int, score: Any, extra: Any) -> dict[str, Any]:
    """Fields of TaskInfo that follow from the task's position."""
    if state == "active":
        return {
            "is_orphaned": extra is None or float(extra) * 1000 <= now_ms,
            "seen_at": -1 if score is None else score,
        }
    if state == "pending":
        return {"next_ms": now_ms, "seen_at": -1 if score is None else score}
    place: dict[str, Any] = {"score": 0 if score is None else whole(score)}
    if state == "scheduled" and place["score"] >= UNTIL_WOKEN:
        return place  # no due time: it waits for its order key, a limit, an event or children
    if state in ("scheduled", "retry") and score is not None:
        exact = None if extra is None else whole(extra)
        fits = exact is not None and math.ceil(exact / 1000) == float(score)
        place["next_ms"] = exact if fits else whole(float(score) * 1000)
    return place


def _error_group(task: TaskInfo, record: object) -> str:
    attempt = decode_attempt(record) if isinstance(record, bytes) else None
    if attempt is None or abs(int(attempt.ended_at) - task.last_failed) > 1:  # a later attempt of Go failed
        return ""
    return group_id(task.type, class_in(attempt), attempt.place)
