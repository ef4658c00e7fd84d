"""Single tasks and containers full of them: looking at them, and moving those that nobody runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.model.info import TaskInfo
from veredus.store.connection import Argument
from veredus.store.places import CONTAINERS, Part, data, text
from veredus.store.scripts import Script, load
from veredus.wire import holding, keys
from veredus.wire.records import task_info
from veredus.wire.times import whole

LIST = load(
    "inspect/list",
    keys=CONTAINERS,
    args="queue_prefix state group newest_first start size max_bytes count {anchor}* [now_ms]",
)
INFO = load("inspect/info", keys=CONTAINERS, args="queue_prefix count {task_id}* [now_ms]")
RUN = load("inspect/run", keys=CONTAINERS, args="queue_prefix front count {task_id seen_at}* [now_ms]")
ARCHIVE = load(
    "inspect/archive", keys=CONTAINERS, args="queue_prefix max_size max_age count {task_id seen_at}* [now_ms]"
)
DELETE = load("inspect/delete", keys=CONTAINERS, args="queue_prefix count {task_id seen_at}* [now_ms]")
RESCHEDULE = load(
    "inspect/reschedule", keys=CONTAINERS, args="queue_prefix channel due_at count {task_id seen_at}* [now_ms]"
)
EDIT = load("inspect/edit", keys=CONTAINERS, args="queue_prefix task_id old_message new_message new_lock [now_ms]")
RUN_ALL = load("inspect/run_all", keys=CONTAINERS, args="queue_prefix state group limit [now_ms]")
ARCHIVE_ALL = load(
    "inspect/archive_all", keys=CONTAINERS, args="queue_prefix state group limit max_size max_age [now_ms]"
)
DELETE_ALL = load("inspect/delete_all", keys=CONTAINERS, args="queue_prefix state group limit [now_ms]")

CHUNK = 250
"""Tasks that one script moves: some milliseconds, whatever the container has."""
MAX_BYTES = 4 * 1024 * 1024
"""Of messages on one page."""
LONG_LIST = 20_000
"""A longer list is not searched inside a script."""

DONE, NO_TASK, MISPLACED, CHANGED, ID_TAKEN = 1, 0, -3, -5, -6

Row = tuple[str, int | None]
"""A task's id, and where in pending it was seen, counted from the tail; None if unknown."""


@dataclass(frozen=True, slots=True)
class Page:
    """A stretch of a container."""

    total: int
    """Ids in the whole container."""
    start: int
    """Where this page begins."""
    read: int
    """Ids on this page, also those without a task."""
    tasks: list[TaskInfo]


class Tasks(Part):
    limits: ArchiveLimits = ASYNQS
    """Of the archive."""

    async def info(self, queue: str, task_ids: Sequence[str]) -> list[TaskInfo | None]:
        now, rows = await self.run_in(queue, INFO, [len(task_ids), *map(data, task_ids)])
        found: list[TaskInfo | None] = []
        for n, task_id in enumerate(task_ids):
            state, message, result, score, extra, held = rows[6 * n : 6 * n + 6]
            if not state or message is None:
                found.append(None)
                continue
            place = _place(text(state), now, score, extra)
            place["owner"] = holding.owner_under(held, extra) or ""
            found.append(task_info(queue, task_id, message, text(state), result or b"", **place))
        return found

    async def traceback(self, queue: str, task_id: str) -> bytes:
        """As it is stored: see model/failure.py."""
        [found] = await self.redis.command_each([("HGET", data(keys.task(queue, task_id)), "traceback")])
        return found if isinstance(found, bytes) else b""

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
        """Lists from the end from which tasks are taken, or from the other; sorted sets by ascending score, behind the
        first of these ids that is still there."""
        args: list[Argument] = [
            state,
            group,
            int(newest_first),
            start,
            size,
            MAX_BYTES,
            len(behind),
            *map(data, behind),
        ]
        now, total, start, rows = await self.run_in(queue, LIST, args)
        tasks = []
        for at in range(0, len(rows), 5):
            task_id, score, message, result, extra = rows[at : at + 5]
            if message is not None:
                place = _place(state, now, score, extra)
                tasks.append(task_info(queue, text(task_id), message, state, result or b"", **place))
        return Page(total, start, len(rows) // 5, tasks)

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
        """Where in a long pending list an id stands, counted from the tail; None for a short list, or if it is not
        there. Read page by page: one search through a million ids would hold up everybody."""
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

    # Some tasks, by id: one code each.

    async def run(self, queue: str, rows: Sequence[Row], *, front: bool = False) -> list[int]:
        return await self._each(queue, RUN, [int(front)], rows)

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
            given: list[Argument] = [*args, len(chunk)]
            for task_id, seen_at in chunk:
                given += (data(task_id), "" if seen_at is None else seen_at)
            codes += await self.run_in(queue, script, given)
        return codes

    # The first tasks of a container: how many were moved, how many ids left it, how many old ones were deleted.

    async def run_first(self, queue: str, state: str, group: str, limit: int) -> tuple[int, int, int]:
        moved, left = await self.run_in(queue, RUN_ALL, [state, group, limit])
        return moved, left, 0

    async def archive_first(self, queue: str, state: str, group: str, limit: int) -> tuple[int, int, int]:
        args: list[Argument] = [state, group, limit, self.limits.most, self.limits.seconds]
        moved, left, trimmed = await self.run_in(queue, ARCHIVE_ALL, args)
        return moved, left, trimmed

    async def delete_first(self, queue: str, state: str, group: str, limit: int) -> tuple[int, int, int]:
        moved, left = await self.run_in(queue, DELETE_ALL, [state, group, limit])
        return moved, left, 0

    # One message.

    async def message(self, queue: str, task_id: str) -> bytes | None:
        key = keys.task(queue, task_id)
        found: bytes | None = await self.redis.command("HGET", key, "msg", key=key)
        return found

    async def edit(self, queue: str, task_id: str, old: bytes, new: bytes, lock: str) -> int:
        code: int = await self.run_in(queue, EDIT, [task_id, old, new, lock])
        return code

    async def publish_cancel(self, task_id: str) -> int:
        """Returns how many workers heard it."""
        heard: int = await self.redis.command("PUBLISH", keys.CANCEL_CHANNEL, task_id, key=keys.CANCEL_CHANNEL)
        return heard


def container(queue: str, state: str, group: str = "") -> str:
    """The key that has the ids of the tasks in this state."""
    return keys.group(queue, group) if state == "aggregating" else keys.queue_prefix(queue) + state


def _place(state: str, now_ms: int, score: Any, extra: Any) -> dict[str, Any]:
    """What the place of a task says about it."""
    if state == "active":
        return {
            "is_orphaned": extra is None or float(extra) * 1000 <= now_ms,
            "seen_at": -1 if score is None else score,
        }
    if state == "pending":
        return {"next_ms": now_ms, "seen_at": -1 if score is None else score}
    place: dict[str, Any] = {"score": 0 if score is None else whole(score)}
    if state in ("scheduled", "retry") and score is not None:
        exact = None if extra is None else whole(extra)
        fits = exact is not None and math.ceil(exact / 1000) == float(score)
        place["next_ms"] = exact if fits else whole(float(score) * 1000)
    return place
