"""Whether workers grow: what was counted of them again and again, and how much of it is growth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple


class Sample(NamedTuple):
    at: float
    """Seconds since the beginning."""
    memory: int
    """KB resident, of all workers."""
    descriptors: int
    threads: int
    connections: int
    keys: int


class Growth(NamedTuple):
    name: str
    typical: float
    growth: float
    """From the first sample to the last, by the median of the slopes between any two: a sample that was taken while
    connections were being made again does not count."""
    bound: float

    def __str__(self) -> str:
        return f"{self.name}: {self.typical:g}, growth {self.growth:+.1f}, bound {self.bound:.1f}"

    @property
    def is_too_much(self) -> bool:
        return self.growth > self.bound


def growths(samples: Sequence[Sample], workers: int) -> list[Growth]:
    """The bounds allow for noise: one descriptor, thread and connection per worker, 2 % and 1.5 MB of its memory."""
    found = []
    for name, share, slack in (
        ("memory", 0.02, 1536 * workers),
        ("descriptors", 0.0, workers),
        ("threads", 0.0, workers),
        ("connections", 0.0, workers),
        ("keys", 0.02, 5.0),
    ):
        typical = statistics.median(getattr(one, name) for one in samples)
        slopes = [
            (getattr(late, name) - getattr(early, name)) / (late.at - early.at)
            for early, late in combinations(samples, 2)
        ]
        growth = statistics.median(slopes) * (samples[-1].at - samples[0].at)
        found.append(Growth(name, typical, growth, typical * share + slack))
    return found
