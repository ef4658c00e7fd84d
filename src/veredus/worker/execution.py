"""Execution: what a worker needs between the dequeue of a task and its settlement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from veredus.client.children import ChildSender
from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.events import Bus
from veredus.handlers.executors.processes import ProcessPool
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.mux import Mux
from veredus.handlers.reports import Reports
from veredus.handlers.request_answers import RequestAnswers
from veredus.model.pools import POOLS, FreeSlots
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.store import Store
from veredus.store.tasks.work import Work
from veredus.wire.types import startable
from veredus.worker.attempt import InFlight
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.attempt_runner import AttemptRunner, Executors
from veredus.worker.config import WorkerConfig
from veredus.worker.judge import Judge
from veredus.worker.own_tasks import own_tasks
from veredus.worker.roles.aggregator import IN_FLIGHT
from veredus.worker.roles.syncer import Syncer
from veredus.worker.settler import Settler
from veredus.worker.shutdown import Shutdown
from veredus.worker.type_counts import TypeCounts

if TYPE_CHECKING:
    from veredus.app import App


class WorkerBase(NamedTuple):
    """What all parts of a worker use."""

    app: App
    config: WorkerConfig
    worker_id: str
    queues: Mapping[str, int]
    store: Store
    clock: ServerClock
    bus: Bus
    outages: OutageLog
    restarts: Restarts


class Execution:
    """The handlers, the pools that they run in, and what becomes of their outcomes."""

    def __init__(self, base: WorkerBase, *, largest_value: int, on_free: Callable[[], None]) -> None:
        """`on_free`: a slot is free again."""
        self._base = base
        app, config, store, clock, bus = base.app, base.config, base.store, base.clock, base.bus
        own = own_tasks(app, store) if app.tasks or app.patterns else {}
        tasks = {**own, **app.tasks}
        names = {name: task.run_in for name, task in tasks.items()}
        patterns = {name: task.run_in for name, task in app.patterns.items()}
        self._pools = {*names.values(), *patterns.values()} or {"loop"}
        self.mux = Mux(tasks, app.patterns, app.middlewares)
        self.startable = startable(names, patterns)
        self.work = Work(
            store.redis,
            base.worker_id,
            lease_ms=config.lease_ms,
            archive=store.archive,
            startable=self.startable,
            time=clock.time,
        )
        self.counts = TypeCounts()
        self.records = AttemptRecords(
            base.worker_id, redact=app.redact, tracebacks=config.tracebacks, counts=self.counts
        )
        self.in_flight = InFlight(config.concurrency, on_free)
        self.syncer = Syncer(1.0, base.outages, clock)
        self.settler = Settler(self.work, self.in_flight, bus, self.syncer.keep)
        self.syncer.settler = self.settler
        self._threads = ThreadPool(config.threads, on_free)
        self.group_threads = ThreadPool(IN_FLIGHT, lambda: None)
        self._step_threads = ThreadPool(config.concurrency, lambda: None)
        self._processes = ProcessPool(config.process_pool)
        requests = RequestAnswers(store.outbox, clock)
        self.reports = Reports(
            store,
            clock,
            requests,
            max_result=largest_value,
            threads=self._step_threads,
            on_park=self.in_flight.park,
            children=ChildSender(self.client(), app.function_of),
            bus=bus,
            max_run_age=config.max_run_age,
        )
        self.attempt_runner = AttemptRunner(
            config,
            self.mux,
            self.settler,
            Judge(config, self.work, requests, app.result_ttl),
            Executors(self._threads, self._processes),
            self.reports,
            requests,
            self.records,
            self.counts,
            bus=bus,
            clock=clock,
        )
        self.shutdown = Shutdown(self.in_flight, self.settler, self.attempt_runner)

    def client(self) -> Client:
        """Sends over this worker's connection."""
        return Client(self._base.store, max_payload=self._base.app.max_payload, clock=self._base.clock)

    @property
    def is_settled(self) -> bool:
        """Whether no task is held, and every outcome is written."""
        return not self.in_flight.held() and self.settler.idle and self.syncer.idle

    def free_slots(self) -> FreeSlots:
        """How many more handlers each pool can start now; 0 for a pool that no task of the app uses."""
        free, busy = self.in_flight.free, self.in_flight.busy_in
        max_tasks = self._base.config.max_tasks
        if max_tasks:
            free = min(free, max_tasks - self.attempt_runner.started)
        slots = {
            "loop": free,
            "thread": min(free, self._threads.free(busy["thread"])),
            "process": min(free, self._processes.free(busy["process"])),
        }
        return FreeSlots(*[max(0, slots[pool]) if pool in self._pools else 0 for pool in POOLS])

    def close(self) -> None:
        self._threads.close()
        self._processes.close()
        self.group_threads.close()
        self._step_threads.close()
