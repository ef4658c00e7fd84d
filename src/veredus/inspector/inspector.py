"""Inspector: everything there is to see and to change, by hand, in the queues of one Redis."""

from __future__ import annotations

import asyncio
import functools
from datetime import datetime, timedelta
from typing import Any, Self

from veredus.errors import ConfigError
from veredus.inspector import changes, removal
from veredus.inspector.bulk import Bulk, Mass, Progress, Stop
from veredus.inspector.looking import Looking, checked
from veredus.inspector.refusals import refusal
from veredus.inspector.search import Query, Walk
from veredus.inspector.turns import Turns
from veredus.model.archive import ArchiveLimits
from veredus.model.ending import CancelOutcome, check_then
from veredus.model.lifecycle import State
from veredus.model.names import check_queue
from veredus.model.options import instant, seconds
from veredus.store.cancels import Cancels
from veredus.store.moves import Moves
from veredus.store.redis import Redis
from veredus.store.store import connect
from veredus.store.tasks import DONE, NO_TASK, Row
from veredus.wire.messages import cancelled
from veredus.wire.times import to_milliseconds, to_seconds, unix_milliseconds

_RUNNABLE = (State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED, State.AGGREGATING)
_ARCHIVABLE = (State.PENDING, State.SCHEDULED, State.RETRY, State.COMPLETED, State.AGGREGATING)
_DELETABLE = (*_ARCHIVABLE, State.ARCHIVED)


class Inspector(Turns, Looking):
    """Made by `app.inspector()`, or for any Redis: `async with Inspector.at("redis://...") as inspector`.

    Whatever names an unknown queue raises QueueNotFound, an unknown task TaskNotFound, and what the state of a task
    does not allow WrongState.
    """

    def __init__(self, redis: Redis, *, now_ms: int | None = None, archive: ArchiveLimits | None = None) -> None:
        super().__init__(redis, now_ms=now_ms)
        self._tasks.limits = archive or ArchiveLimits.make()
        self._cancels = Cancels(redis, archive=self._tasks.limits, now_ms=now_ms)
        self._moves = Moves(redis, now_ms=now_ms)
        self._mass = Mass(self._tasks, self._queues)

    @classmethod
    def at(cls, url: str, *, timeout: float = 5.0) -> Inspector:
        """An inspector with a connection of its own; close it, or use it with `async with`."""
        return cls(connect(url, timeout=timeout, name="veredus inspector"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection that it looks through."""
        await self._redis.close()

    # Queues.

    async def pause(self, queue: str) -> bool:
        """No worker takes tasks from it any more. False if it was paused already."""
        await self._known(queue)
        return await self._queues.pause(queue)

    async def resume(self, queue: str) -> bool:
        """False if it was not paused."""
        await self._known(queue)
        return await self._queues.resume(queue)

    async def close_queue(self, queue: str) -> bool:
        """Take in no new tasks: every Veredus client gets QueueClosed, what is there goes on. Go clients do not ask.
        False if it was closed already."""
        await self._known(queue)
        return await self._queues.close(queue)

    async def open_queue(self, queue: str) -> bool:
        """Take in tasks again. False if it was not closed."""
        if await self._queues.open(queue):  # also one that is listed nowhere: Go's DeleteQueue leaves it closed
            return True
        await self._known(queue)
        return False

    async def is_closed(self, queue: str) -> bool:
        """Whether a queue takes no new tasks."""
        return await self._queues.is_closed(queue)

    async def delete_queue(self, queue: str, *, force: bool = False, progress: Progress | None = None) -> None:
        """Delete a queue with everything that belongs to it. QueueNotEmpty if it has tasks, unless `force`; always if
        some are running."""
        await self._known(queue)
        await removal.delete_queue(self._queues, self._mass, queue, force=force, progress=progress)

    # Changing single tasks.

    async def run(self, queue: str, task_id: str, *, front: bool = False) -> None:
        """Make it pending now, at the back of the line; at its front also if it is pending already."""
        codes = await self._tasks.run(queue, [await self._row(queue, task_id, search=front)], front=front)
        await self._done("run", codes[0], queue, task_id)

    async def archive(self, queue: str, task_id: str) -> None:
        """Put it aside, until somebody runs or deletes it."""
        codes = await self._tasks.archive(queue, [await self._row(queue, task_id)])
        await self._done("archive", codes[0], queue, task_id)

    async def delete(self, queue: str, task_id: str) -> None:
        """Delete a task that is not running."""
        codes = await self._tasks.delete(queue, [await self._row(queue, task_id)])
        await self._done("delete", codes[0], queue, task_id)

    async def reschedule(
        self, queue: str, task_id: str, *, at: datetime | None = None, delay: float | timedelta | None = None
    ) -> None:
        """Make it due at an instant, or so many seconds from now, to the millisecond."""
        if (at is None) == (delay is None):
            raise ConfigError("reschedule", None if at is None else at, "either `at` or `delay`")
        if delay is None:
            due = str(unix_milliseconds(instant("at", at)))
        else:
            due = f"+{to_milliseconds(seconds('delay', max(0.0, to_seconds(delay))))}"
        codes = await self._tasks.reschedule(queue, [await self._row(queue, task_id)], due)
        await self._done("reschedule", codes[0], queue, task_id)

    async def edit_payload(self, queue: str, task_id: str, payload: Any) -> None:
        """Replace the payload of a pending, scheduled, retry or archived task: bytes as they are, None as none,
        anything else as JSON. A unique lock moves with it."""
        if not await changes.edit_payload(self._tasks, queue, task_id, payload):
            raise await self._no_task(queue, task_id)

    async def move(self, queue: str, task_id: str, target: str) -> None:
        """Bring a task that is not running into another queue; it keeps its id, its state and its due time."""
        if check_queue("target", target) == queue:
            raise ConfigError("target", target, "the name of another queue")
        if not await changes.move(self._tasks, self._moves, queue, task_id, target):
            raise await self._no_task(queue, task_id)

    async def cancel(self, queue: str, task_id: str, *, then: str = "archive") -> CancelOutcome:
        """End a task for good, before it begins or while it runs; `then`: archive, delete or retry. One that runs is
        marked, so that the cancel survives lost messages and dead workers; whoever runs it, also a Go server, is told
        at once."""
        outcome = await self._cancel(queue, task_id, check_then(then))
        if outcome is CancelOutcome.NOT_FOUND:
            raise await self._no_task(queue, task_id)
        return outcome

    async def cancel_processing(self, task_id: str) -> int:
        """Only tell every worker that runs a task with this id, in whatever queue, as Asynq's own tools do: nothing is
        written, and the task is retried. Returns how many processes heard it."""
        return await self._tasks.publish_cancel(task_id)

    async def _cancel(self, queue: str, task_id: str, then: str) -> CancelOutcome:
        reword = functools.partial(cancelled, now=await self._queues.server_ms() / 1000)
        return CancelOutcome(await self._cancels.cancel(queue, task_id, then, reword))

    # Changing many tasks.

    async def run_all(
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        where: Query | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Bulk:
        """Make all tasks of a state pending, in their order; `where` picks some. Aggregating tasks without `group`: of
        all groups."""
        state = checked(state, _RUNNABLE)
        await self._known(queue, group)
        return await self._mass.apply("run", queue, state, group, where, progress, stop)

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
    ) -> Bulk:
        """Archive all tasks of a state. The archive keeps 9,999: if they do not fit, ArchiveFull tells how many would
        be deleted, and nothing is done unless `drop_excess` allows that."""
        state = checked(state, _ARCHIVABLE)
        await self._known(queue, group)
        if not drop_excess:
            await self._mass.check_room(queue, state, group, where)
        return await self._mass.apply("archive", queue, state, group, where, progress, stop)

    async def delete_all(
        self,
        queue: str,
        state: State | str,
        *,
        group: str | None = None,
        where: Query | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Bulk:
        """Delete all tasks of one state, or those that fit `where`, in small portions."""
        state = checked(state, _DELETABLE)
        await self._known(queue, group)
        return await self._mass.apply("delete", queue, state, group, where, progress, stop)

    async def cancel_all(
        self,
        queue: str,
        *,
        then: str = "archive",
        where: Query | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Bulk:
        """Cancel every running task of a queue, each as `cancel` does."""
        check_then(then)
        await self._known(queue)
        walk, told = Walk(self._tasks, queue, "active"), 0
        while (page := await walk.next()) is not None:
            fitting = [task.id for task in page.tasks if where is None or where.matches(task)]
            told += sum(map(bool, await asyncio.gather(*[self._cancel(queue, one, then) for one in fitting])))
            if progress is not None:
                progress(min(walk.scanned, walk.total), walk.total)
            if stop is not None and stop.is_set():
                return Bulk(told, walk.total, stopped=walk.scanned < walk.total)
        return Bulk(told, walk.total)

    async def _row(self, queue: str, task_id: str, *, search: bool = True) -> Row:
        return task_id, await self._tasks.place(queue, task_id) if search else None

    async def _done(self, verb: str, code: int, queue: str, task_id: str) -> None:
        if code == NO_TASK:
            raise await self._no_task(queue, task_id)
        if code != DONE:
            raise refusal(verb, code, queue, task_id)
