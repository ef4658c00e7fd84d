"""The desk where handles ask: results, status, progress and cancelling, over the connections of the calling loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from veredus.clock import SYSTEM, Clock
from veredus.errors import ResultGone, TaskCancelled, TaskFailed
from veredus.model.ending import CancelOutcome, Progress, Status, check_then, read_progress
from veredus.model.failure import read_traceback
from veredus.model.verdict import CANCELED
from veredus.store import results
from veredus.store.results import Sight
from veredus.wire.messages import UndecodableMessage, cancelled, decode_task
from veredus.wire.results import Decode, result_decoder

if TYPE_CHECKING:
    from veredus.client.blocking import BlockingPortal
    from veredus.client.client import Client
    from veredus.client.handle import Handle

T = TypeVar("T")
Find = Callable[[str], Callable[..., Any] | None]


class Desk:
    """One per app. `client` gives the client of the running loop, `find` the function behind a task's type."""

    def __init__(self, client: Callable[[], Client], portal: BlockingPortal, find: Find, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._portal = portal
        self._find = find
        self._clock = clock
        self._decoders: dict[str, Decode] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """For synchronous callers."""
        return self._portal.run(coroutine)

    async def result(self, handle: Handle[Any], timeout: float | timedelta | None) -> Any:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        message = b""
        try:
            async with asyncio.timeout(seconds), aclosing(self._sights(handle)) as sights:
                async for sight in sights:
                    message = sight.message or message
        except TimeoutError:
            text = f"task {handle.id} has not ended within {seconds} s; it goes on"
            raise TimeoutError(text) from None
        return self._value(handle, sight, message)

    async def status(self, handle: Handle[Any]) -> Status:
        sight = await self._client().store.results.look(handle.queue, handle.id)
        if sight.state == results.GONE:
            return Status(results.GONE)
        progress = read_progress(sight.progress)
        try:
            message = decode_task(sight.message)
        except UndecodableMessage as exc:
            return Status(sight.state, error=str(exc), progress=progress, cancelling=sight.cancel)
        trace = read_traceback(message.last_failed_at, message.retried, sight.traceback)
        return Status(sight.state, message.retried, message.retry, message.error_msg, progress, sight.cancel, trace)

    async def progress(self, handle: Handle[Any]) -> AsyncIterator[Progress]:
        last: Progress | None = None
        async with aclosing(self._sights(handle)) as sights:
            async for sight in sights:
                step = read_progress(sight.progress) if sight.progress else None
                # A look may bring what was heard before, or be overtaken by what was reported after it.
                if step is not None and (last is None or (step != last and step.at >= last.at)):
                    last = step
                    yield step

    async def cancel(self, queue: str, task_id: str, then: str) -> CancelOutcome:
        store = self._client().store
        reword = functools.partial(cancelled, now=self._clock.time())
        return CancelOutcome(await store.cancels.cancel(queue, task_id, check_then(then), reword))

    def _sights(self, handle: Handle[Any]) -> Any:
        return self._client().listener.sights(handle.queue, handle.id)

    def _value(self, handle: Handle[Any], end: Sight, message: bytes) -> Any:
        """What an end means to the one who waited for it."""
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


def _error_of(end: Sight) -> tuple[str, str]:
    """The last error, and its traceback."""
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
