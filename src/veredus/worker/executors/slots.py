"""Slots: so many handlers run at once; whoever comes when none is free waits in line."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A worker takes only what it can start, so there is hardly ever a line."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a slot, in the order of arrival."""
        if self._used < self._size and not self._line:
            self._used += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it came at the same moment
            else:
                self._line.remove(turn)
            raise

    def occupy(self) -> None:
        """Count one more as used, for a handler that goes on although nobody waits for it."""
        self._used += 1

    def release(self) -> None:
        """Give a slot back: to the first in line, if there is room for it."""
        self._used -= 1
        while self._line and self._used < self._size:
            self._used += 1
            self._line.popleft().set_result(None)
