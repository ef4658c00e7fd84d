"""One aggregation: from a set of members, through the user's function, to the tasks that take their place."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from veredus.client.calls import Call
from veredus.client.client import Client
from veredus.client.task import Task, where_to_run
from veredus.clock import Clock
from veredus.errors import ConfigError, ConnectionLost, NotReady, PayloadError, VeredusError
from veredus.events import Aggregated, Bus, ItemDropped
from veredus.model.failure import describe
from veredus.model.grouping import Aggregation, aggregated_id
from veredus.model.job import Job
from veredus.model.retry import RetryDelayFunction
from veredus.model.verdict import failed_message
from veredus.store.groups import AGGREGATED, REFUSED, Aside, Groups, Later
from veredus.store.intake import ID_EXISTS, LOCKED, Entry
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task
from veredus.wire.payload import name_of
from veredus.wire.results import close_coroutines
from veredus.worker.attempt import quarantine, retry_delay_ms
from veredus.worker.executors.threads import ThreadPool
from veredus.worker.injection import dependencies, inject

logger = logging.getLogger("veredus.worker")


class AggregationRefused(VeredusError):
    """What the function returned cannot be put into the queue."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A set that was made for this worker."""

    queue: str
    group: str
    set_id: str
    aggregation: Aggregation


@dataclass(slots=True)
class _Sorted:
    """The members of a set: those that the function gets, those that are put aside, and those for another attempt."""

    jobs: list[Job]
    values: list[Any]
    aside: list[Aside]
    later: list[Later]


class Foundry:
    """Makes tasks of sets. Whatever goes wrong is raised; nothing is deleted before the new tasks are stored."""

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

    async def run(self, staged: Staged) -> None:
        queue, group, set_id = staged.queue, staged.group, staged.set_id
        found = await self._groups.read(queue, group, set_id)
        for task_id, reason in found.dropped:
            logger.warning("task %s of group %s in queue %s was removed: %s", task_id, group, queue, reason)
            self._bus.emit(ItemDropped(queue, task_id, reason))
        members = self._sort(staged, found.rows)
        if members.aside:
            await self._groups.archive(queue, group, set_id, members.aside)
        if members.later:
            await self._groups.retry(queue, group, set_id, members.later)
        if not members.jobs:
            return
        result = await self._call(staged.aggregation.function, group, members.values)
        entries = self._entries(staged, result)
        await self._write(staged, [(job.id, job.message.unique_key) for job in members.jobs], entries)

    def _sort(self, staged: Staged, rows: Sequence[tuple[str, bytes]]) -> _Sorted:
        """One member that cannot be read never holds up the others: it is archived or retried, as a worker would."""
        members = _Sorted([], [], [], [])
        for task_id, data in rows:
            try:
                message = decode_task(data)
            except UndecodableMessage as exc:
                stand_in = quarantine(staged.queue, "", task_id, data, str(exc), self._clock.time())
                members.aside.append(Aside(task_id, "", stand_in.message, stand_in.original))
                self._tell_aside(staged, task_id, exc)
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

    def _put_off(self, staged: Staged, members: _Sorted, job: Job, exc: PayloadError) -> None:
        """It does not fit: it joins its group again later, until its retries are used up."""
        message, is_over = job.message, job.message.retried >= job.message.retry
        delay = 0 if is_over else retry_delay_ms(self._delay_of(message.type), message, exc, job)
        failed_message(message, describe(exc), self._clock.time(), counts=not is_over)
        if is_over:
            members.aside.append(Aside(job.id, message.unique_key, encode_task(message)))
            self._tell_aside(staged, job.id, exc)
        else:
            members.later.append(Later(job.id, message.unique_key, encode_task(message), delay))
            where = f"task {job.id} of group {staged.group} in queue {staged.queue}"
            logger.warning("%s is retried: %s", where, exc)

    def _tell_aside(self, staged: Staged, task_id: str, exc: Exception) -> None:
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

    def _entries(self, staged: Staged, result: Any) -> list[Entry]:
        name = name_of(staged.aggregation.function)
        if result is None:
            raise AggregationRefused(f"{name}() returned None: return task.call(...), or [] to drop the members")
        calls = [result] if isinstance(result, Call) else result
        if not isinstance(calls, list) or not all(isinstance(call, Call) for call in calls):
            close_coroutines(result)
            raise AggregationRefused(f"{name}() returned {result!r:.100}: expected task.call(...) or several of them")
        return [self._entry(staged, call, number) for number, call in enumerate(calls)]

    def _entry(self, staged: Staged, call: Call[Any], number: int) -> Entry:
        """As in Asynq, the task goes into the queue of its group, whatever its own options say."""
        options = call.options.merged({"queue": staged.queue})
        if options.group == staged.group:
            raise ConfigError("group", options.group, "another group than the one aggregated: it would never end")
        if options.task_id is None:
            options = options.merged({"task_id": aggregated_id(staged.set_id, number)})
        return self._client.entry(replace(call, options=options))

    async def _write(self, staged: Staged, members: list[tuple[str, str]], entries: list[Entry]) -> None:
        """Tried again while the connection is lost: the set itself tells whether an earlier try got through."""
        pause, unsure = 0.05, False
        while True:
            try:
                code, codes = await self._groups.aggregate(staged.queue, staged.group, staged.set_id, members, entries)
                break
            except (ConnectionLost, NotReady) as exc:
                unsure = unsure or isinstance(exc, ConnectionLost)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 1.0)
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
    """What a generator yields is made where the function runs."""
    if result is None or isinstance(result, Call | Task | str | bytes) or not hasattr(result, "__iter__"):
        return result
    return list(result)


def _refusals(entries: Sequence[Entry], codes: Sequence[int]) -> list[str]:
    texts = {ID_EXISTS: "its id is taken", LOCKED: "its unique lock is held by another task"}
    return [f"task {e.task_id}: {texts[code]}" for e, code in zip(entries, codes, strict=True) if code in texts]
