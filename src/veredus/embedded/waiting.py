"""Waits for a condition with a deadline. Only this module of the package reads the clock or sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic = time.monotonic


def until(condition: Callable[[], bool], timeout: float, every: float = 0.01) -> bool:
    """Check until the condition holds; False if it did not within the timeout."""
    deadline = monotonic() + timeout
    while not condition():
        if monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


class Deadline:
    """A deadline that is extended while there is progress."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow that many seconds from now on, if this is later than before."""
        self._end = max(self._end, monotonic() + seconds)

    def passed(self) -> bool:
        """Whether the moment is over."""
        return monotonic() >= self._end


def nap(seconds: float = 0.01) -> None:
    """Sleep briefly between two checks."""
    time.sleep(seconds)
