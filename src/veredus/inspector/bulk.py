"""One verb for all tasks of a container, or for those that fit: in small portions, with progress, until stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from veredus.errors import ArchiveFull
from veredus.inspector.search import Query, Walk
from veredus.model.info import TaskInfo
from veredus.store.queues import Queues
from veredus.store.tasks import CHUNK, DONE, Row, Tasks

Progress = Callable[[int, int], None]
"""Called after each portion with what is done and what there was."""


class Stop(Protocol):
    """An asyncio.Event or threading.Event, or anything that can be asked like one."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Bulk:
    """How a verb for many ended."""

    done: int
    """Tasks that were run, archived, deleted or told to stop."""
    total: int
    """Tasks there were at the beginning."""
    dropped: int = 0
    """Old archived tasks that were deleted to make room."""
    stopped: bool = False


class Mass:
    """Runs, archives or deletes many."""

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
    ) -> Bulk:
        """`verb` is run, archive or delete. Never more than one portion at a time inside Redis."""
        groups = [group or ""]
        if state == "aggregating" and group is None:
            groups = [one.group async for page in self._queues.groups(queue) for one in page]
        sizes = [await self._tasks.count(queue, state, group=name) for name in groups]
        done = seen = dropped = 0
        stopped = False
        for name, size in zip(groups, sizes, strict=True):
            portions = (
                self._fitting(verb, queue, state, name, where) if where else self._all(verb, queue, state, name, size)
            )
            async for moved, left, trimmed in portions:
                done, seen, dropped = done + moved, seen + left, dropped + trimmed
                if progress is not None:
                    progress(min(seen, sum(sizes)), sum(sizes))
                stopped = stop is not None and stop.is_set()
                if stopped:
                    break
            if stopped:
                break
        return Bulk(done, sum(sizes), dropped, stopped and seen < sum(sizes))

    async def check_room(self, queue: str, state: str, group: str | None, where: Query | None) -> None:
        """Raises ArchiveFull when the archive cannot keep them all."""
        limit = self._tasks.limits.size
        room = max(0, limit - await self._tasks.count(queue, "archived"))
        groups = [group or ""]
        if state == "aggregating" and group is None:
            groups = [one.group async for page in self._queues.groups(queue) for one in page]
        coming = 0
        for name in groups:
            if where is None:
                coming += await self._tasks.count(queue, state, group=name)
                continue
            walk = Walk(self._tasks, queue, state, name)
            while (page := await walk.next()) is not None:
                coming += sum(where.matches(task) for task in page.tasks)
        if coming > room:
            raise ArchiveFull(queue, coming, coming - room, limit)

    async def _all(
        self, verb: str, queue: str, state: str, group: str, size: int
    ) -> AsyncIterator[tuple[int, int, int]]:
        """At most as many as there were: what others add meanwhile (a retry that fails again) is not chased after."""
        first = {"run": self._tasks.run_first, "archive": self._tasks.archive_first, "delete": self._tasks.delete_first}
        seen = 0
        while seen < size:
            moved, left, trimmed = await first[verb](queue, state, group, min(CHUNK, size - seen))
            if not left:
                return
            seen += left
            yield moved, left, trimmed

    async def _fitting(
        self, verb: str, queue: str, state: str, group: str, where: Query
    ) -> AsyncIterator[tuple[int, int, int]]:
        each: dict[str, Callable[[str, Sequence[Row]], Awaitable[list[int]]]] = {
            "run": self._tasks.run,
            "archive": self._tasks.archive,
            "delete": self._tasks.delete,
        }
        walk = Walk(self._tasks, queue, state, group)
        while (page := await walk.next(CHUNK)) is not None:
            fitting = [task for task in page.tasks if where.matches(task)]
            codes = await each[verb](queue, [_row(task) for task in fitting])
            taken = {task.id for task, code in zip(fitting, codes, strict=True) if code == DONE}
            walk.took(taken)
            yield len(taken), page.read, 0


def _row(task: TaskInfo) -> Row:
    return task.id, None if task.seen_at < 0 else task.seen_at
