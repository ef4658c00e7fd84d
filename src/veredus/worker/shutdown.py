"""What happens to running attempts when a worker stops."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from veredus.model.settlement import Requeue
from veredus.model.verdict import End
from veredus.worker.attempt import InFlight
from veredus.worker.attempt_runner import AttemptRunner
from veredus.worker.settler import Settler

logger = logging.getLogger("veredus.worker")


class Shutdown:
    """Called in this order: `finish`, `give_back`, `end_stuck`."""

    def __init__(self, in_flight: InFlight, settler: Settler, attempt_runner: AttemptRunner) -> None:
        self._in_flight = in_flight
        self._settler = settler
        self._attempt_runner = attempt_runner

    def unfinished(self, *, stuck_too: bool) -> list[asyncio.Task[Any]]:
        """The asyncio tasks of attempts that have not ended. A stuck handler runs although its deadline has passed."""
        now = time.monotonic()
        return [
            attempt.task
            for attempt in self._in_flight.held()
            if attempt.task is not None
            and not attempt.task.done()
            and (stuck_too or not (attempt.running and attempt.lease.is_overrun(now)))
        ]

    async def finish(self, seconds: float, abort_requested: asyncio.Event, *, stuck_too: bool) -> None:
        """Wait for running handlers, at most this long and not after an abort is requested."""
        tasks = self.unfinished(stuck_too=stuck_too)
        if not tasks:
            return
        logger.info("stopping: %d running tasks have up to %g s to finish", len(tasks), seconds)
        abort = asyncio.create_task(abort_requested.wait())
        ends = time.monotonic() + seconds
        while tasks and not abort.done() and (left := ends - time.monotonic()) > 0:
            await asyncio.wait([*tasks, abort], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            tasks = self.unfinished(stuck_too=stuck_too)
        abort.cancel()

    async def give_back(self) -> None:
        """Requeue the tasks that did not finish, except those that have timed out."""
        running = [attempt for attempt in self._in_flight.running() if attempt.forced is not End.TIMED_OUT]
        if not running:
            return
        logger.warning("giving back %d tasks that did not finish in time", len(running))
        for attempt in running:
            attempt.force(End.ABORTED)
        tasks = [attempt.task for attempt in running if attempt.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        # A handler that ignores its cancellation loses its task anyway; what it does later is discarded.
        for attempt in running:
            if attempt.running:
                record = self._attempt_runner.given_back(attempt)
                self._settler.settle(attempt.queue, Requeue(attempt.task_id, attempt.owner, record), attempt)

    async def end_stuck(self) -> bool:
        """Settle stuck handlers as timed out; returns whether there were any. Called last, so that the next attempt
        does not begin long before this process ends."""
        stuck = [attempt for attempt in self._in_flight.running() if attempt.forced is End.TIMED_OUT]
        if not stuck:
            return False
        logger.warning("%d handlers do not end; their tasks are settled as timed out", len(stuck))
        await asyncio.gather(*(self._attempt_runner.end_without_handler(attempt) for attempt in stuck))
        await self._settler.drain()
        return True
