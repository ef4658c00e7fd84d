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

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM = SystemClock()


class ServerClock(SystemClock):
    """This machine's clock, corrected by what the server's clock was last seen to differ from it."""

    def __init__(self) -> None:
        self.offset = 0.0

    def observe(self, server_seconds: float, before: float, after: float) -> None:
        """The server said `server_seconds` at some moment between our `before` and `after`."""
        self.offset = server_seconds - (before + after) / 2

    def time(self) -> float:
        return time.time() + self.offset
