"""The clocks: the system's, the Redis server's, and the protocol for a test's own clock."""

from __future__ import annotations

import math
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
    """The Redis server's clock: the best observation of it, advanced by the monotonic clock, because this machine's
    date may be wrong or change. Before the first observation it is this machine's clock."""

    RESOLUTION = 0.001
    """Servers' answers are cut to milliseconds."""

    def __init__(self) -> None:
        self.ahead = time.time() - time.monotonic()
        """The server's Unix seconds minus our monotonic seconds."""
        self._doubt = math.inf
        """How wide the observation was that `ahead` comes from."""

    def observe(self, server_seconds: float, before: float, after: float) -> None:
        """The server's time was `server_seconds` at some point between `before` and `after` on the monotonic clock.

        On a busy machine, or over a slow link, that can be a second apart. Such an observation only corrects what it
        contradicts: without that, attempts of one task would seem to begin before the ones before them had ended."""
        half = self.RESOLUTION / 2
        least, most = server_seconds - after - half, server_seconds - before + half
        if most - least <= self._doubt:
            self.ahead, self._doubt = (least + most) / 2, most - least
        elif not least <= self.ahead <= most:
            self.ahead, self._doubt = min(max(self.ahead, least), most), most - least

    def time(self) -> float:
        return time.monotonic() + self.ahead
