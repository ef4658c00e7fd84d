"""Reports: writes the progress and results that a running handler reports, if its worker still owns the task."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from veredus.client.children import ChildSender
from veredus.clock import Clock
from veredus.errors import LeaseLost, StoreError
from veredus.events import Bus
from veredus.handlers.durable_run import DurableRun, Surroundings
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.request_answers import RequestAnswers, RequestClient
from veredus.model.backoff import Backoff
from veredus.model.durable import Wait
from veredus.model.job import Job
from veredus.model.task_status import write_progress
from veredus.process import forks
from veredus.store.store import Store
from veredus.wire.results import check_size

if TYPE_CHECKING:
    from veredus.handlers.context import Context

logger = logging.getLogger("veredus.worker")

EVERY = 0.1
"""Seconds between two writes of one task's progress. Of several reports in between, the last one is written."""
MOST_BETWEEN = 1.0
"""The longest pause before a failed write is repeated, in seconds."""
LAST = 2.0
"""Seconds that a settlement waits for the last report. Without Redis, neither can be written."""


class _AttemptReports:
    """The reports of one attempt."""

    __slots__ = ("has_ended", "is_due", "job", "owner", "sent_at", "timer", "unsent", "writing")

    def __init__(self, job: Job, owner: str) -> None:
        self.job = job
        self.owner = owner
        self.sent_at = -EVERY
        self.unsent: bytes | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.writing: asyncio.Task[None] | None = None
        self.is_due = False
        """Whether the unsent report is written right after the current write."""
        self.has_ended = False


class Reports:
    """Used on the worker's loop; the `_sync` methods may be called from threads. Reporting progress never raises a
    store error and never waits for Redis."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        requests: RequestAnswers,
        *,
        max_result: int,
        threads: ThreadPool,
        on_park: Callable[[Context], None],
        children: ChildSender,
        bus: Bus,
        max_run_age: float,
    ) -> None:
        """`threads` run steps that are not async. `on_park`: this handler waits for something, and is to leave."""
        self._bus = bus
        self._max_run_age_ms = round(max_run_age * 1000)
        self.crash: Callable[[Context, str, str, int], bool] | None = None
        """In tests: see `Surroundings.crash`."""
        self._threads = threads
        self.children = children
        self._store = store
        self._results = store.results
        self._on_park = on_park
        self._requests = requests
        self.max_result = max_result
        """Bytes that a result may have."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._reports: dict[tuple[str, str], _AttemptReports] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def progress(self, job: Job, owner: str, share: float, note: str) -> None:
        forks.require(self._pid, "progress()")
        if self._note(job, owner, write_progress(share, note, self._clock.time())):
            await asyncio.sleep(0)  # sends it now, even if the handler never awaits anything else

    def progress_sync(self, job: Job, owner: str, share: float, note: str) -> None:
        forks.require(self._pid, "progress_sync()")
        data = write_progress(share, note, self._clock.time())
        self._loop.call_soon_threadsafe(self._note, job, owner, data)

    async def write_result(self, job: Job, owner: str, data: bytes) -> None:
        forks.require(self._pid, "write_result()")
        check_size(data, self.max_result, job.type)
        if not await self._results.write(job.queue, job.id, owner, data):
            raise LeaseLost(f"this worker no longer owns task {job.id}: its result was not written")

    def log(self, context: Context, text: str) -> None:
        forks.require(self._pid, "log()")
        context.add_line(self._clock.time(), text)

    def client_of(self, job: Job) -> RequestClient:
        return self._requests.client_of(job, self._loop)

    def wait_for(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """For threads: run a coroutine on the worker's loop and wait for it."""
        if os.getpid() != self._pid:
            coroutine.close()
            forks.require(self._pid, "write_result_sync()")
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def durable_run(self, context: Context, owner: str) -> DurableRun:
        forks.require(self._pid, "a durable call")

        def park(wait: Wait) -> None:
            context.wait = wait
            self._on_park(context)

        crash = None if self.crash is None else functools.partial(self.crash, context)
        around = Surroundings(self._clock, park, self._threads.submit, self._bus.emit, self._max_run_age_ms, crash)
        return DurableRun(self._store, context.job, owner, around)

    def run_blocking(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """For threads: the result of a coroutine that runs on the worker's loop."""
        if os.getpid() != self._pid:
            coroutine.close()
            forks.require(self._pid, "a durable call")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def finish(self, job: Job, owner: str) -> None:
        """Write the last report of an attempt before its settlement: Redis would refuse it afterwards."""
        report = self._reports.pop((job.id, owner), None)
        if report is not None:
            report.has_ended = True
            if report.timer is not None:
                report.timer.cancel()
            if report.unsent is not None:
                self._send(report)
            if report.writing is not None and not report.writing.done():
                # It must be executed, not only sent: an unknown script needs a second call.
                await asyncio.wait({report.writing}, timeout=LAST)

    def _note(self, job: Job, owner: str, data: bytes) -> bool:
        """Keep a report; returns whether it is sent now."""
        report = self._reports.get((job.id, owner))
        if report is None:
            report = self._reports[(job.id, owner)] = _AttemptReports(job, owner)
        report.unsent = data
        if report.timer is not None:
            return False
        wait = report.sent_at + EVERY - self._clock.monotonic()
        if wait > 0:
            report.timer = self._loop.call_later(wait, self._send, report)
            return False
        self._send(report)
        return True

    def _send(self, report: _AttemptReports) -> None:
        """Write one report at a time: a repeated older write must not overwrite a newer report."""
        report.timer = None
        if report.writing is not None and not report.writing.done():
            report.is_due = True
            return
        report.writing = self._loop.create_task(self._write(report, self._take(report)))
        self._writing.add(report.writing)
        report.writing.add_done_callback(self._writing.discard)

    def _take(self, report: _AttemptReports) -> bytes:
        data, report.unsent, report.is_due = report.unsent, None, False
        if data is None:
            raise RuntimeError("there is no report to send")
        report.sent_at = self._clock.monotonic()
        return data

    async def _write(self, report: _AttemptReports, data: bytes) -> None:
        backoff = Backoff(EVERY, MOST_BETWEEN)
        while True:
            try:
                await self._results.progress(report.job.queue, report.job.id, report.owner, data)
                backoff = Backoff(EVERY, MOST_BETWEEN)
            except StoreError as exc:
                logger.debug("progress of task %s was not written: %s", report.job.id, exc)
                if not report.has_ended:
                    await asyncio.sleep(backoff.take())
                    report.unsent = data if report.unsent is None else report.unsent  # unless there is a newer one
                    report.is_due = True
            if not report.is_due:
                return
            data = self._take(report)
