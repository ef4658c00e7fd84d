"""The reading half of the inspector: queues, tasks, workers, schedules and leases."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date

from veredus.errors import ConfigError, GroupNotFound, QueueNotFound, ScheduleNotFound, ServerNotFound, TaskNotFound
from veredus.inspector.doctor import Doctor
from veredus.inspector.redaction import Redaction
from veredus.inspector.search import Query, SearchPage, Walk, find, find_page
from veredus.model.attempts import AttemptInfo
from veredus.model.failure import read_traceback
from veredus.model.info import (
    ClusterNodeInfo,
    DailyStats,
    EnqueueEvent,
    GroupInfo,
    LeaseInfo,
    QueueInfo,
    SchedulerEntryInfo,
    ServerInfo,
    TaskInfo,
)
from veredus.model.lifecycle import State
from veredus.model.redaction import Redact
from veredus.model.run_info import ChildLink, RunInfo
from veredus.model.waiting import WaitInfo, WaitingGroup, common_reason
from veredus.store.connection.redis import Redis
from veredus.store.inspect.checkups import Checkups
from veredus.store.inspect.durable_runs import DurableRunReader
from veredus.store.inspect.queues import Queues
from veredus.store.inspect.tasks import Tasks
from veredus.store.inspect.waiting import Waiting
from veredus.store.tasks.attempts import Attempts
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.store.tasks.schedules import Schedules
from veredus.store.tasks.stats import Stats

PAGE_SIZE = 30
_LEASE_PAGE = 100


class InspectorReader:
    """All methods that change nothing."""

    def __init__(self, redis: Redis, *, redact: Redact | None = None) -> None:
        self._redis = redis
        self._redaction = Redaction(redact)
        self._attempts = Attempts(redis)
        self._stats = Stats(redis)
        self._runs = DurableRunReader(redis)
        self._queues = Queues(redis)
        self._tasks = Tasks(redis)
        self._processes = LiveProcesses(redis)
        self.doctor = Doctor(self._queues, self._tasks, Checkups(redis), self._processes)
        """`await inspector.doctor.diagnose()`, `.repair(finding)`, `.repair_all()`."""

    # Queues.

    async def queues(self) -> list[str]:
        """The names of all queues."""
        return await self._queues.names()

    async def queue(self, queue: str, *, memory: bool = False) -> QueueInfo:
        """The numbers of one queue. `memory=True` also estimates its size in bytes from a sample."""
        await self._known(queue)
        return (await self._queues.stats([queue], memory=memory))[0]

    async def stats(self, *, memory: bool = False) -> list[QueueInfo]:
        """The numbers of all queues."""
        return await self._queues.stats(await self.queues(), memory=memory)

    async def history(self, queue: str, days: int = 10, *, until: date | None = None) -> list[DailyStats]:
        """Daily numbers in UTC, the newest day first."""
        if not 1 <= days <= 3650:
            raise ConfigError("days", days, "a number of days from 1 to 3650")
        await self._known(queue)
        return await self._queues.history(queue, days, until)

    async def groups(self, queue: str) -> list[GroupInfo]:
        """The groups that have tasks, sorted by name."""
        await self._known(queue)
        found = {one.group: one async for page in self._queues.groups(queue) for one in page if one.size}
        return [found[name] for name in sorted(found)]

    # Tasks.

    async def task(self, queue: str, task_id: str) -> TaskInfo:
        """Everything about one task."""
        found = (await self._tasks.info(queue, [task_id]))[0]
        if found is None:
            raise await self._no_task(queue, task_id)
        if not found.last_error:
            return self._redaction.task(found)
        stored = await self._tasks.traceback(queue, task_id)
        trace = read_traceback(found.last_failed, found.retried, stored)
        return self._redaction.task(replace(found, traceback=trace))

    async def attempts(self, queue: str, task_id: str) -> list[AttemptInfo]:
        """The last ten attempts of a task that have ended, the first one first. Where Go or an earlier version of
        Veredus ran one, its `outcome` is `not recorded`."""
        found = await self._attempts.of(queue, task_id)
        if found is None:
            raise await self._no_task(queue, task_id)
        if not self._redaction.is_on:
            return found
        (task,) = await self._tasks.info(queue, [task_id])
        type = "" if task is None else task.type
        return [self._redaction.attempt(one, type, queue, task_id) for one in found]

    async def durable_run(self, queue: str, task_id: str) -> RunInfo | None:
        """What a durable task has done so far: its steps, waits and children; None if it has used none of them."""
        return self._redaction.run(await self._runs.of(queue, task_id))

    async def children(self, queue: str, task_id: str, name: str, *, page: int = 1, size: int = 100) -> list[ChildLink]:
        """One page of the children of a durable task's `gather` (or `run`) with this name, in the order of its
        calls."""
        if page < 1 or size < 1:
            raise ConfigError("page" if page < 1 else "size", min(page, size), "a number from 1 on")
        found = await self._runs.children(queue, task_id, name, (page - 1) * size, size)
        if found is None:
            raise await self._no_task(queue, f"{task_id} with children {name!r}")
        return list(map(self._redaction.child, found))

    async def waiting(self, queue: str, *, scan: int = 100_000) -> list[WaitingGroup]:
        """What durable tasks of a queue wait for, the longest wait first. Events and other names that differ only
        behind their last colon are one reason: `event approved:*`. At most `scan` scheduled tasks are read."""
        await self._known(queue)
        groups: dict[str, WaitingGroup] = {}
        async for task in find(Walk(self._tasks, queue, "scheduled"), Query(), scan):
            if task.waiting_since:
                reason = common_reason(task.waiting_for)
                known = groups.get(reason, WaitingGroup(queue, reason, 0, task.waiting_since, task.id))
                oldest = min((known.since_ms, known.task_id), (task.waiting_since, task.id))
                groups[reason] = WaitingGroup(queue, reason, known.count + 1, *oldest)
        return sorted(groups.values(), key=lambda one: one.since_ms)

    async def waits(self, queue: str, task_id: str) -> list[WaitInfo]:
        """Why a task does not run now: its order key and the task that holds it, a limit, its due time, a paused queue,
        no worker for the queue, or no handler for its type in any of the queue's workers. Empty if nothing is in its
        way but the tasks before it, or if it runs or has ended."""
        found = (await self._tasks.info(queue, [task_id]))[0]
        if found is None:
            raise await self._no_task(queue, task_id)
        reasons = await Waiting(self._redis).reasons(found)
        if found.state in ("pending", "scheduled", "retry"):
            members = await self._processes.members()
            if not any(queue in member.server.queues for member in members):
                reasons.append(WaitInfo(reason="no worker", name=queue))
            elif await self._processes.unserved(queue, [found.type]):
                reasons.append(WaitInfo(reason="unknown type", name=found.type))
        return reasons

    async def queues_of(self, task_id: str) -> list[str]:
        """Every queue that has a task with this id. Raises TaskNotFound if there is none."""
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
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        page: int = 1,
        size: int = PAGE_SIZE,
        newest: bool = False,
    ) -> list[TaskInfo]:
        """One page of tasks: pending in the order they will run, active with the longest running first, others by
        time. With `newest` in the opposite order, from the end."""
        state = checked(state)
        if page < 1 or size < 1:
            raise ConfigError("page" if page < 1 else "size", min(page, size), "a number from 1 on")
        if state is State.AGGREGATING and group is None:
            raise ConfigError("group", group, "the name of a group, for aggregating tasks")
        await self._known(queue, group)
        tasks: list[TaskInfo] = []
        read, start, end = 0, size * (page - 1), size * page
        if newest:
            total = await self._tasks.count(queue, state, group=group or "")
            start, end = max(0, total - end), max(0, total - start)
        while start + read < end:
            part = await self._tasks.page(queue, state, start + read, min(end - start - read, 250), group=group or "")
            if not part.read:
                break
            tasks += part.tasks
            read += part.read
        return list(map(self._redaction.task, tasks[::-1] if newest else tasks))

    async def search(
        self,
        queue: str,
        state: State | str,
        *,
        type: str = "",
        payload: str | bytes = "",
        error: str = "",
        waiting: str = "",
        group: str | None = None,
        scan: int | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """Find tasks, reading page by page. `type` may be a pattern, `payload` and `error` match substrings, `waiting`
        is what durable tasks wait for; all that are given must match. Errors are searched as they are shown, after
        `redact`. `scan` limits how many tasks (per group) are read."""
        state = checked(state)
        await self._known(queue, group)
        query = Query(type=type, payload=payload, error=error, waiting=waiting)
        groups = [group or ""]
        if state is State.AGGREGATING and group is None:
            groups = [one.group for one in await self.groups(queue)]
        for name in groups:
            async for task in find(Walk(self._tasks, queue, state, name), query, scan):
                if (shown := self._redaction.task(task)).has_error(error):
                    yield shown

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
        """Search in single steps: pass the cursor of the last page to continue."""
        state = checked(state)
        if state is State.AGGREGATING and group is None:
            raise ConfigError("group", group, "the name of a group, for aggregating tasks")
        await self._known(queue, group)
        walk = Walk(self._tasks, queue, state, group or "", cursor, error_groups=bool(query.error_group))
        page = await find_page(walk, query, size, scan)
        shown = map(self._redaction.task, page.tasks)
        return replace(page, tasks=[task for task in shown if task.has_error(query.error)])

    # Processes.

    async def servers(self) -> list[ServerInfo]:
        """Every live worker process, Python and Go, with its running tasks."""
        return list(map(self._redaction.server, await self._processes.servers()))

    async def server(self, server: str) -> ServerInfo:
        """One worker process, by its id, a unique prefix of its id, or `host:pid`."""
        servers = await self.servers()
        matching = [one for one in servers if server in (one.id, f"{one.host}:{one.pid}")]
        matching = matching or [one for one in servers if server and one.id.startswith(server)]
        if len(matching) != 1:
            known = [name for one in servers for name in (one.id, f"{one.host}:{one.pid}")]
            raise ServerNotFound(server, known=known)
        return matching[0]

    async def leases(self, queue: str | None = None, *, limit: int = 1_000) -> list[LeaseInfo]:
        """The leases of one queue or of all, at most `limit` per queue, the first to expire first."""
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
        """Every schedule of every live scheduler, Python and Go."""
        schedules = Schedules(self._redis)
        found = list(map(self._redaction.schedule, await self._processes.scheduler_entries()))
        paused = await asyncio.gather(*[schedules.is_paused(entry.queue, entry.id) for entry in found])
        return [replace(entry, paused=is_paused) for entry, is_paused in zip(found, paused, strict=True)]

    async def scheduler_events(self, entry_id: str, *, page: int = 1, size: int = PAGE_SIZE) -> list[EnqueueEvent]:
        """When a schedule fired, the newest event first."""
        if page < 1 or size < 1:
            raise ConfigError("page" if page < 1 else "size", min(page, size), "a number from 1 on")
        found = await self._processes.scheduler_events(entry_id, size * (page - 1), size)
        if not found and not await self._processes.scheduler_events(entry_id, 0, 1):
            known = [entry.id for entry in await self.scheduler_entries()]
            if entry_id not in known:
                raise ScheduleNotFound(entry_id, known=known)
        return found

    # The server.

    async def redis_info(self) -> dict[str, str]:
        """The reply of INFO; in a cluster, from one of its nodes."""
        return await self.doctor.checkups.server_facts("")

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a cluster."""
        return self._redis.address.kind == "cluster"

    def cluster_slot(self, queue: str) -> int:
        """The cluster slot of a queue."""
        return self._queues.slot(queue)

    async def cluster_nodes(self, queue: str) -> list[ClusterNodeInfo]:
        """The nodes that have this queue, the master first."""
        return await self._queues.nodes(queue)

    # Errors.

    async def _known(self, queue: str, group: str | None = None) -> None:
        if not await self._queues.exists(queue):
            raise QueueNotFound(queue, known=await self.queues())
        if group and not await self._tasks.count(queue, State.AGGREGATING, group=group):
            raise GroupNotFound(group, queue, known=[one.group for one in await self.groups(queue)])

    async def _no_task(self, queue: str, task_id: str) -> TaskNotFound:
        """TaskNotFound with a hint: another queue that has this id, or a similar id."""
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
