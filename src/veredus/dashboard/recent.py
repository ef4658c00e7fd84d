"""The last minutes of every queue, from the counters that are read anyway: how many tasks ended per second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from veredus.model.info import SECOND, QueueInfo

SAMPLES = 150
APART = 2 * SECOND
"""Nanoseconds between two samples at least, so that they reach back five minutes."""


class Recent:
    """Kept in memory only while somebody looks; the days before are in Redis."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[int, int, int]]] = {}

    def note(self, queues: Iterable[QueueInfo]) -> None:
        for queue in queues:
            samples = self._samples.setdefault(queue.queue, deque(maxlen=SAMPLES))
            if not samples or queue.timestamp_ns - samples[-1][0] >= APART:
                samples.append((queue.timestamp_ns, queue.processed_total, queue.failed_total))

    def rates(self, queue: str) -> list[tuple[int, float, float]]:
        """Per sample: Unix milliseconds, tasks per second since the one before, of these failed."""
        samples = list(self._samples.get(queue, ()))
        found = []
        for (before, processed_before, failed_before), (now, processed, failed) in pairwise(samples):
            seconds = (now - before) / SECOND
            ended, broken = max(0, processed - processed_before), max(0, failed - failed_before)
            found.append((now // 1_000_000, round(ended / seconds, 2), round(broken / seconds, 2)))
        return found

    def total(self, queues: Iterable[str]) -> list[tuple[int, float, float]]:
        """Of several queues together; they are sampled in the same moments."""
        sums: dict[int, list[float]] = {}
        for queue in queues:
            for at, ended, broken in self.rates(queue):
                second = sums.setdefault(at // 1000, [0.0, 0.0])
                second[0] += ended
                second[1] += broken
        return [(at * 1000, round(ended, 2), round(broken, 2)) for at, (ended, broken) in sorted(sums.items())]
