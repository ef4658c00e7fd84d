"""Runs, archives or deletes many tasks in small batches, with progress and a way to stop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from veredus.errors import ArchiveFull
from veredus.inspector.search import Query, Walk
from veredus.model.info import TaskInfo
from veredus.store.inspect.queues import Queues
from veredus.store.inspect.tasks import CHUNK, DONE, Row, Tasks

Progress = Callable[[int, int], None]
"""Called after each batch with the number of tasks handled so far and the total."""


class Stop(Protocol):
    """An asyncio.Event, a threading.Event, or anything else with `is_set()`."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The outcome of a bulk operation."""

    done: int
    """Tasks that were run, archived, deleted or cancelled."""
    total: int
    """Tasks at the start."""
    dropped: int = 0
    """Old archived tasks that were deleted because the archive was full."""
    stopped: bool = False


class BulkRunner:
    """Applies one verb to all tasks of a state, or to those that match a query."""

    def __init__(self, tasks: Tasks, queues: Queues) -> None:
        self._tasks, self._queues = tasks, queues

    async def apply(
        self,
        verb: str,
        queue: str,
        state: str,
        group: str | None,
        where: Query | None,
        progress: Progress | None,
        stop: Stop | None,
    ) -> BulkResult:
        """`verb` is run, restart (run from the start), archive or delete. Each script handles one batch, so that Redis
        is never blocked for long."""
        groups = [group or ""]
        if state == "aggregating" and group is None:
            groups = [one.group async for page in self._queues.groups(queue) for one in page]
        sizes = [await self._tasks.count(queue, state, group=name) for name in groups]
        done = seen = dropped = 0
        stopped = False
        for name, size in zip(groups, sizes, strict=True):
            batches = (
                self._matching(verb, queue, state, name, where) if where else self._all(verb, queue, state, name, size)
            )
            async for moved, left, trimmed in batches:
                done, seen, dropped = done + moved, seen + left, dropped + trimmed
                if progress is not None:
                    progress(min(seen, sum(sizes)), sum(sizes))
                stopped = stop is not None and stop.is_set()
                if stopped:
                    break
            if stopped:
                break
        return BulkResult(done, sum(sizes), dropped, stopped and seen < sum(sizes))

    async def check_room(self, queue: str, state: str, group: str | None, where: Query | None) -> None:
        """Raise ArchiveFull if the archive cannot hold all these tasks."""
        limit = self._tasks.limits.size
        free = max(0, limit - await self._tasks.count(queue, "archived"))
        groups = [group or ""]
        if state == "aggregating" and group is None:
            groups = [one.group async for page in self._queues.groups(queue) for one in page]
        coming = 0
        for name in groups:
            if where is None:
                coming += await self._tasks.count(queue, state, group=name)
                continue
            walk = Walk(self._tasks, queue, state, name, error_groups=bool(where.error_group))
            while (page := await walk.next()) is not None:
                coming += sum(where.matches(task) for task in page.tasks)
        if coming > free:
            raise ArchiveFull(queue, coming, coming - free, limit)

    async def _all(
        self, verb: str, queue: str, state: str, group: str, size: int
    ) -> AsyncIterator[tuple[int, int, int]]:
        """Handle at most as many tasks as there were at the start: tasks added later, such as a retry that failed
        again, are left alone."""
        first: dict[str, Callable[[str, str, str, int], Awaitable[tuple[int, int, int]]]] = {
            "run": self._tasks.run_all,
            "restart": functools.partial(self._tasks.run_all, from_start=True),
            "archive": self._tasks.archive_all,
            "delete": self._tasks.delete_all,
        }
        seen = 0
        while seen < size:
            moved, left, trimmed = await first[verb](queue, state, group, min(CHUNK, size - seen))
            if not left:
                return
            seen += left
            yield moved, left, trimmed

    async def _matching(
        self, verb: str, queue: str, state: str, group: str, where: Query
    ) -> AsyncIterator[tuple[int, int, int]]:
        each: dict[str, Callable[[str, Sequence[Row]], Awaitable[list[int]]]] = {
            "run": self._tasks.run,
            "restart": functools.partial(self._tasks.run, from_start=True),
            "archive": self._tasks.archive,
            "delete": self._tasks.delete,
        }
        walk = Walk(self._tasks, queue, state, group, error_groups=bool(where.error_group))
        while (page := await walk.next(CHUNK)) is not None:
            matching = [task for task in page.tasks if where.matches(task)]
            codes = await each[verb](queue, [_row(task) for task in matching])
            taken = {task.id for task, code in zip(matching, codes, strict=True) if code == DONE}
            walk.forget(taken)
            yield len(taken), page.read, 0


def _row(task: TaskInfo) -> Row:
    return task.id, None if task.seen_at < 0 else task.seen_at
