"""Limits of one process: request rate, counts, and the levels for warnings and refusals. Time is an argument."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from veredus.model.bucket import Bucket as Bucket

REFUSALS = (
    "connections", "requests", "upstream", "accepts", "rate", "open", "frames", "silent", "datagrams",
    "address_connections", "address_handshakes", "address_sessions",
)  # fmt: skip
"""Names of the counters: why something was refused or a connection ended."""


class Refusal(NamedTuple):
    """Why a request is not accepted. It changed nothing, so the client may send it again."""

    code: int
    reason: str
    retryable: bool
    retry_after_ms: int = 0


class SlidingWindow:
    """Events per second over the last `seconds`. A slot counts until all of it is older, so the rate is never too low.
    Slots expire one by one, so the window never empties at once. Only admitted events are counted."""

    __slots__ = ("_counts", "_head", "_seconds", "_slot", "_total")

    def __init__(self, seconds: float = 1.0, slots: int = 128) -> None:
        self._seconds = seconds
        self._slot = seconds / slots
        self._counts = [0] * (slots + 1)
        self._head = 0
        self._total = 0

    def _advance(self, now: float) -> int:
        number = math.floor(now / self._slot)
        size = len(self._counts)
        for old in range(self._head + 1, min(number, self._head + size) + 1):
            self._total -= self._counts[old % size]
            self._counts[old % size] = 0
        self._head = max(self._head, number)
        return self._head

    def add(self, now: float) -> None:
        head = self._advance(now)
        self._counts[head % len(self._counts)] += 1
        self._total += 1

    def rate(self, now: float) -> float:
        self._advance(now)
        return self._total / self._seconds


class Level(IntEnum):
    NORMAL = 0
    WARN = 1
    REJECT = 2


def level(value: float, limit: float, warn_share: float) -> Level:
    if value >= limit:
        return Level.REJECT
    return Level.WARN if value >= limit * warn_share else Level.NORMAL


class Overload:
    """The three limits of one process: connections, requests per second, unanswered requests. Heartbeats and acks are
    not limited here."""

    def __init__(self, *, connections: int, request_rate: float, upstream: int, warn_share: float) -> None:
        self._limits = {"connections": float(connections), "requests": request_rate, "upstream": float(upstream)}
        self._warn_share = warn_share
        self._window = SlidingWindow()
        self.connections = 0
        self.upstream = 0
        self.refused = dict.fromkeys(REFUSALS, 0)

    def levels(self, now: float) -> dict[str, Level]:
        values = {"connections": self.connections, "requests": self._window.rate(now), "upstream": self.upstream}
        return {name: level(values[name], limit, self._warn_share) for name, limit in self._limits.items()}

    def request_rate(self, now: float) -> float:
        return self._window.rate(now)

    def admit_connection(self) -> bool:
        if self.connections >= self._limits["connections"]:
            self.refused["connections"] += 1
            return False
        return True

    def admit_request(self, now: float) -> Refusal | None:
        """Admit and count a request, or return the refusal."""
        if self._window.rate(now) >= self._limits["requests"]:
            self.refused["requests"] += 1
            return Refusal(503, "overloaded: too many requests", True, 500)
        if self.upstream >= self._limits["upstream"]:
            self.refused["upstream"] += 1
            return Refusal(503, "overloaded: too many unanswered requests", True, 1000)
        self._window.add(now)
        return None
