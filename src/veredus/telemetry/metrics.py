"""Prometheus metrics of one worker process, counted from the events on its bus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from veredus.events import (
    Aggregated,
    Event,
    Forwarded,
    ItemDropped,
    LeaseWasLost,
    RoleRestarted,
    StepEnded,
    TaskEnded,
    TaskOverran,
    TaskParked,
    TaskRecovered,
    TaskStarted,
    TaskWoken,
    WorkerMisjudged,
)

DURATIONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
LATENESS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
MAX_NAMES = 200
"""Types and queues that get their own label; later ones count as `other`, because labels are never removed."""


class WorkerMetrics:
    """A subscriber of the worker's bus. With `shared`, the figures of several processes are added up when read."""

    def __init__(self, registry: CollectorRegistry, *, shared: bool = False) -> None:
        live: dict[str, Any] = {"multiprocess_mode": "livesum"} if shared else {}
        self._types: set[str] = set()
        self._queues: set[str] = set()
        self._attempt_parts: dict[tuple[str, str, str], tuple[Gauge, Counter, Histogram]] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"veredus_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"veredus_{name}", text, labels, registry=registry, buckets=buckets)

        self._running = Gauge("veredus_tasks_running", "Running handlers.", ["queue"], registry=registry, **live)
        self._attempts = counter("task_attempts", "Finished attempts by action.", "queue", "type", "action")
        self._duration = histogram("task_duration_seconds", "Duration of handlers.", ("queue", "type"), DURATIONS)
        self._lateness = histogram(
            "forward_lateness_seconds", "Time from due to pending, for delayed tasks and retries.", ("queue",), LATENESS
        )
        self._forwarded = counter("tasks_forwarded", "Delayed tasks and retries that became pending.", "queue")
        self._lost = counter("leases_lost", "Attempts that lost their lease.", "queue")
        self._misjudged = counter("leases_taken_too_early", "Leases taken from this worker, which looked dead.")
        self._overran = counter("tasks_overran", "Handlers that ran past their deadline.", "queue", "type", "where")
        self._recovered = counter("tasks_recovered", "Tasks recovered from dead workers.", "queue", "type", "action")
        self._dropped = counter("items_dropped", "Queue entries that could not be run.", "queue", "reason")
        self._aggregated = counter("group_members_aggregated", "Group members that were aggregated.", "queue")
        self._steps = counter("steps", "Steps of durable tasks that ran.", "queue", "type", "outcome")
        self._parks = counter("tasks_parked", "Durable handlers that left to wait.", "queue", "type", "kind")
        self._wakes = histogram(
            "wake_lateness_seconds",
            "Time from the end of a wait until its handler runs again.",
            ("queue", "kind"),
            LATENESS,
        )
        self._restarted = counter("role_restarts", "Restarts of roles of the worker.", "role")

    def __call__(self, event: Event) -> None:
        if isinstance(event, TaskStarted):
            self._of(event.message.queue, event.message.type, "done")[0].inc()
        elif isinstance(event, TaskEnded):
            action = "cancel" if event.end == "cancelled" else event.action
            running, attempts, duration = self._of(event.message.queue, event.message.type, action)
            running.dec()
            attempts.inc()
            duration.observe(event.seconds)
        elif isinstance(event, StepEnded):
            self._steps.labels(self._queue(event.queue), self._type(event.type), event.outcome).inc()
        elif isinstance(event, TaskParked):
            self._parks.labels(self._queue(event.queue), self._type(event.type), event.kind).inc()
        elif isinstance(event, TaskWoken):
            self._wakes.labels(self._queue(event.queue), event.kind).observe(event.late)
        elif isinstance(event, Forwarded):
            self._forwarded.labels(self._queue(event.queue)).inc(event.moved)
            if event.late is not None:
                self._lateness.labels(self._queue(event.queue)).observe(event.late)
        elif isinstance(event, LeaseWasLost):
            self._lost.labels(self._queue(event.queue)).inc()
        elif isinstance(event, WorkerMisjudged):
            self._misjudged.inc(event.leases)
        elif isinstance(event, TaskOverran):
            names = self._queue(event.message.queue), self._type(event.message.type)
            self._overran.labels(*names, event.where).inc()
        elif isinstance(event, TaskRecovered):
            names = self._queue(event.message.queue), self._type(event.message.type)
            self._recovered.labels(*names, event.action).inc()
        elif isinstance(event, ItemDropped):
            self._dropped.labels(self._queue(event.queue), event.reason).inc()
        elif isinstance(event, Aggregated):
            self._aggregated.labels(self._queue(event.queue)).inc(event.members)
        elif isinstance(event, RoleRestarted):
            self._restarted.labels(event.role).inc()

    def _of(self, queue: str, kind: str, action: str) -> tuple[Gauge, Counter, Histogram]:
        """The metrics of an attempt. Cached, because looking up labels costs more than counting."""
        key = self._queue(queue), self._type(kind), action
        found = self._attempt_parts.get(key)
        if found is None:
            found = self._running.labels(key[0]), self._attempts.labels(*key), self._duration.labels(*key[:2])
            self._attempt_parts[key] = found
        return found

    def _type(self, name: str) -> str:
        return bounded(name, self._types)

    def _queue(self, name: str) -> str:
        return bounded(name, self._queues)


def bounded(name: str, known: set[str], most: int = MAX_NAMES) -> str:
    """The name, or `other` above the limit: any client of Redis can invent task types."""
    if name in known:
        return name
    if len(known) >= most:
        return "other"
    known.add(name)
    return name
