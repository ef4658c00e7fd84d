"""DurableRun: what one attempt of a durable task does: steps that run until they have succeeded once, and waits without
a worker."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from veredus.clock import Clock
from veredus.errors import ConnectionLost, LeaseLost, NotReady, RunTooOld, ServerFull, StepResultError
from veredus.events import Event, TaskParked, TaskWoken
from veredus.model.backoff import Backoff
from veredus.model.durable import (
    ALL_THERE,
    BEGAN,
    EVENT,
    FAILED,
    GATHER,
    KEPT,
    MOST_FIELDS,
    SLEEP,
    STEP,
    CallNames,
    FanOutRecord,
    OpenCalls,
    Wait,
    check_durable_name,
    child_id,
    is_outcome,
    natural,
    shown_name,
)
from veredus.model.job import Job
from veredus.model.options import seconds
from veredus.model.run_info import read_waiting
from veredus.store.store import Store
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.emitted import Waiter
from veredus.store.tasks.runs import KidRow, OpenedRun, StepRow

logger = logging.getLogger("veredus.worker")

T = TypeVar("T")


class HandlerParked(BaseException):
    """Raised in the thread of a handler that waits: it unwinds, and begins again when what it waits for has come."""


class Surroundings(NamedTuple):
    """What a run needs of its worker."""

    clock: Clock
    park: Callable[[Wait], None]
    """Tells the attempt that its handler is leaving the worker."""
    run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]
    """Runs a function in a thread."""
    tell: Callable[[Event], None]
    max_age_ms: int = 0
    """A run that began longer ago is archived; 0 for never."""
    crash: Callable[[str, str, int], bool] | None = None
    """In tests: called `inside` each step before its result is written, and `after` each durable call, with its name
    and number. If it returns True, the worker crashes there."""


class DurableRun:
    """One attempt. Used on the worker's loop."""

    def __init__(self, store: Store, job: Job, owner: str, around: Surroundings) -> None:
        self.store = store
        self.job = job
        self.owner = owner
        self._around = around
        self.run_sync, self.tell = around.run_sync, around.tell
        self.fields: dict[str, bytes] = {}
        self._failures: dict[str, bytes] = {}
        """Failed steps that the handler has caught: they are stored with its next write."""
        self.names, self.open_calls = CallNames(), OpenCalls()
        self._opening: asyncio.Task[None] | None = None
        self._now_ms = self._began_ms = 0
        self._seen_at = 0.0
        """When the server said `_now_ms`, on the monotonic clock."""
        self._leaving: set[asyncio.Future[None]] = set()
        self._is_lost = False
        self.mark = ""
        self.order_key = ""
        self.fan_outs: dict[str, FanOutRecord] = {}
        """Those that this attempt knows of, by name."""
        self.parking = False
        self._passed = 0
        self._has_crashed = False

    def now_us(self) -> int:
        """The server's Unix microseconds, or a little less: what begins later never seems to have begun before."""
        return self._now_ms * 1000 + int((self._around.clock.monotonic() - self._seen_at) * 1e6)

    def _observe(self, now_ms: int) -> None:
        self._now_ms, self._seen_at = now_ms, self._around.clock.monotonic()

    def keep_failure(self, field: str, record: bytes) -> None:
        """A step has failed: if the handler goes on, that is stored with its next write."""
        self._failures[field] = record

    def inside(self, field: str) -> None:
        """The effect of a step has happened, and its result is not written yet."""
        if self._around.crash is not None:
            self._crash("inside", field)

    def passed(self, field: str) -> None:
        """A durable call returns."""
        if self._around.crash is not None:
            self._passed += 1
            self._crash("after", field)

    def _crash(self, where: str, field: str) -> None:
        if self._around.crash is not None and self._around.crash(where, shown_name(field), self._passed):
            self._has_crashed = True
            raise HandlerParked("the test ended its worker here")

    # Waits. Each returns its outcome, or None once the attempt knows that the handler leaves.

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
                self.check_room(field)
                ends = await self._note_wait(field, ms)
            if int(ends) <= self._now_ms:
                self.passed(field)
                return KEPT
            await self.leave(Wait("sleep", int(ends), field))
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
                self.check_room(field)
                value = await self._note_wait(field, ms)
            if not is_outcome(value):
                waiter = Waiter(self.job.queue, self.job.id, self.mark, field)
                event = await self.insist(lambda: self.store.emitted.listen(name, waiter))
                if event or 0 < int(value) <= self._now_ms:
                    value = await self._note_wait(field, ms, event or b"")
            if is_outcome(value):
                self.passed(field)
                return value
            await self.leave(Wait("event", int(value), field))
            return None
        finally:
            self.open_calls.leave(field, is_wait=True)

    async def _note_wait(self, field: str, delay_ms: int, outcome: bytes = b"") -> bytes:
        """Store when a wait ends, or its outcome; what was stored first counts."""
        await self.write({})
        job, runs = self.job, self.store.runs
        now_ms, value = await self.insist(
            lambda: runs.wait(
                job.queue, job.id, self.owner, field, delay_ms, outcome, times_out=field.startswith(EVENT)
            )
        )
        self._observe(now_ms)
        if not value:
            self.lose()
        self.fields[field] = value
        return value

    async def leave(self, wait: Wait) -> None:
        """Keep the failures that the handler has caught, and tell the attempt that it leaves."""
        await self.write({})
        last = self._began_ms + self._around.max_age_ms
        if self._around.max_age_ms and not 0 < wait.ends <= last:
            wait = wait._replace(ends=last)  # a look at that instant archives it
        self.parking = True
        self.tell(TaskParked(self.job.queue, self.job.type, wait.kind))
        self._around.park(wait)

    async def left(self) -> None:
        """Until the handler is cancelled, because its attempt ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.add(future)
        await future

    def end(self) -> None:
        """The handler has ended: asyncio tasks that it has started must not wait for ever."""
        for future in self._leaving:
            future.cancel()

    # The store.

    async def check_alive(self, name: str) -> None:
        if self._has_crashed:
            raise HandlerParked(name)
        if self.parking:
            await asyncio.sleep(0)  # a loop that catches everything must not block the event loop
            raise asyncio.CancelledError(
                f"{name!r}: this handler is leaving its worker, because it already waits for something"
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
            self._observe(opened.now_ms)
            self.mark, self.order_key = opened.mark, opened.order_key
            self._note_wake(opened)
            self._began_ms = natural(opened.fields.get(BEGAN, b"")) or opened.now_ms
            self._check_age()
            self.fields = {field: value for field, value in opened.fields.items() if not field.startswith(BEGAN)}
            if opened.was_archived:
                await self._forget_failures()

    def _check_age(self) -> None:
        age, most = self._now_ms - self._began_ms, self._around.max_age_ms
        if most and age >= most:
            raise RunTooOld(f"this run began {age / 1000:,.0f} s ago; the limit is {most / 1000:,.0f} s")

    def _note_wake(self, opened: OpenedRun) -> None:
        """Tell how long after the end of its wait the handler runs again."""
        wait = read_waiting(opened.woke)
        if wait is None:
            return
        field = wait.field if wait.kind != "children" else GATHER + wait.field[len(ALL_THERE) :]
        came = opened.fields.get(BEGAN + field, b"").split(b" ")[1:]
        ended = natural(came[0]) if came else wait.ends
        if ended:
            late = max(0, opened.now_ms - ended) / 1000
            self.tell(TaskWoken(self.job.queue, self.job.type, wait.kind, late))

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
        job, queues = self.job, record.queue_of()
        failed, start = list[int](), 0
        while start < record.size:
            outcomes, start = await self.insist(
                partial(self.store.runs.outcomes, job.queue, job.id, self.mark, name, start, record.size)
            )
            failed += [position for position, outcome in outcomes.items() if outcome[:1] == FAILED]
        children = [
            ChildTask(queues[at], child_id(job.id, self.mark, name, at), job.queue, job.id, self.mark, name, at)
            for at in failed
        ]
        await self.insist(lambda: self.store.children.run_again(children))
        return [KidRow(name, position) for position in failed]

    def check_room(self, field: str) -> None:
        """Raises StepResultError if the task keeps so much already that it may begin nothing more."""
        if len(self.fields) >= MOST_FIELDS:
            raise StepResultError(
                f"{shown_name(field)!r}: a task keeps {MOST_FIELDS:,} steps and waits; end a long loop by enqueueing "
                "the next task in a step"
            )

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
        """Repeat a call that is safe to repeat, until it is answered or until the deadline ends the attempt."""
        backoff = Backoff()
        while True:
            try:
                return await call()
            except (ConnectionLost, NotReady, ServerFull):
                await asyncio.sleep(backoff.take())

    def lose(self) -> None:
        self._is_lost = True
        raise LeaseLost(f"this worker no longer owns task {self.job.id}: it keeps no more steps or waits")


def _seen(opening: asyncio.Task[None]) -> None:
    """Its error is raised in those that wait for it. Without any, asyncio would log it."""
    if not opening.cancelled():
        opening.exception()
