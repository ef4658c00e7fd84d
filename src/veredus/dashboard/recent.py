"""Tasks per second right now, from counters that the overview reads anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from veredus.model.info import SECOND, QueueInfo

SAMPLES = 6
APART = 2 * SECOND
"""Minimum nanoseconds between two samples, so that they cover ten seconds: workers settle tasks in batches."""


class Recent:
    """Samples in memory, taken while pages are open. Charts come from what workers have recorded in Redis."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[int, int, int]]] = {}

    def note(self, queues: Iterable[QueueInfo]) -> None:
        for queue in queues:
            samples = self._samples.setdefault(queue.queue, deque(maxlen=SAMPLES))
            if samples and queue.processed_total < samples[-1][1]:  # the counters were reset
                samples.clear()
            if not samples or queue.timestamp_ns - samples[-1][0] >= APART:
                samples.append((queue.timestamp_ns, queue.processed_total, queue.failed_total))

    def rate(self, *queues: str) -> dict[str, float]:
        """Tasks per second of these queues together, and failed ones."""
        ended = broken = 0.0
        for queue in queues:
            samples = list(self._samples.get(queue, ()))
            if len(samples) > 1:
                (before, ended_before, broken_before), (now, ended_now, broken_now) = samples[0], samples[-1]
                ended += (ended_now - ended_before) * SECOND / (now - before)
                broken += max(0, broken_now - broken_before) * SECOND / (now - before)
        return {"processed": round(ended, 2), "failed": round(broken, 2)}
