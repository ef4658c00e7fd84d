"""DurableRun: what one attempt of a durable task does: steps that run until they have succeeded once, and waits without
a worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from veredus.errors import (
    ConnectionLost,
    LeaseLost,
    NotReady,
    PayloadError,
    ResultError,
    RevokeTask,
    ServerFull,
    SkipRetry,
    StepFailed,
    StepResultError,
)
from veredus.model.backoff import Backoff
from veredus.model.durable import (
    ALL_THERE,
    EVENT,
    FAILED,
    GATHER,
    KEPT,
    LARGEST_RESULT,
    MOST_FIELDS,
    SLEEP,
    STEP,
    CallNames,
    FanOutRecord,
    OpenCalls,
    Wait,
    check_durable_name,
    child_id,
    failure_record,
    identity,
    is_outcome,
    read_failure,
    shown_name,
    step_name,
)
from veredus.model.failure import describe
from veredus.model.job import Job
from veredus.model.options import seconds
from veredus.store.store import Store
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.emitted import Waiter
from veredus.store.tasks.runs import KidRow, StepRow
from veredus.wire.results import Decode, encode_result, result_decoder

logger = logging.getLogger("veredus.worker")

T = TypeVar("T")

STEP_KEY: ContextVar[str] = ContextVar("veredus_step_key")


class HandlerParked(BaseException):
    """Raised in the thread of a handler that waits: it unwinds, and begins again when what it waits for has come."""


class DurableRun:
    """One attempt. Used on the worker's loop; `park` tells the attempt that its handler leaves."""

    def __init__(
        self,
        store: Store,
        job: Job,
        owner: str,
        park: Callable[[Wait], None],
        run_sync: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """`run_sync` runs a function in a thread."""
        self.store = store
        self._run_sync = run_sync
        self.job = job
        self.owner = owner
        self._park = park
        self.fields: dict[str, bytes] = {}
        self._failures: dict[str, bytes] = {}
        """Failed steps that the handler has caught: they are stored with its next write."""
        self.names, self.open_calls = CallNames(), OpenCalls()
        self._opening: asyncio.Task[None] | None = None
        self._now_ms = 0
        self._leaving: set[asyncio.Future[None]] = set()
        self._is_lost = False
        self.mark = ""
        self.order_key = ""
        self.fan_outs: dict[str, FanOutRecord] = {}
        """Those that this attempt knows of, by name."""
        self.parking = False

    # Steps.

    async def step(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        name: str | None,
        retries: int,
        delay: float | timedelta,
    ) -> Any:
        """Run it unless it has succeeded before; its result as it was kept."""
        given = step_name(function) if name is None else check_durable_name("name", name)
        pause = seconds("delay", delay)
        await self.check_alive(given)
        field = self.names.take(STEP, given, identity(function))
        self.open_calls.enter(field, is_named=name is not None, is_wait=False)
        try:
            await self.read()
            kept = self.fields.get(field)
            if kept is None:
                kept = await self._run_step(field, function, args, retries, pause)
            if kept[:1] == FAILED:
                raise StepFailed(shown_name(field), *read_failure(kept))
            return _decoded(shown_name(field), function, kept)
        finally:
            self.open_calls.leave(field, is_wait=False)

    async def _run_step(
        self,
        field: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        retries: int,
        pause: float,
    ) -> bytes:
        if len(self.fields) >= MOST_FIELDS:
            raise StepResultError(
                f"step {shown_name(field)!r}: a task keeps {MOST_FIELDS:,} steps and waits; end a long loop by "
                "enqueueing the next task in a step"
            )
        token = STEP_KEY.set(f"{self.job.id}:{self.mark}:{shown_name(field)}")
        try:
            value = await self._try_step(function, args, retries, pause)
        except (SkipRetry, RevokeTask, StepFailed, LeaseLost):
            raise
        except Exception as exc:
            self._failures[field] = failure_record(type(exc).__name__, describe(exc).partition(": ")[2])
            raise StepFailed(shown_name(field), *read_failure(self._failures[field])) from exc
        finally:
            STEP_KEY.reset(token)
        kept = KEPT + _encoded(shown_name(field), value)
        await self.write({field: kept})
        return kept

    async def _try_step(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        retries: int,
        pause: float,
    ) -> Any:
        for tries_left in range(retries, -1, -1):
            try:
                if inspect.iscoroutinefunction(_plain(function)):
                    return await function(*args)
                value = await self._run_sync(lambda: function(*args))
                return await value if inspect.isawaitable(value) else value
            except (SkipRetry, RevokeTask, StepFailed, LeaseLost):
                raise
            except Exception:
                if not tries_left:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    # Waits. Each returns its outcome, or None after it has told the attempt that the handler leaves.

    async def sleep(self, name: str, duration: float | timedelta) -> bytes | None:
        """The end of a sleep is stored once, by the server's clock."""
        ms = math.ceil(round(seconds("duration", duration) * 1000, 6))
        await self.check_alive(check_durable_name("name", name))
        field = self.names.take(SLEEP, name)
        self.open_calls.enter(field, is_named=True, is_wait=True)
        try:
            await self.read()
            ends = self.fields.get(field)
            if ends is None:
                ends = await self._note_wait(field, ms)
            if int(ends) <= self._now_ms:
                return KEPT
            self.leave(Wait("sleep", int(ends), field))
            return None
        finally:
            self.open_calls.leave(field, is_wait=True)

    async def wait_for(self, name: str, timeout: float | timedelta | None) -> bytes | None:
        """The event, or `-` after the timeout."""
        ms = -1 if timeout is None else math.ceil(round(seconds("timeout", timeout) * 1000, 6))
        await self.check_alive(check_durable_name("event", name))
        field = self.names.take(EVENT, name)
        self.open_calls.enter(field, is_named=True, is_wait=True)
        try:
            await self.read()
            value = self.fields.get(field)
            if value is None:
                value = await self._note_wait(field, ms)
            if not is_outcome(value):
                waiter = Waiter(self.job.queue, self.job.id, self.mark, field)
                event = await self.insist(lambda: self.store.emitted.listen(name, waiter))
                if event or 0 < int(value) <= self._now_ms:
                    value = await self._note_wait(field, ms, event or b"")
            if is_outcome(value):
                return value
            self.leave(Wait("event", int(value), field))
            return None
        finally:
            self.open_calls.leave(field, is_wait=True)

    async def _note_wait(self, field: str, delay_ms: int, outcome: bytes = b"") -> bytes:
        """Store when a wait ends, or its outcome; what was stored first counts."""
        await self.write({})
        job, runs = self.job, self.store.runs
        self._now_ms, value = await self.insist(
            lambda: runs.wait(
                job.queue, job.id, self.owner, field, delay_ms, outcome, times_out=field.startswith(EVENT)
            )
        )
        if not value:
            self.lose()
        self.fields[field] = value
        return value

    def leave(self, wait: Wait) -> None:
        self.parking = True
        self._park(wait)

    async def left(self) -> None:
        """Until the handler is cancelled, because its attempt ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.add(future)
        await future

    def end(self) -> None:
        """The handler has ended: what it has left behind in asyncio tasks of its own must not wait for ever."""
        for future in self._leaving:
            future.cancel()

    # The store.

    async def check_alive(self, name: str) -> None:
        if self.parking:
            await asyncio.sleep(0)  # a loop that catches everything must not block the event loop
            raise asyncio.CancelledError(
                f"{name!r}: this handler is leaving its worker, because it waits for something"
            )
        if self._is_lost:
            self.lose()

    async def read(self) -> None:
        """Read what earlier attempts kept, once."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open_run())
            self._opening.add_done_callback(_seen)
        if not self._opening.done():
            await asyncio.shield(self._opening)
        self._opening.result()

    async def _open_run(self) -> None:
        job, mark = self.job, secrets.token_hex(5)
        opened = await self.insist(lambda: self.store.runs.open(job.queue, job.id, self.owner, mark))
        if opened is None:
            self.lose()
        else:
            self._now_ms, self.mark, self.fields = opened.now_ms, opened.mark, opened.fields
            self.order_key = opened.order_key
            if opened.was_archived:
                await self._forget_failures()

    async def _forget_failures(self) -> None:
        """It was archived and is run again: failed steps run again, and children that are still archived."""
        steps = [field for field, value in self.fields.items() if field.startswith(STEP) and value[:1] == FAILED]
        kids: list[KidRow] = []
        for field, value in self.fields.items():
            if field.startswith(GATHER):
                kids += await self._rerun_children(field[len(GATHER) :], FanOutRecord.unpack(value))
        job = self.job
        if not await self.insist(lambda: self.store.runs.retake(job.queue, job.id, self.owner, steps, kids)):
            self.lose()
        for field in (*steps, *[ALL_THERE + kid.name for kid in kids]):
            self.fields.pop(field, None)

    async def _rerun_children(self, name: str, record: FanOutRecord) -> list[KidRow]:
        job = self.job
        kids = await self.insist(lambda: self.store.runs.kids(job.queue, job.id, self.mark, name, record.size))
        failed, queues = [position for position, outcome in kids.items() if outcome[:1] == FAILED], record.queue_of()
        children = [
            ChildTask(queues[at], child_id(job.id, self.mark, name, at), job.queue, job.id, self.mark, name, at)
            for at in failed
        ]
        await self.insist(lambda: self.store.children.run_again(children))
        return [KidRow(name, position) for position in failed]

    async def write(self, fields: dict[str, bytes]) -> None:
        """Store fields, and before them the failures that the handler has caught."""
        failures, self._failures = self._failures, {}
        new = {**failures, **fields}
        if not new:
            return
        rows = [StepRow(self.job.id, self.owner, field, value) for field, value in new.items()]
        if not await self.insist(lambda: self.store.runs.write(self.job.queue, rows)):
            self.lose()
        self.fields.update(new)

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it is answered, or until the attempt is ended by its deadline. Each may be repeated."""
        backoff = Backoff()
        while True:
            try:
                return await call()
            except (ConnectionLost, NotReady, ServerFull):
                await asyncio.sleep(backoff.take())

    def lose(self) -> None:
        self._is_lost = True
        raise LeaseLost(f"this worker no longer owns task {self.job.id}: nothing more is kept for it here")


def _seen(opening: asyncio.Task[None]) -> None:
    """Whoever waits for it gets its error; nobody may be left."""
    if not opening.cancelled():
        opening.exception()


def _encoded(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    try:
        data = b"b" + value if isinstance(value, bytes) else b"j" + encode_result(value, f"step {name}")
    except ResultError as exc:
        raise StepResultError(f"step {name!r}: {exc}") from exc
    if len(data) > LARGEST_RESULT:
        raise StepResultError(
            f"step {name!r} returned {len(data):,} bytes, {LARGEST_RESULT:,} can be kept: store large data elsewhere "
            "and return its address"
        )
    return data


def _decoded(name: str, function: Callable[..., Any], kept: bytes) -> Any:
    """As the function's annotation says, the first time and at each replay."""
    if len(kept) == 1:
        return None
    if kept[1:2] == b"b":
        return kept[2:]
    try:
        return _decoder(_plain(function))(kept[2:])
    except PayloadError as exc:
        raise StepResultError(f"step {name!r}: what was kept no longer fits what it returns: {exc}") from exc


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside a task or a partial."""
    inner: Callable[..., Any] = inspect.unwrap(getattr(function, "func", function))
    return inner


@lru_cache(256)
def _decoder(function: Callable[..., Any]) -> Decode:
    return result_decoder(function)
