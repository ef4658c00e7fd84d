"""GroupRunner: calls the user's function with the members of a set, and replaces them by the tasks that it returns."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from veredus.client.call import Call
from veredus.client.client import Client
from veredus.client.task import Task, where_to_run
from veredus.clock import Clock
from veredus.errors import ConfigError, ConnectionLost, NotReady, PayloadError, VeredusError
from veredus.events import Aggregated, Bus, ItemDropped
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.injection import dependencies, inject
from veredus.model.backoff import Backoff
from veredus.model.failure import describe
from veredus.model.grouping import Aggregation, aggregated_id
from veredus.model.job import Job
from veredus.model.retry import RetryDelayFunction
from veredus.model.verdict import write_failure
from veredus.store.tasks.groups import AGGREGATED, REFUSED, Groups, RetriedMember, UnreadableMember
from veredus.store.tasks.intake import ID_EXISTS, LOCKED, NewTask
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task
from veredus.wire.payload import name_of
from veredus.wire.results import close_coroutines
from veredus.worker.settlements import quarantine, retry_delay_ms

logger = logging.getLogger("veredus.worker")


class AggregationRefused(VeredusError):
    """The tasks that the function returned cannot be enqueued."""


@dataclass(frozen=True, slots=True)
class StagedSet:
    """A set of members that this worker aggregates."""

    queue: str
    group: str
    set_id: str
    aggregation: Aggregation


@dataclass(slots=True)
class _SortedMembers:
    """The members of a set: for the function, to be archived, to be retried."""

    jobs: list[Job]
    values: list[Any]
    archived: list[UnreadableMember]
    retried: list[RetriedMember]


class GroupRunner:
    """Deletes no member before the new tasks are stored."""

    def __init__(
        self,
        groups: Groups,
        client: Client,
        bus: Bus,
        clock: Clock,
        threads: ThreadPool,
        on_work: Callable[[str], None],
        delay_of: Callable[[str], RetryDelayFunction],
    ) -> None:
        self._groups = groups
        self._client = client
        self._bus = bus
        self._clock = clock
        self._threads = threads
        self._on_work = on_work
        self._delay_of = delay_of

    async def run(self, staged: StagedSet) -> None:
        """Aggregate a set. Raises whatever goes wrong."""
        queue, group, set_id = staged.queue, staged.group, staged.set_id
        found = await self._groups.read(queue, group, set_id)
        for task_id, reason in found.dropped:
            logger.warning("task %s of group %s in queue %s was removed: %s", task_id, group, queue, reason)
            self._bus.emit(ItemDropped(queue, task_id, reason))
        members = self._sort(staged, found.rows)
        if members.archived:
            await self._groups.archive(queue, group, set_id, members.archived)
        if members.retried:
            await self._groups.retry(queue, group, set_id, members.retried)
        if not members.jobs:
            return
        result = await self._call(staged.aggregation.function, group, members.values)
        entries = self._entries(staged, result)
        await self._write(staged, [(job.id, job.message.unique_key) for job in members.jobs], entries)

    def _sort(self, staged: StagedSet, rows: Sequence[tuple[str, bytes]]) -> _SortedMembers:
        """A member that cannot be read does not affect the others. It is archived or retried, as a worker would do."""
        members = _SortedMembers([], [], [], [])
        for task_id, data in rows:
            try:
                message = decode_task(data)
            except UndecodableMessage as exc:
                stand_in = quarantine(staged.queue, "", task_id, data, str(exc), self._clock.time())
                members.archived.append(UnreadableMember(task_id, "", stand_in.message, stand_in.original))
                self._report_archived(staged, task_id, exc)
                continue
            message.id, message.queue = task_id, staged.queue
            job = Job(message)
            try:
                value = staged.aggregation.decode(job)
            except PayloadError as exc:
                self._put_off(staged, members, job, exc)
                continue
            members.jobs.append(job)
            members.values.append(value)
        return members

    def _put_off(self, staged: StagedSet, members: _SortedMembers, job: Job, exc: PayloadError) -> None:
        """Its payload does not fit. It joins its group again later, until its retries are used up."""
        message, is_over = job.message, job.message.retried >= job.message.retry
        delay = 0 if is_over else retry_delay_ms(self._delay_of(message.type), message, exc, job)
        write_failure(message, describe(exc), self._clock.time(), counts=not is_over)
        if is_over:
            members.archived.append(UnreadableMember(job.id, message.unique_key, encode_task(message)))
            self._report_archived(staged, job.id, exc)
        else:
            members.retried.append(RetriedMember(job.id, message.unique_key, encode_task(message), delay))
            where = f"task {job.id} of group {staged.group} in queue {staged.queue}"
            logger.warning("%s is retried: %s", where, exc)

    def _report_archived(self, staged: StagedSet, task_id: str, exc: Exception) -> None:
        logger.error("task %s of group %s in queue %s is archived: %s", task_id, staged.group, staged.queue, exc)
        self._bus.emit(ItemDropped(staged.queue, task_id, "undecodable"))

    async def _call(self, function: Callable[..., Any], group: str, values: list[Any]) -> Any:
        async with AsyncExitStack() as stack:
            given = await inject(function, stack) if dependencies(function) else {}
            call = functools.partial(function, group, values, **given)
            if where_to_run(function, None) == "loop":
                result = await call()
            else:
                result = await self._threads.submit(lambda: _unrolled(call()))
            if hasattr(result, "__aiter__"):
                result = [one async for one in result]
            return _unrolled(result)

    def _entries(self, staged: StagedSet, result: Any) -> list[NewTask]:
        name = name_of(staged.aggregation.function)
        if result is None:
            raise AggregationRefused(f"{name}() returned None: return task.call(...), or [] to drop the members")
        calls = [result] if isinstance(result, Call) else result
        if not isinstance(calls, list) or not all(isinstance(call, Call) for call in calls):
            close_coroutines(result)
            raise AggregationRefused(f"{name}() returned {result!r:.100}: expected task.call(...) or several of them")
        return [self._entry(staged, call, number) for number, call in enumerate(calls)]

    def _entry(self, staged: StagedSet, call: Call[Any], number: int) -> NewTask:
        """As in Asynq, the task goes to the queue of its group, whatever its options say."""
        options = call.options.merged({"queue": staged.queue})
        if options.group == staged.group:
            raise ConfigError("group", options.group, "a group other than the one being aggregated")
        if options.task_id is None:
            options = options.merged({"task_id": aggregated_id(staged.set_id, number)})
        return self._client.entry(replace(call, options=options))

    async def _write(self, staged: StagedSet, members: list[tuple[str, str]], entries: list[NewTask]) -> None:
        """Repeated while the server is away: the set shows whether an earlier call was executed."""
        backoff, unsure = Backoff(), False
        while True:
            try:
                code, codes = await self._groups.aggregate(staged.queue, staged.group, staged.set_id, members, entries)
                break
            except (ConnectionLost, NotReady) as exc:
                unsure = unsure or isinstance(exc, ConnectionLost)
                await asyncio.sleep(backoff.take())
        if code == REFUSED:
            raise AggregationRefused("; ".join(_refusals(entries, codes)))
        if code == AGGREGATED:
            self._bus.emit(Aggregated(staged.queue, staged.group, len(members), tuple(e.task_id for e in entries)))
            self._on_work(staged.queue)
        elif not unsure:
            logger.warning(
                "group %s of queue %s: a set of %d members was given back before its task was stored; they are "
                "aggregated again",
                staged.group,
                staged.queue,
                len(members),
            )


def _unrolled(result: Any) -> Any:
    """A generator is consumed where the function runs."""
    if result is None or isinstance(result, Call | Task | str | bytes) or not hasattr(result, "__iter__"):
        return result
    return list(result)


def _refusals(entries: Sequence[NewTask], codes: Sequence[int]) -> list[str]:
    texts = {ID_EXISTS: "its id is taken", LOCKED: "its unique lock is held by another task"}
    return [f"task {e.task_id}: {texts[code]}" for e, code in zip(entries, codes, strict=True) if code in texts]
