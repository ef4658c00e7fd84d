"""Canceller: a cancel command names a bare id; finds out how the task shall end, and ends the attempt."""

from __future__ import annotations

import asyncio

from veredus.errors import StoreError
from veredus.store.cancels import Cancels
from veredus.worker.hands import Attempt, Hands

PAUSE = 0.1
"""Seconds between two tries to find out how a task shall end."""
TRIES = 20
"""After so many the handler is ended all the same."""


class Canceller:
    def __init__(self, cancels: Cancels, hands: Hands) -> None:
        self._cancels = cancels
        self._hands = hands
        self._asking: set[asyncio.Task[None]] = set()

    def told(self, task_id: str) -> None:
        """As Asynq does it: every running task of that id, whatever its queue."""
        for attempt in self._hands.running():
            if attempt.task_id == task_id:
                task = asyncio.get_running_loop().create_task(self._cancel(attempt))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _cancel(self, attempt: Attempt) -> None:
        """If possible not before it is known how: an attempt that is ended without that counts as failed."""
        for _ in range(TRIES):
            try:
                attempt.cancel(await self._cancels.asked(attempt.queue, attempt.task_id))
                return
            except StoreError:
                await asyncio.sleep(PAUSE)
        attempt.cancel()  # a mark stays where it is: whoever takes the task next ends it as asked
