"""OpenRequests: the requests of one process whose response has not been seen, and their deadlines."""

from __future__ import annotations

from collections.abc import Iterator

from veredus.clock import Clock
from veredus.gateway.limits import Overload
from veredus.gateway.timer_wheel import TimerWheel

RequestKey = tuple[str, int]
"""Session and request number."""
MARGIN = 0.05
"""Seconds after the deadline, so that an answer at the last moment comes first."""


class OpenRequests:
    """The router adds a request, delivery removes it when its response passes by, and the router times out the rest."""

    def __init__(self, overload: Overload, clock: Clock) -> None:
        self._overload = overload
        self._clock = clock
        self._slots: dict[RequestKey, int] = {}
        self._wheel: TimerWheel[RequestKey] = TimerWheel(0.25, clock.monotonic())

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[RequestKey]:
        return iter(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def add(self, key: RequestKey, seconds: float) -> None:
        if key not in self._slots:
            self._slots[key] = self._wheel.put(key, self._clock.monotonic() + seconds + MARGIN)
            self._overload.upstream = len(self._slots)

    def remove(self, key: RequestKey) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._wheel.take(key, slot)
            self._overload.upstream = len(self._slots)

    def take_due(self, now: float) -> list[RequestKey]:
        """Remove and return the requests whose deadline has passed."""
        due = [key for key in self._wheel.due(now) if self._slots.pop(key, None) is not None]
        if due:
            self._overload.upstream = len(self._slots)
        return due
