"""Wakes the event loop at a time, to a fraction of a millisecond.

Event loops wait for whole milliseconds, and wake up half of one late on average. Linux has timers that are files.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable

_MONOTONIC = 1
_SHORTEST = 1
"""Nanoseconds: 0 would end the timer."""


class Alarm:
    """Made in the event loop that it wakes."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._fd = _open_timer()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rang)

    def set(self, seconds: float) -> None:
        """Ring once after these seconds, instead of at the time set before."""
        if self._fd >= 0:
            _set_timer(self._fd, max(_SHORTEST, round(seconds * 1e9)))
            return
        self.cancel()
        self._timer = self._loop.call_later(seconds, self._ring)

    def cancel(self) -> None:
        if self._fd >= 0:
            _set_timer(self._fd, 0)
        elif self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew in the meantime
            os.read(self._fd, 8)
            self._ring()


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _open_timer() -> int:
    """A file that can be read when a time is over; -1 where the system has none."""
    create = getattr(_libc, "timerfd_create", None)
    return -1 if create is None else int(create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def _set_timer(fd: int, nanoseconds: int) -> None:
    assert _libc is not None
    _libc.timerfd_settime(fd, 0, struct.pack("llll", 0, 0, *divmod(nanoseconds, 1_000_000_000)), None)
