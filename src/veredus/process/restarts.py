"""Restarts: starts background loops again when they end. Logs and counts restarts, and reports them to health
checks."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

logger = logging.getLogger("veredus.process.restarts")

FIRST_PAUSE = 0.1
"""Seconds before the second restart in a row. The first one is immediate; each later pause is twice as long."""
LONGEST_PAUSE = 30.0
STEADY = 5.0
"""Seconds that a loop must run after a restart before it counts as recovered."""


class Restarts:
    """One per process. Thread-safe."""

    def __init__(self, on_restart: Callable[[str], None] = lambda name: None, *, steady: float = STEADY) -> None:
        self.counts: Counter[str] = Counter()
        """How often each loop was restarted."""
        self._on_restart = on_restart
        self._steady = steady
        self._down: dict[str, tuple[float, str]] = {}
        """When each loop was or will be restarted, on the monotonic clock, and why it ended."""
        self._in_a_row: Counter[str] = Counter()
        self._lock = threading.Lock()

    def problems(self) -> list[str]:
        """The loops that have not recovered, with the reason."""
        now = time.monotonic()
        with self._lock:
            down = [(name, why) for name, (at, why) in self._down.items() if now - at < self._steady]
        return [f"{name} has ended and is being restarted: {why}" for name, why in down]

    def ended(self, name: str, error: BaseException | None, longest: float = LONGEST_PAUSE) -> float:
        """A loop ended that should not; returns the seconds to wait before its restart."""
        now, why = time.monotonic(), "it returned" if error is None else f"{type(error).__name__}: {error}"
        with self._lock:
            last = self._down.get(name)
            if last is not None and now - last[0] >= self._steady:
                self._in_a_row[name] = 0
            failures = self._in_a_row[name]
            pause = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 20), longest) if failures else 0.0
            self._in_a_row[name] += 1
            self.counts[name] += 1
            self._down[name] = (now + pause, why)
        logger.error("%s has ended, it is restarted in %.1f s: %s", name, pause, why, exc_info=error)
        self._on_restart(name)
        return pause

    async def keep(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        *,
        is_over: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        longest: float = LONGEST_PAUSE,
    ) -> None:
        """Run a loop, and restart it whenever it ends, until `is_over` or until this is cancelled."""
        while True:
            pause = 0.0
            try:
                await run()
                if is_over():
                    return
                pause = self.ended(name, None, longest)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as exc:  # also a CancelledError that leaked from an awaited future
                if _is_cancelled(exc):
                    raise
                pause = self.ended(name, exc, longest)
            await sleep(pause)
            if is_over():
                return


def _is_cancelled(exc: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0
