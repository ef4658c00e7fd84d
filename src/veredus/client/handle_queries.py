"""Answers the questions of handles (results, status, progress, cancelling) over the connections of the calling loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from veredus.clock import SYSTEM, Clock
from veredus.errors import ConfigError, ResultGone, TaskCancelled, TaskFailed
from veredus.model.attempts import AttemptInfo
from veredus.model.failure import read_traceback
from veredus.model.run_info import RunInfo
from veredus.model.task_status import CancelOutcome, Progress, Status, check_children, check_then, read_progress
from veredus.model.verdict import CANCELED
from veredus.store.inspect.durable_runs import DurableRunReader
from veredus.store.inspect.queues import Queues
from veredus.store.inspect.tasks import Tasks
from veredus.store.tasks import results
from veredus.store.tasks.attempts import Attempts
from veredus.store.tasks.results import TaskReport
from veredus.wire.messages import UndecodableMessage, cancelled, decode_task
from veredus.wire.results import Decode, result_decoder

if TYPE_CHECKING:
    from veredus.client.blocking_portal import BlockingPortal
    from veredus.client.client import Client
    from veredus.client.handle import Handle

T = TypeVar("T")
Find = Callable[[str], Callable[..., Any] | None]


class HandleQueries:
    """One per app. `client` returns the client of the running loop, `find` the function for a task's type."""

    def __init__(
        self,
        client: Callable[[], Client],
        portal: BlockingPortal,
        find: Find,
        clock: Clock = SYSTEM,
        default_queue: str = "default",
    ) -> None:
        self._client = client
        self._portal = portal
        self._find = find
        self._clock = clock
        self._default_queue = default_queue
        self._decoders: dict[str, Decode] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for a synchronous caller."""
        return self._portal.run(coroutine)

    async def queue_of(self, handle: Handle[Any]) -> str:
        """The queue of a handle's task. Of an unknown one the queue that has it now, or the app's own if none has.
        Raises ConfigError if several have a task with this id."""
        if handle.queue:
            return handle.queue
        redis = self._client().store.redis
        queues = await Queues(redis).names()
        known = await Tasks(redis).known_in(queues, handle.id)
        found = [queue for queue, has in zip(queues, known, strict=True) if has]
        if len(found) > 1:
            raise ConfigError("queue", None, f"one of {', '.join(found)}: each has a task {handle.id!r}")
        return found[0] if found else self._default_queue

    async def result(self, handle: Handle[Any], timeout: float | timedelta | None) -> Any:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        message = b""
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self._sights(await self.queue_of(handle), handle.id)) as sights,
            ):
                async for sight in sights:
                    message = sight.message or message
        except TimeoutError:
            text = f"task {handle.id} has not ended within {seconds} s; it goes on"
            raise TimeoutError(text) from None
        return self._value(handle, sight, message)

    async def status(self, handle: Handle[Any]) -> Status:
        sight = await self._client().store.results.look(await self.queue_of(handle), handle.id)
        if sight.state == results.GONE:
            return Status(results.GONE)
        progress = read_progress(sight.progress)
        try:
            message = decode_task(sight.message)
        except UndecodableMessage as exc:
            return Status(sight.state, error=str(exc), progress=progress, cancelling=sight.cancel)
        trace = read_traceback(message.last_failed_at, message.retried, sight.traceback)
        return Status(sight.state, message.retried, message.retry, message.error_msg, progress, sight.cancel, trace)

    async def attempts(self, handle: Handle[Any]) -> list[AttemptInfo]:
        return await Attempts(self._client().store.redis).of(await self.queue_of(handle), handle.id) or []

    async def durable_run(self, handle: Handle[Any]) -> RunInfo | None:
        return await DurableRunReader(self._client().store.redis).of(await self.queue_of(handle), handle.id)

    async def progress(self, handle: Handle[Any]) -> AsyncIterator[Progress]:
        last: Progress | None = None
        async with aclosing(self._sights(await self.queue_of(handle), handle.id)) as sights:
            async for sight in sights:
                step = read_progress(sight.progress) if sight.progress else None
                # A read may repeat an earlier report, or be overtaken by a later one.
                if step is not None and (last is None or (step != last and step.at >= last.at)):
                    last = step
                    yield step

    async def cancel(self, handle: Handle[Any], then: str, children: str = "cancel") -> CancelOutcome:
        with_children, store = check_children(children), self._client().store
        queue, action = await self.queue_of(handle), check_then(then)
        reword = functools.partial(cancelled, now=self._clock.time())
        found = await store.cancels.cancel(queue, handle.id, action, reword, with_children=with_children)
        if found.has_children:
            await store.orphans.cancel(queue, reword)
        return CancelOutcome(found.outcome)

    def _sights(self, queue: str, task_id: str) -> Any:
        return self._client().listener.sights(queue, task_id)

    def _value(self, handle: Handle[Any], end: TaskReport, message: bytes) -> Any:
        """Turn the end of a task into the result or the exception of a waiting caller."""
        name = f"task {handle.id} ({handle.type})" if handle.type else f"task {handle.id}"
        if end.state == results.DONE or (end.state == results.COMPLETED and end.result is None):
            return None
        if end.state == results.COMPLETED:
            return self._decoder(handle.type or _type_of(message))(end.result or b"")
        if end.state == results.ARCHIVED:
            reason, trace = _error_of(end)
            kind = TaskCancelled if reason == CANCELED else TaskFailed
            raise kind(f"{name} was archived: {reason}", task_id=handle.id, error=reason, traceback=trace)
        if end.state == results.CANCELLED:
            raise TaskCancelled(f"{name} was deleted before it had ended", task_id=handle.id, error=CANCELED)
        if end.state == results.EXPIRED:
            raise TaskFailed(f"{name} expired before it could begin", task_id=handle.id)
        raise ResultGone(f"{name} is gone, and with it whatever it returned")

    def _decoder(self, task_type: str) -> Decode:
        decoder = self._decoders.get(task_type)
        if decoder is None:
            decoder = self._decoders[task_type] = result_decoder(self._find(task_type))
        return decoder


def _error_of(end: TaskReport) -> tuple[str, str]:
    """The last error and its traceback."""
    try:
        message = decode_task(end.message)
    except UndecodableMessage as exc:
        return str(exc), ""
    return message.error_msg, read_traceback(message.last_failed_at, message.retried, end.traceback)


def _type_of(data: bytes) -> str:
    try:
        return decode_task(data).type
    except UndecodableMessage:
        return ""
