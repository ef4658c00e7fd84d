"""Reads a container page by page while workers change it, and finds tasks in it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace

from veredus.errors import ConfigError
from veredus.model.info import TaskInfo
from veredus.store.inspect.tasks import Page, Tasks

PAGE = 250
DURABLE_KINDS = ("sleep", "event", "children")
_ANCHORS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to search for. An empty field matches everything."""

    type: str = ""
    """The task's type, or a pattern such as `email:*`."""
    payload: str | bytes = ""
    """Part of the payload."""
    error: str = ""
    """Part of the last error; case is ignored."""
    error_group: str = ""
    """The group of the last error: an `id` that `inspector.errors()` gives."""

    waiting: str = ""
    """What durable tasks wait for: a pattern such as `event approved:*`, or only the kind: sleep, event, children."""

    def matches(self, task: TaskInfo) -> bool:
        if self.type and not fnmatch.fnmatchcase(task.type, self.type):
            return False
        if self.waiting and not fits_reason(task.waiting_for, self.waiting):
            return False
        if self.error_group and task.error_group != self.error_group:
            return False
        if not task.has_error(self.error):
            return False
        part = self.payload.encode() if isinstance(self.payload, str) else self.payload
        return part in task.payload


def fits_reason(reason: str, pattern: str) -> bool:
    """Whether a task that waits for this fits a pattern, which does not say until when or how many."""
    kind, _, what = reason.partition(" ")
    name = what.partition(" until ")[0].partition(", ")[0]
    return kind in DURABLE_KINDS and (pattern == kind or fnmatch.fnmatchcase(f"{kind} {name}", pattern))


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The result of one step of a search."""

    tasks: list[TaskInfo]
    cursor: str
    """Where to continue; empty at the end."""
    scanned: int
    """Ids read in this step."""


class Walk:
    """Pages of one container, at most as many ids as it had at the start. Positions shift while workers take tasks. So
    in a sorted set the next page begins after the last task that is still there, and in a list positions are counted
    from the end where tasks are added."""

    def __init__(
        self, tasks: Tasks, queue: str, state: str, group: str = "", cursor: str = "", *, error_groups: bool = False
    ) -> None:
        """`error_groups`: also read to which group of errors each task's last error belongs."""
        self._error_groups = error_groups
        self._tasks, self._queue, self._state, self._group = tasks, queue, state, group
        self._start = self._read = 0
        self._anchors: list[str] = []
        self._most: int | None = None
        self.scanned = 0
        if cursor:
            try:
                self._start, self._read, self._anchors, self._most, self.scanned = json.loads(cursor)
            except (ValueError, TypeError) as exc:
                raise ConfigError("cursor", cursor, "the cursor of the last page") from exc

    @property
    def total(self) -> int:
        """Ids in the container when the walk began."""
        return self._most or 0

    @property
    def cursor(self) -> str:
        return json.dumps([self._start, self._read, self._anchors, self._most, self.scanned])

    async def next(self, size: int = PAGE) -> Page | None:
        if self._most is not None and self.scanned >= self._most:
            return None
        # If all tasks of the last page are gone, the next ones have moved up to its position.
        start = self._start - (self._read if self._anchors else 0)
        page = await self._tasks.page(
            self._queue,
            self._state,
            start,
            size,
            group=self._group,
            newest_first=True,
            behind=self._anchors[::-1],
        )
        if self._most is None:
            self._most = page.total
        if not page.read:
            return None
        if self._error_groups:
            page = replace(page, tasks=await self._tasks.with_error_groups(self._queue, page.tasks))
        self.scanned += page.read
        self._start = page.start + page.read
        self._read = page.read
        if self._state not in ("pending", "active"):
            self._anchors = [task.id for task in page.tasks[-_ANCHORS:]]
        return page

    def forget(self, task_ids: Collection[str]) -> None:
        """The caller has removed these ids from the container."""
        self._anchors = [task_id for task_id in self._anchors if task_id not in task_ids]
        self._start -= len(task_ids)
        self._read -= len(task_ids)


async def find(walk: Walk, query: Query, scan: int | None = None) -> AsyncIterator[TaskInfo]:
    """Every matching task among the first `scan` ids, each once."""
    seen: set[str] = set()
    while scan is None or walk.scanned < scan:
        page = await walk.next(PAGE if scan is None else min(PAGE, scan - walk.scanned))
        if page is None:
            return
        for task in page.tasks:
            if task.id not in seen and query.matches(task):
                seen.add(task.id)
                yield task


async def find_page(walk: Walk, query: Query, size: int, scan: int) -> SearchPage:
    """Read until `size` tasks match or `scan` ids have been read."""
    found: list[TaskInfo] = []
    begun = walk.scanned
    while len(found) < size and walk.scanned - begun < scan:
        page = await walk.next(min(PAGE, scan - walk.scanned + begun))
        if page is None:
            return SearchPage(found, "", walk.scanned - begun)
        found += [task for task in page.tasks if query.matches(task)]
    return SearchPage(found, walk.cursor, walk.scanned - begun)
