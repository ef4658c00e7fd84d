"""Whether the worker's event loop runs: asked from another thread, it has to answer. And what it does instead."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable

from veredus.worker.hands import Attempt

LEAST_PATIENCE = 1.0
"""Seconds that a loop has for its answer, however short the grace of deadlines: a busy one is not blocked."""


class LoopWatch:
    """One question at a time, measured from when it was asked. Made in the thread of the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self.patience = max(patience, LEAST_PATIENCE)

    def ask(self, now: float) -> None:
        """Unless an earlier question is still open."""
        if self._asked_at is not None:
            return
        self._asked_at = now
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked_at = None  # the loop has ended: nothing can block it

    def _answer(self) -> None:
        self._asked_at = None

    def silence(self, now: float) -> float:
        """For how many seconds the question has been open; 0 if the loop has answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, now - asked_at)

    def is_blocked(self, now: float) -> bool:
        return self.silence(now) >= self.patience

    def blocker(self, held: Iterable[Attempt]) -> Attempt | None:
        """The attempt whose handler the loop is in right now; None if it is in none of them."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        return next((attempt for attempt in held if attempt.running and attempt.task is task), None)

    def place(self) -> str:
        """The line that the loop's thread is at."""
        frame = sys._current_frames().get(self._thread)
        return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
