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
    """The server's clock, as last observed and carried on by the monotonic clock: this machine's own date may be wrong
    or be changed meanwhile. Until the first observation it is this machine's."""

    def __init__(self) -> None:
        self.ahead = time.time() - time.monotonic()
        """The server's Unix seconds minus our monotonic seconds."""

    def observe(self, server_seconds: float, before: float, after: float) -> None:
        """The server said `server_seconds` at some moment between `before` and `after` on the monotonic clock."""
        self.ahead = server_seconds - (before + after) / 2

    def time(self) -> float:
        return time.monotonic() + self.ahead
