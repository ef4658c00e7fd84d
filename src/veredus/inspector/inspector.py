"""Inspector: read and change queues and tasks by hand."""

from __future__ import annotations

import asyncio
import functools
from datetime import datetime, timedelta
from typing import Any, Self

from veredus.errors import ConfigError, ScheduleNotFound
from veredus.inspector import changes, removal
from veredus.inspector.bulk_runner import BulkResult, BulkRunner, Progress, Stop
from veredus.inspector.order_and_limits import OrderAndLimits
from veredus.inspector.reader import InspectorReader, checked
from veredus.inspector.refusals import refusal
from veredus.inspector.search import Query, Walk
from veredus.inspector.statistics import Statistics
from veredus.inspector.workers import Workers
from veredus.model.archive import ArchiveLimits
from veredus.model.lifecycle import State
from veredus.model.names import check_queue
from veredus.model.options import instant, seconds
from veredus.model.redaction import Redact
from veredus.model.task_status import CancelOutcome, check_children, check_then
from veredus.store.connection.redis import Redis
from veredus.store.inspect.moves import Moves
from veredus.store.inspect.tasks import DONE, NO_TASK, Row
from veredus.store.store import connect
from veredus.store.tasks.cancels import Cancels
from veredus.store.tasks.orphans import Orphans
from veredus.store.tasks.schedules import Schedules
from veredus.wire.messages import cancelled
from veredus.wire.times import to_milliseconds, to_seconds, unix_milliseconds

RUNNABLE = (State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED, State.AGGREGATING)
ARCHIVABLE = (State.PENDING, State.SCHEDULED, State.RETRY, State.COMPLETED, State.AGGREGATING)
DELETABLE = (*ARCHIVABLE, State.ARCHIVED)


class Inspector(OrderAndLimits, Statistics, Workers, InspectorReader):
    """Get one from `app.inspector()`, or for any Redis: `async with Inspector.at("redis://...") as inspector`.

    Methods raise QueueNotFound for an unknown queue, TaskNotFound for an unknown task, and WrongState if the state of
    the task does not allow the change.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        archive: ArchiveLimits | None = None,
        redact: Redact | None = None,
    ) -> None:
        """`redact` is applied to payloads, results and errors of everything that is read."""
        super().__init__(redis, redact=redact)
        self._tasks.limits = archive or ArchiveLimits.make()
        self._cancels = Cancels(redis, archive=self._tasks.limits)
        self._orphans = Orphans(redis, self._cancels)
        self._moves = Moves(redis)
        self._bulk = BulkRunner(self._tasks, self._queues)

    @classmethod
    def at(cls, url: str, *, timeout: float = 5.0) -> Inspector:
        """An inspector with its own connection. Close it, or use `async with`."""
        return cls(connect(url, timeout=timeout, name="veredus inspector"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.close()

    # Queues.

    async def pause(self, queue: str) -> bool:
        """Stop workers from taking tasks of this queue. False if it was already paused."""
        await self._known(queue)
        return await self._queues.pause(queue)

    async def resume(self, queue: str) -> bool:
        """Let workers take tasks again. False if the queue was not paused."""
        await self._known(queue)
        return await self._queues.resume(queue)

    async def pause_schedule(self, entry_id: str) -> bool:
        """Let the ticks of a schedule pass until it is resumed. False if it was paused already."""
        return await self._on_schedule(entry_id, "pause")

    async def resume_schedule(self, entry_id: str) -> bool:
        """Fire a schedule again, from its next tick. False if it was not paused."""
        return await self._on_schedule(entry_id, "resume")

    async def _on_schedule(self, entry_id: str, verb: str) -> bool:
        entries = {entry.id: entry for entry in await self.scheduler_entries()}
        if entry_id not in entries:
            raise ScheduleNotFound(entry_id, known=entries)
        schedules = Schedules(self._redis)
        change = schedules.pause if verb == "pause" else schedules.resume
        done = await change(entries[entry_id].queue, entry_id)
        if done is None:
            raise ConfigError("schedule", entry_id, f"one of a Veredus scheduler: Go's schedulers have no {verb}")
        return done

    async def close_queue(self, queue: str) -> bool:
        """Refuse new tasks: every Veredus client gets QueueClosed. Existing tasks still run. Go clients ignore this.
        False if it was already closed."""
        await self._known(queue)
        return await self._queues.close(queue)

    async def open_queue(self, queue: str) -> bool:
        """Accept new tasks again. False if the queue was not closed."""
        if await self._queues.open(queue):  # also an unlisted queue: Go's DeleteQueue leaves it closed
            return True
        await self._known(queue)
        return False

    async def is_closed(self, queue: str) -> bool:
        """Whether a queue refuses new tasks."""
        return await self._queues.is_closed(queue)

    async def delete_queue(self, queue: str, *, force: bool = False, progress: Progress | None = None) -> None:
        """Delete a queue and everything in it. Raises QueueNotEmpty if tasks are running, and without `force` also if
        it has other tasks than completed ones."""
        await self._known(queue)
        await removal.delete_queue(self._queues, self._bulk, queue, force=force, progress=progress)

    # Changing single tasks.

    async def run(self, queue: str, task_id: str, *, front: bool = False, from_start: bool = False) -> None:
        """Make a task pending now, behind all other pending tasks. With `front` it runs next, also if it is already
        pending. A durable task goes on after the last step that was kept, and one that waits looks whether its wait is
        over; with `from_start` it forgets what it has done."""
        row = await self._row(queue, task_id, search=front)
        codes = await self._tasks.run(queue, [row], front=front, from_start=from_start)
        await self._done("run", codes[0], queue, task_id)

    async def archive(self, queue: str, task_id: str) -> None:
        """Archive a task: it does not run until it is run or deleted by hand."""
        codes = await self._tasks.archive(queue, [await self._row(queue, task_id)])
        await self._done("archive", codes[0], queue, task_id)

    async def delete(self, queue: str, task_id: str) -> None:
        """Delete a task that is not running."""
        codes = await self._tasks.delete(queue, [await self._row(queue, task_id)])
        await self._done("delete", codes[0], queue, task_id)

    async def reschedule(
        self, queue: str, task_id: str, *, at: datetime | None = None, delay: float | timedelta | None = None
    ) -> None:
        """Make a task due at an instant or after a delay, to the millisecond."""
        if (at is None) == (delay is None):
            raise ConfigError("reschedule", None if at is None else at, "either `at` or `delay`")
        if delay is None:
            due = str(unix_milliseconds(instant("at", at)))
        else:
            due = f"+{to_milliseconds(seconds('delay', max(0.0, to_seconds(delay))))}"
        codes = await self._tasks.reschedule(queue, [await self._row(queue, task_id)], due)
        await self._done("reschedule", codes[0], queue, task_id)

    async def edit_payload(self, queue: str, task_id: str, payload: Any, *, from_start: bool = False) -> None:
        """Replace the payload of a pending, scheduled, retry or archived task: bytes as they are, None as none,
        anything else as JSON. A unique lock moves with it. A durable task that waits or has children is refused unless
        it begins again, with `from_start`."""
        if not await changes.edit_payload(self._tasks, queue, task_id, payload, from_start=from_start):
            raise await self._no_task(queue, task_id)

    async def move(self, queue: str, task_id: str, target: str, *, from_start: bool = False) -> None:
        """Move a task that is not running to another queue. It keeps its id, state and due time. A durable task that
        waits or has children is refused unless it begins again, with `from_start`."""
        if check_queue("target", target) == queue:
            raise ConfigError("target", target, "the name of another queue")
        if not await changes.move(self._tasks, self._moves, queue, task_id, target, from_start=from_start):
            raise await self._no_task(queue, task_id)

    async def cancel(
        self, queue: str, task_id: str, *, then: str = "archive", children: str = "cancel"
    ) -> CancelOutcome:
        """Cancel a task before it starts or while it runs, then archive, delete or retry it. A running task is also
        marked in Redis, so that the cancel survives lost messages and dead workers. The worker, also a Go server, is
        notified at once. The children of a durable task are cancelled too, unless `children` is "keep"."""
        outcome = await self._cancel(queue, task_id, check_then(then), check_children(children))
        if outcome is CancelOutcome.NOT_FOUND:
            raise await self._no_task(queue, task_id)
        return outcome

    async def cancel_processing(self, task_id: str) -> int:
        """Notify every worker that runs a task with this id, in any queue, as Asynq's own tools do. Nothing is written,
        and the task is retried. Returns how many processes received the message."""
        return await self._tasks.publish_cancel(task_id)

    async def _cancel(self, queue: str, task_id: str, then: str, with_children: bool) -> CancelOutcome:
        reword = functools.partial(cancelled, now=await self._queues.server_ms() / 1000)
        found = await self._cancels.cancel(queue, task_id, then, reword, with_children=with_children)
        if found.has_children:
            await self._orphans.cancel(queue, reword)
        return CancelOutcome(found.outcome)

    # Changing many tasks.

    async def run_all(
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        where: Query | None = None,
        from_start: bool = False,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> BulkResult:
        """Make all tasks of a state pending, in their order, or only those that match `where`. For aggregating tasks,
        no `group` means all groups. `from_start`: as for `run`."""
        state = checked(state, RUNNABLE)
        await self._known(queue, group)
        verb = "restart" if from_start else "run"
        return await self._bulk.apply(verb, queue, state, group, where, progress, stop)

    async def archive_all(
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        where: Query | None = None,
        drop_excess: bool = False,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> BulkResult:
        """Archive all tasks of a state, or only those that match `where`. If the archive (9,999 tasks by default) would
        overflow, nothing is changed and ArchiveFull reports how many tasks would be deleted; `drop_excess` allows
        it."""
        state = checked(state, ARCHIVABLE)
        await self._known(queue, group)
        if not drop_excess:
            await self._bulk.check_room(queue, state, group, where)
        return await self._bulk.apply("archive", queue, state, group, where, progress, stop)

    async def delete_all(
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        where: Query | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> BulkResult:
        """Delete all tasks of a state, or only those that match `where`, in small batches."""
        state = checked(state, DELETABLE)
        await self._known(queue, group)
        return await self._bulk.apply("delete", queue, state, group, where, progress, stop)

    async def cancel_all(
        self,
        queue: str,
        *,
        then: str = "archive",
        children: str = "cancel",
        where: Query | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> BulkResult:
        """Cancel every running task of a queue, or only those that match `where`, as `cancel` does. `where.waiting`
        cancels durable tasks that wait instead."""
        with_children = check_children(children)
        check_then(then)
        await self._known(queue)
        state = "scheduled" if where is not None and where.waiting else "active"
        walk, cancelled_count = Walk(self._tasks, queue, state), 0
        while (page := await walk.next()) is not None:
            matching = [task.id for task in page.tasks if where is None or where.matches(task)]
            outcomes = await asyncio.gather(*[self._cancel(queue, one, then, with_children) for one in matching])
            cancelled_count += sum(map(bool, outcomes))
            walk.forget({one for one, outcome in zip(matching, outcomes, strict=True) if outcome == "cancelled"})
            if progress is not None:
                progress(min(walk.scanned, walk.total), walk.total)
            if stop is not None and stop.is_set():
                return BulkResult(cancelled_count, walk.total, stopped=walk.scanned < walk.total)
        return BulkResult(cancelled_count, walk.total)

    async def _row(self, queue: str, task_id: str, *, search: bool = True) -> Row:
        return task_id, await self._tasks.place(queue, task_id) if search else None

    async def _done(self, verb: str, code: int, queue: str, task_id: str) -> None:
        if code == NO_TASK:
            raise await self._no_task(queue, task_id)
        if code != DONE:
            raise refusal(verb, code, queue, task_id)
