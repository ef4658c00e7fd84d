"""Prometheus metrics of queues, with Asynq's metric names where it has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veredus.inspector.inspector import Inspector
from veredus.model.info import QueueInfo

STATES = ("active", "pending", "scheduled", "retry", "archived", "completed", "aggregating")
MAX_QUEUES = 1_000
"""Maximum number of queues, in alphabetical order; the rest is left out."""


class QueueMetrics(Collector):
    """Figures that were read before: a collector cannot wait for Redis."""

    def __init__(self, infos: Sequence[QueueInfo], *, memory: bool = False) -> None:
        self._infos = sorted(infos, key=lambda info: info.queue)[:MAX_QUEUES]
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        tasks = GaugeMetricFamily(
            "asynq_tasks_enqueued_total", "Current tasks by queue and state.", labels=("queue", "state")
        )
        for info in self._infos:
            for state in STATES:
                tasks.add_metric((info.queue, state), getattr(info, state))
        yield tasks
        yield self._gauge("asynq_queue_size", "Tasks in a queue.", ((i.queue, i.size) for i in self._infos))
        yield self._gauge(
            "asynq_queue_latency_seconds",
            "How long the oldest pending task has waited.",
            ((i.queue, i.latency.total_seconds()) for i in self._infos),
        )
        if self._memory:
            yield self._gauge(
                "asynq_queue_memory_usage_approx_bytes",
                "Memory of a queue in Redis, estimated from a sample.",
                ((i.queue, i.memory_usage) for i in self._infos),
            )
        yield self._counter(
            "asynq_tasks_processed", "Finished attempts.", ((i.queue, i.processed_total) for i in self._infos)
        )
        yield self._counter("asynq_tasks_failed", "Failed attempts.", ((i.queue, i.failed_total) for i in self._infos))
        yield self._gauge(
            "asynq_queue_paused_total", "1 if the queue is paused.", ((i.queue, int(i.paused)) for i in self._infos)
        )
        yield self._gauge("veredus_queue_groups", "Groups with tasks.", ((i.queue, i.groups) for i in self._infos))

    def _gauge(self, name: str, text: str, rows: Iterable[tuple[str, float]]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("queue",))
        for queue, value in rows:
            family.add_metric((queue,), value)
        return family

    def _counter(self, name: str, text: str, rows: Iterable[tuple[str, float]]) -> Metric:
        family = CounterMetricFamily(name, text, labels=("queue",))
        for queue, value in rows:
            family.add_metric((queue,), value)
        return family


async def read_queues(inspector: Inspector, *, memory: bool = False, only: Iterable[str] | None = None) -> bytes:
    """Read the queues and return the text format of Prometheus."""
    infos = await inspector.stats(memory=memory)
    if only is not None:
        wanted = set(only)
        infos = [info for info in infos if info.queue in wanted]
    registry = CollectorRegistry()
    registry.register(QueueMetrics(infos, memory=memory))
    return bytes(generate_latest(registry))
