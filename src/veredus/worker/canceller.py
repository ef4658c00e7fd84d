"""Canceller: a cancel command contains only a task id. Reads from Redis how the task is to end, and ends its
attempt."""

from __future__ import annotations

import asyncio

from veredus.errors import StoreError
from veredus.store.tasks.cancels import Cancels
from veredus.worker.attempt import Attempt, InFlight

PAUSE = 0.1
"""Seconds between two tries to read how a task is to end."""
TRIES = 20
"""After this many tries the handler is cancelled anyway."""


class Canceller:
    """Ends running attempts."""

    def __init__(self, cancels: Cancels, in_flight: InFlight) -> None:
        self._cancels = cancels
        self._in_flight = in_flight
        self._cancelling: set[asyncio.Task[None]] = set()

    def cancel(self, task_id: str) -> None:
        """Cancel every running task with this id, in any queue, as Asynq does."""
        for attempt in self._in_flight.running():
            if attempt.task_id == task_id:
                task = asyncio.get_running_loop().create_task(self._cancel(attempt))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, attempt: Attempt) -> None:
        """If possible, only once it is known how: otherwise the attempt counts as failed."""
        for _ in range(TRIES):
            try:
                attempt.cancel(await self._cancels.asked(attempt.queue, attempt.task_id))
                return
            except StoreError:
                await asyncio.sleep(PAUSE)
        attempt.cancel()  # the mark stays in Redis: the next worker that dequeues the task ends it
