"""The reading half of the inspector: queues, tasks, workers, schedules and leases as they are."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date

from veredus.errors import (
    ConfigError,
    GroupNotFound,
    QueueNotFound,
    ScheduleNotFound,
    ServerNotFound,
    TaskNotFound,
)
from veredus.inspector.doctor import Doctor
from veredus.inspector.search import Query, SearchPage, Walk, find, find_page
from veredus.model.failure import read_traceback
from veredus.model.info import (
    DailyStats,
    EnqueueEvent,
    GroupInfo,
    LeaseInfo,
    NodeInfo,
    QueueInfo,
    SchedulerEntryInfo,
    ServerInfo,
    TaskInfo,
)
from veredus.model.lifecycle import State
from veredus.store.checkups import Checkups
from veredus.store.queues import Queues
from veredus.store.redis import Redis
from veredus.store.roll import Roll
from veredus.store.tasks import Tasks

PAGE_SIZE = 30
_LEASE_PAGE = 100


class Looking:
    """Everything that changes nothing."""

    def __init__(self, redis: Redis, *, now_ms: int | None = None) -> None:
        self._redis = redis
        self._queues = Queues(redis, now_ms=now_ms)
        self._tasks = Tasks(redis, now_ms=now_ms)
        self._roll = Roll(redis, now_ms=now_ms)
        self.doctor = Doctor(self._queues, self._tasks, Checkups(redis, now_ms=now_ms), self._roll)
        """`await inspector.doctor.diagnose()`, `.repair(finding)`, `.repair_all()`."""

    # Queues.

    async def queues(self) -> list[str]:
        """The names of all queues that were ever used."""
        return await self._queues.names()

    async def queue(self, queue: str, *, memory: bool = False) -> QueueInfo:
        """The numbers of one queue. `memory=True` also estimates its bytes, from a sample."""
        await self._known(queue)
        return (await self._queues.stats([queue], memory=memory))[0]

    async def stats(self, *, memory: bool = False) -> list[QueueInfo]:
        """The numbers of all queues."""
        return await self._queues.stats(await self.queues(), memory=memory)

    async def history(self, queue: str, days: int = 10, *, until: date | None = None) -> list[DailyStats]:
        """The last days in UTC, the newest first."""
        if not 1 <= days <= 3650:
            raise ConfigError("days", days, "a number of days from 1 to 3650")
        await self._known(queue)
        return await self._queues.history(queue, days, until)

    async def groups(self, queue: str) -> list[GroupInfo]:
        """The groups that have waiting tasks, by name."""
        await self._known(queue)
        found = {one.group: one async for page in self._queues.groups(queue) for one in page if one.size}
        return [found[name] for name in sorted(found)]

    # Looking at tasks.

    async def task(self, queue: str, task_id: str) -> TaskInfo:
        """Everything about one task."""
        found = (await self._tasks.info(queue, [task_id]))[0]
        if found is None:
            raise await self._no_task(queue, task_id)
        if not found.last_error:
            return found
        stored = await self._tasks.traceback(queue, task_id)
        return replace(found, traceback=read_traceback(found.last_failed, found.retried, stored))

    async def queues_of(self, task_id: str) -> list[str]:
        """Every queue that has a task with this id; TaskNotFound if there is none."""
        queues = await self.queues()
        known = await self._tasks.known_in(queues, task_id)
        found = [queue for queue, has in zip(queues, known, strict=True) if has]
        if found:
            return found
        for queue in queues[:100]:
            error = await self._no_task(queue, task_id)
            if "did you mean" in str(error):
                raise error
        raise TaskNotFound(task_id, "", hint="")

    async def tasks(
        self, queue: str, state: State | str, *, group: str | None = None, page: int = 1, size: int = PAGE_SIZE
    ) -> list[TaskInfo]:
        """One page. Pending: the next to run first; active: the longest running first; all others by ascending time."""
        state = checked(state)
        if page < 1 or size < 1:
            raise ConfigError("page" if page < 1 else "size", min(page, size), "a number from 1 on")
        if state is State.AGGREGATING and group is None:
            raise ConfigError("group", group, "the name of a group, for aggregating tasks")
        await self._known(queue, group)
        tasks: list[TaskInfo] = []
        read, start = 0, size * (page - 1)
        while read < size:
            part = await self._tasks.page(queue, state, start + read, min(size - read, 250), group=group or "")
            if not part.read:
                break
            tasks += part.tasks
            read += part.read
        return tasks

    async def search(
        self,
        queue: str,
        state: State | str,
        *,
        type: str = "",
        payload: str | bytes = "",
        error: str = "",
        group: str | None = None,
        scan: int | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """Every task that fits all that is given, page by page: `type` may be a pattern, `payload` and `error` are
        parts. `scan` bounds how many tasks (of each group) are looked at."""
        state = checked(state)
        await self._known(queue, group)
        query = Query(type=type, payload=payload, error=error)
        groups = [group or ""]
        if state is State.AGGREGATING and group is None:
            groups = [one.group for one in await self.groups(queue)]
        for name in groups:
            async for task in find(Walk(self._tasks, queue, state, name), query, scan):
                yield task

    async def search_page(
        self,
        queue: str,
        state: State | str,
        query: Query,
        *,
        group: str | None = None,
        cursor: str = "",
        size: int = PAGE_SIZE,
        scan: int = 5_000,
    ) -> SearchPage:
        """The same in single steps, for those who come back with the cursor of the last page."""
        state = checked(state)
        if state is State.AGGREGATING and group is None:
            raise ConfigError("group", group, "the name of a group, for aggregating tasks")
        await self._known(queue, group)
        return await find_page(Walk(self._tasks, queue, state, group or "", cursor), query, size, scan)

    # Who works.

    async def servers(self) -> list[ServerInfo]:
        """Every worker process that lives, Veredus's and Go's, with what it works on."""
        return await self._roll.servers()

    async def server(self, server: str) -> ServerInfo:
        """One of them, by its id or as `host:pid`; the beginning of an id will do if only one begins so."""
        servers = await self.servers()
        fitting = [one for one in servers if server in (one.id, f"{one.host}:{one.pid}")]
        fitting = fitting or [one for one in servers if server and one.id.startswith(server)]
        if len(fitting) != 1:
            known = [name for one in servers for name in (one.id, f"{one.host}:{one.pid}")]
            raise ServerNotFound(server, known=known)
        return fitting[0]

    async def leases(self, queue: str | None = None, *, limit: int = 1_000) -> list[LeaseInfo]:
        """Who has which task and until when, of one queue or of all, the first to expire first; `limit` per queue."""
        if queue is not None:
            await self._known(queue)
        found: list[LeaseInfo] = []
        names = [queue] if queue is not None else await self.queues()
        for start in range(0, limit, _LEASE_PAGE):
            pages = await self._queues.leases(names, start, min(_LEASE_PAGE, limit - start))
            found += [lease for page in pages for lease in page]
            names = [name for name, page in zip(names, pages, strict=True) if len(page) == _LEASE_PAGE]
            if not names:
                break
        return sorted(found, key=lambda lease: (lease.until, lease.queue, lease.task_id))

    async def scheduler_entries(self) -> list[SchedulerEntryInfo]:
        """Every schedule of every scheduler that lives, Veredus's and Go's."""
        return await self._roll.scheduler_entries()

    async def scheduler_events(self, entry_id: str, *, page: int = 1, size: int = PAGE_SIZE) -> list[EnqueueEvent]:
        """When a schedule fired, the newest first."""
        if page < 1 or size < 1:
            raise ConfigError("page" if page < 1 else "size", min(page, size), "a number from 1 on")
        found = await self._roll.scheduler_events(entry_id, size * (page - 1), size)
        if not found and not await self._roll.scheduler_events(entry_id, 0, 1):
            known = [entry.id for entry in await self.scheduler_entries()]
            if entry_id not in known:
                raise ScheduleNotFound(entry_id, known=known)
        return found

    # The server.

    async def redis_info(self) -> dict[str, str]:
        """What INFO says; of a cluster, one of its nodes."""
        return await self.doctor.checkups.server_facts("")

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a cluster."""
        return self._redis.address.kind == "cluster"

    def cluster_slot(self, queue: str) -> int:
        """The slot of a cluster in which a queue lives."""
        return self._queues.slot(queue)

    async def cluster_nodes(self, queue: str) -> list[NodeInfo]:
        """The nodes that have this queue, the master first."""
        return await self._queues.nodes(queue)

    # Refusing.

    async def _known(self, queue: str, group: str | None = None) -> None:
        if not await self._queues.exists(queue):
            raise QueueNotFound(queue, known=await self.queues())
        if group and not await self._tasks.count(queue, State.AGGREGATING, group=group):
            raise GroupNotFound(group, queue, known=[one.group for one in await self.groups(queue)])

    async def _no_task(self, queue: str, task_id: str) -> TaskNotFound:
        """The error with a hint: the queue that has this id, or an id that looks like it."""
        await self._known(queue)
        others = [other for other in (await self.queues())[:100] if other != queue]
        for other, has_it in zip(others, await self._tasks.known_in(others, task_id), strict=True):
            if has_it:
                return TaskNotFound(task_id, queue, hint=f"it is in queue {other!r}")
        known: list[str] = []
        for state in State:
            if state is not State.AGGREGATING:
                known += await self._tasks.ids(queue, state)
        near = [one for one in known if task_id and one.startswith(task_id)]
        near = near or difflib.get_close_matches(task_id, known, n=1, cutoff=0.8)
        return TaskNotFound(task_id, queue, hint=f"did you mean {near[0]!r}?" if near else "")


def checked(state: State | str, allowed: tuple[State, ...] = tuple(State)) -> State:
    names = [str(one) for one in allowed]
    if str(state) not in names:
        raise ConfigError("state", str(state), f"one of {', '.join(names)}", known=names)
    return State(state)
