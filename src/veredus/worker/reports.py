"""Reports: what a handler says of its task while it runs goes to Redis here, if the task is still its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from veredus import forks
from veredus.clock import Clock
from veredus.errors import LeaseLost, StoreError
from veredus.model.ending import write_progress
from veredus.model.job import Job
from veredus.store.results import Results
from veredus.wire.results import check_size
from veredus.worker.requests import RequestClient, Requests

logger = logging.getLogger("veredus.worker")

EVERY = 0.1
"""Seconds between two writes of one task's progress; of several in between, the last one counts."""
MOST_BETWEEN = 1.0
"""Seconds after which a report that could not be written is tried again, at most."""
LAST = 2.0
"""Seconds for which the end of a task waits for its last report: without Redis, neither can be written."""


class _Pen:
    """What one attempt has reported."""

    __slots__ = ("has_ended", "is_due", "job", "owner", "sent_at", "timer", "unsent", "writing")

    def __init__(self, job: Job, owner: str) -> None:
        self.job = job
        self.owner = owner
        self.sent_at = -EVERY
        self.unsent: bytes | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.writing: asyncio.Task[None] | None = None
        self.is_due = False
        """Whether the unsent report leaves as soon as the one before is written."""
        self.has_ended = False


class Reports:
    """Belongs to the worker's loop; the `_sync` methods may be called from threads. Progress never fails a handler and
    never makes it wait for Redis."""

    def __init__(self, results: Results, clock: Clock, requests: Requests, *, max_result: int) -> None:
        self._results = results
        self._max_result = max_result
        self.requests = requests
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._pens: dict[tuple[str, str], _Pen] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def progress(self, job: Job, owner: str, share: float, note: str) -> None:
        forks.require(self._pid, "progress()")
        if self._note(job, owner, write_progress(share, note, self._clock.time())):
            await asyncio.sleep(0)  # so that it leaves now, also if the handler never waits for anything else

    def progress_sync(self, job: Job, owner: str, share: float, note: str) -> None:
        forks.require(self._pid, "progress_sync()")
        data = write_progress(share, note, self._clock.time())
        self._loop.call_soon_threadsafe(self._note, job, owner, data)

    async def write_result(self, job: Job, owner: str, data: bytes) -> None:
        forks.require(self._pid, "write_result()")
        check_size(data, self._max_result, job.type)
        if not await self._results.write(job.queue, job.id, owner, data):
            raise LeaseLost(f"task {job.id} is no longer ours: its result was not written")

    def client_of(self, job: Job) -> RequestClient:
        return self.requests.client_of(job, self._loop)

    def wait_for(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """For threads: run it on the worker's loop."""
        if os.getpid() != self._pid:
            coroutine.close()
            forks.require(self._pid, "write_result_sync()")
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def finish(self, job: Job, owner: str) -> None:
        """The attempt has ended: its last report is written before its settlement, or Redis would refuse it."""
        pen = self._pens.pop((job.id, owner), None)
        if pen is not None:
            pen.has_ended = True
            if pen.timer is not None:
                pen.timer.cancel()
            if pen.unsent is not None:
                self._send(pen)
            if pen.writing is not None and not pen.writing.done():
                # Not only sent: a server that does not know the script is told it with a second call.
                await asyncio.wait({pen.writing}, timeout=LAST)

    def _note(self, job: Job, owner: str, data: bytes) -> bool:
        """True if it leaves now."""
        pen = self._pens.get((job.id, owner))
        if pen is None:
            pen = self._pens[(job.id, owner)] = _Pen(job, owner)
        pen.unsent = data
        if pen.timer is not None:
            return False
        wait = pen.sent_at + EVERY - self._clock.monotonic()
        if wait > 0:
            pen.timer = self._loop.call_later(wait, self._send, pen)
            return False
        self._send(pen)
        return True

    def _send(self, pen: _Pen) -> None:
        """One after the other: an older report that is sent a second time must not overwrite a newer one."""
        pen.timer = None
        if pen.writing is not None and not pen.writing.done():
            pen.is_due = True
            return
        pen.writing = self._loop.create_task(self._write(pen, self._take(pen)))
        self._writing.add(pen.writing)
        pen.writing.add_done_callback(self._writing.discard)

    def _take(self, pen: _Pen) -> bytes:
        data, pen.unsent, pen.is_due = pen.unsent, None, False
        assert data is not None
        pen.sent_at = self._clock.monotonic()
        return data

    async def _write(self, pen: _Pen, data: bytes) -> None:
        pause = EVERY
        while True:
            try:
                await self._results.progress(pen.job.queue, pen.job.id, pen.owner, data)
                pause = EVERY
            except StoreError as exc:
                logger.debug("progress of task %s was not written: %s", pen.job.id, exc)
                if not pen.has_ended:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MOST_BETWEEN)
                    pen.unsent = data if pen.unsent is None else pen.unsent  # a newer one takes its place
                    pen.is_due = True
            if not pen.is_due:
                return
            data = self._take(pen)
