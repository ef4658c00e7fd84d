"""LoopWatch: finds out from another thread whether the event loop is blocked, and by which handler."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable

from veredus.worker.attempt import Attempt

LEAST_PATIENCE = 1.0
"""Seconds before a silent loop counts as blocked, however short the grace: it may only be busy."""


class LoopWatch:
    """Sends one probe at a time to the loop. Create it in the thread of that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self.patience = max(patience, LEAST_PATIENCE)

    def ask(self, now: float) -> None:
        """Send a probe, unless one is unanswered."""
        if self._asked_at is not None:
            return
        self._asked_at = now
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked_at = None  # the loop has ended

    def _answer(self) -> None:
        self._asked_at = None

    def silence(self, now: float) -> float:
        """Seconds since the unanswered probe; 0 if there is none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, now - asked_at)

    def is_blocked(self, now: float) -> bool:
        return self.silence(now) >= self.patience

    def blocker(self, held: Iterable[Attempt]) -> Attempt | None:
        """The attempt whose handler the loop is running now, if any."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        return next((attempt for attempt in held if attempt.running and attempt.task is task), None)

    def place(self) -> str:
        """The source line that the loop's thread is executing."""
        frame = sys._current_frames().get(self._thread)
        return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
