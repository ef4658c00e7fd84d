"""Tasks per second over the last minutes, from counters that the overview reads anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from veredus.model.info import SECOND, QueueInfo

SAMPLES = 150
APART = 2 * SECOND
"""Minimum nanoseconds between two samples, so that they cover five minutes."""


class Recent:
    """Samples in memory, taken while pages are open. Redis has the totals per day."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[int, int, int]]] = {}

    def note(self, queues: Iterable[QueueInfo]) -> None:
        for queue in queues:
            samples = self._samples.setdefault(queue.queue, deque(maxlen=SAMPLES))
            if not samples or queue.timestamp_ns - samples[-1][0] >= APART:
                samples.append((queue.timestamp_ns, queue.processed_total, queue.failed_total))

    def rates(self, queue: str) -> list[tuple[int, float, float]]:
        """Per sample: Unix milliseconds, tasks per second since the previous sample, and failed tasks per second."""
        samples = list(self._samples.get(queue, ()))
        found = []
        for (before, processed_before, failed_before), (now, processed, failed) in pairwise(samples):
            seconds = (now - before) / SECOND
            ended, broken = max(0, processed - processed_before), max(0, failed - failed_before)
            found.append((now // 1_000_000, round(ended / seconds, 2), round(broken / seconds, 2)))
        return found

    def total(self, queues: Iterable[str]) -> list[tuple[int, float, float]]:
        """The sum over several queues, which are sampled at the same moments."""
        sums: dict[int, list[float]] = {}
        for queue in queues:
            for at, ended, broken in self.rates(queue):
                second = sums.setdefault(at // 1000, [0.0, 0.0])
                second[0] += ended
                second[1] += broken
        return [(at * 1000, round(ended, 2), round(broken, 2)) for at, (ended, broken) in sorted(sums.items())]
