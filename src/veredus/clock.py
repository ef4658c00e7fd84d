"""The clocks: the system's, the Redis server's, and the protocol for a test's own clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def time(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for durations."""
        ...


class SystemClock:
    """This machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM = SystemClock()


class ServerClock(SystemClock):
    """The Redis server's clock: the last observed time, advanced by the monotonic clock, because this machine's date
    may be wrong or change. Before the first observation it is this machine's clock."""

    def __init__(self) -> None:
        self.ahead = time.time() - time.monotonic()
        """The server's Unix seconds minus our monotonic seconds."""

    def observe(self, server_seconds: float, before: float, after: float) -> None:
        """The server's time was `server_seconds` at some point between `before` and `after` on the monotonic clock."""
        self.ahead = server_seconds - (before + after) / 2

    def time(self) -> float:
        return time.monotonic() + self.ahead
