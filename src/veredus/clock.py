"""The only place that reads time: a clock that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for durations."""
        ...


class SystemClock:
    """The clock of this machine."""

    time = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


SYSTEM = SystemClock()
