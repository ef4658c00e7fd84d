"""A token bucket. Time is an argument."""

from __future__ import annotations


class Bucket:
    """`rate` per second, at most `burst` at once."""

    __slots__ = ("_burst", "_left", "_rate", "_seen")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._seen = burst, now

    def take(self, now: float, count: float = 1.0) -> float:
        """Returns 0.0 if `count` events may pass now, else the seconds until they may."""
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if self._left >= count:
            self._left -= count
            return 0.0
        return (count - self._left) / self._rate

    def change(self, rate: float, burst: float, now: float) -> None:
        """Set other limits. What was used stays used."""
        self.take(now, 0.0)
        self._rate, self._burst = rate, burst
        self._left = min(self._left, burst)

    def give(self, count: float) -> None:
        """Allow `count` more events than the rate alone."""
        self._left += count

    def is_full(self, now: float) -> bool:
        """Whether the bucket is full: a new one would behave the same."""
        return self._left + (now - self._seen) * self._rate >= self._burst
