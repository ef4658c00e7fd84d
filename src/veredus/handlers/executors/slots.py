"""Slots: limits how many handlers run at once. Further ones wait in order."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A worker dequeues only what it can start, so there is rarely a waiter."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a slot, in the order of arrival."""
        if self._used < self._size and not self._waiters:
            self._used += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot was assigned at the same moment
            else:
                self._waiters.remove(turn)
            raise

    def occupy(self) -> None:
        """Count one more slot as used, for a handler that still runs after its attempt has ended."""
        self._used += 1

    def release(self) -> None:
        """Free a slot, and assign it to the first waiter."""
        self._used -= 1
        while self._waiters and self._used < self._size:
            self._used += 1
            self._waiters.popleft().set_result(None)
