"""Worker: builds the roles, starts them, and stops them without losing a task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from veredus import __version__
from veredus.client.children import ChildSender
from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.errors import CommandRefused, StoreError, WorkerStopped
from veredus.events import Bus, RoleRestarted, TaskOverran, WorkerMisjudged
from veredus.handlers.executors.processes import ProcessPool
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.lifespan import close, open_lifespan
from veredus.handlers.mux import Mux
from veredus.handlers.reports import Reports
from veredus.handlers.request_answers import RequestAnswers
from veredus.model.pools import POOLS, FreeSlots
from veredus.model.verdict import End
from veredus.process import forks
from veredus.process.memory import resident_mb
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.store import LARGEST_VALUE, Store, when_ready
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.store.tasks.stats import Stats
from veredus.store.tasks.work import Work
from veredus.wire.presence import ServerRecord
from veredus.wire.types import shown, startable
from veredus.worker.attempt import Attempt, InFlight
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.attempt_runner import AttemptRunner, Executors
from veredus.worker.canceller import Canceller
from veredus.worker.config import WorkerConfig
from veredus.worker.group_runner import GroupRunner
from veredus.worker.health import WorkerSigns
from veredus.worker.judge import Judge
from veredus.worker.own_tasks import own_tasks
from veredus.worker.role import Role, Roster
from veredus.worker.roles.aggregator import IN_FLIGHT, Aggregator
from veredus.worker.roles.child_relayer import ChildRelayer
from veredus.worker.roles.follow_relayer import FollowRelayer
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.go_watcher import GoWatcher
from veredus.worker.roles.healthchecker import Healthchecker
from veredus.worker.roles.heartbeater import Heartbeater, HeartbeatHooks
from veredus.worker.roles.janitor import Janitor
from veredus.worker.roles.limiter import Limiter, limit_specs
from veredus.worker.roles.pending_watcher import PendingWatcher
from veredus.worker.roles.processor import Processor
from veredus.worker.roles.recorder import Recorder
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.scheduler_role import SchedulerRole
from veredus.worker.roles.subscriber import Subscriber
from veredus.worker.roles.syncer import Syncer
from veredus.worker.roles.unserved_reporter import UnservedReporter
from veredus.worker.roles.wake_listener import WakeListener
from veredus.worker.settler import Settler
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.shutdown import Shutdown
from veredus.worker.startup import announce, check_server
from veredus.worker.type_counts import TypeCounts

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")

EXIT_RECYCLE = 75
"""The exit code of a child that asks to be replaced."""
LAST_RECORD = 2.0
"""Seconds for the last record of the statistics."""
EXIT_HUNG = 70
"""The exit code of a child that ends itself because its event loop hangs."""


class Worker:
    """Serves queues. `run()` blocks and handles signals; `async with worker:` runs it inside your own loop."""

    def __init__(
        self, app: App, config: WorkerConfig, *, worker_id: str | None = None, shared: SharedBeat | None = None
    ) -> None:
        self.app = app
        self.config = config
        self.queues = dict(config.queues or app.served_queues())
        self.worker_id = worker_id or str(uuid.uuid4())
        self.bus = Bus()
        self.exit_code = 0
        self.supervised = shared is not None
        self._shared = shared
        self._status = "new"
        self._started_at = 0.0
        self._stop_requested, self._abort_requested = asyncio.Event(), asyncio.Event()
        self._quiet = False
        self._largest_value = LARGEST_VALUE
        self._watcher: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        """Set once this process is to be replaced because a handler does not end."""
        self.left_behind = False
        """Whether handlers still run after the stop. Their tasks are settled, so the process must end at once."""

    def run(self) -> int:
        """Work until stopped by a signal (or, with `burst`, until the queues are empty); returns the exit code."""
        from veredus.worker.supervisor import run_supervised, run_worker

        config = self.config
        if config.processes > 1 or config.max_tasks or config.max_memory:
            return run_supervised(self)
        return run_worker(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # Starting.

    async def start(self) -> None:
        """Connect, open the lifespan and start the roles. Raises StoreError when Redis cannot be reached."""
        if self._status != "new":
            raise WorkerStopped("this worker has already been started; create a new one")
        self._loop = asyncio.get_running_loop()
        forks.end_in(self._loop)
        self._clock = ServerClock()
        redis = self.app.open_redis(f"veredus-worker-{self.worker_id[:8]}")
        self._store = Store(redis, archive=self.app.archive)
        self._lifespan = contextlib.AsyncExitStack()
        try:
            await check_server(self._store, self._clock)
            self._largest_value = await self._store.largest_value()
            await open_lifespan(self.app, self._lifespan)
            self._compose()
        except BaseException:
            await close(self._lifespan, "the lifespan")
            await self._store.close()
            raise
        self._companions = contextlib.AsyncExitStack()
        self._status = "active"
        self._started_at = self._clock.time()
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise
        announce(self.app, self.config, self.queues, self.worker_id, redis.where())

    async def _begin(self) -> None:
        """From here on the worker is visible in Redis."""
        await when_ready(self._register)
        await when_ready(self._limiter.declare)
        self._heartbeater.start()
        if self.config.burst:
            await self._forwarder.step()
        if self._quiet:
            self.quiet()
        self._roster.start()
        self._watcher = asyncio.create_task(self._restarts.keep("watcher", self._watch, is_over=self._is_stopping))
        for companion in self.config.companions:
            await self._companions.enter_async_context(companion(self))

    async def _register(self) -> None:
        """A damaged list of queues does not stop a worker. The recoverer registers them once the list is repaired."""
        try:
            await self._store.register(list(self.queues))
        except CommandRefused as exc:
            if "WRONGTYPE" not in str(exc):
                raise
            logger.error("the queues of this worker cannot be registered: %s", exc)

    def _compose(self) -> None:
        store, config = self._store, self.config
        self._restarts = Restarts(self._restarted)
        self._outages = OutageLog(many_servers=store.redis.address.kind == "cluster")
        own = own_tasks(self.app, store) if self.app.tasks or self.app.patterns else {}
        self._tasks = {**own, **self.app.tasks}
        self._mux = Mux(self._tasks, self.app.patterns, self.app.middlewares)
        self._compose_execution()
        self._compose_roles()
        self._heartbeater = Heartbeater(
            lambda: self.app.open_redis(f"veredus-heart-{self.worker_id[:8]}"),
            config,
            self._in_flight,
            self._clock,
            HeartbeatHooks(
                self._describe,
                self._overran,
                self._hung,
                self._asked,
                self._records.shown_payload,
                self._recoverer.found_dead,
                self._misjudged,
            ),
            self._outages,
            self._restarts,
            self._shared,
            self.worker_id,
        )

    def _compose_execution(self) -> None:
        """From a dequeued task to its settlement."""
        config, store = self.config, self._store
        names = {name: task.run_in for name, task in self._tasks.items()}
        patterns = {name: task.run_in for name, task in self.app.patterns.items()}
        self._pools = {*names.values(), *patterns.values()} or {"loop"}
        self._startable = startable(names, patterns)
        self._work = Work(
            store.redis,
            self.worker_id,
            lease_ms=config.lease_ms,
            archive=store.archive,
            startable=self._startable,
            time=self._clock.time,
        )
        self._counts = TypeCounts()
        self._records = AttemptRecords(
            self.worker_id, redact=self.app.redact, tracebacks=config.tracebacks, counts=self._counts
        )
        self._in_flight = InFlight(config.concurrency, lambda: self._processor.wake())
        self._syncer = Syncer(1.0, self._outages)
        self._settler = Settler(self._work, self._in_flight, self.bus, self._syncer.keep)
        self._syncer.settler = self._settler
        self._threads = ThreadPool(config.threads, lambda: self._processor.wake())
        self._group_threads = ThreadPool(IN_FLIGHT, lambda: None)
        self._step_threads = ThreadPool(config.concurrency, lambda: None)
        self._processes = ProcessPool(config.process_pool)
        requests = RequestAnswers(store.outbox, self._clock)
        self._reports = Reports(
            store,
            self._clock,
            requests,
            max_result=self._largest_value,
            threads=self._step_threads,
            on_park=self._in_flight.park,
            children=ChildSender(self._client(), self.app.function_of),
            bus=self.bus,
            max_run_age=config.max_run_age,
        )
        self._attempt_runner = AttemptRunner(
            config,
            self._mux,
            self._settler,
            Judge(config, self._work, requests, self.app.result_ttl),
            Executors(self._threads, self._processes),
            self._reports,
            requests,
            self._records,
            self._counts,
            bus=self.bus,
            clock=self._clock,
        )
        self._shutdown = Shutdown(self._in_flight, self._settler, self._attempt_runner)

    def _compose_roles(self) -> None:
        config, store, outages, queues = self.config, self._store, self._outages, list(self.queues)
        live_processes = LiveProcesses(store.redis)
        unserved_reporter = UnservedReporter(live_processes, config.lease / 2, outages)
        go_watcher = GoWatcher(live_processes, queues, outages)
        wake_listener = WakeListener(
            store.redis,
            queues,
            self.worker_id,
            outages,
            by_server=store.delays.by_server,
            on_wake=lambda queue: self._processor.found(queue),
        )
        self._processor = Processor(
            self._work,
            self.queues,
            config,
            self._attempt_runner,
            self.bus,
            outages,
            free_slots=self._free_slots,
            channel_of=wake_listener.channel_of,
            on_unknown=unserved_reporter.met,
            shares=go_watcher.shares,
            by_node=store.delays.by_server if store.redis.address.kind == "cluster" else None,
        )
        self._forwarder = Forwarder(
            store.delays, queues, config.forward_interval, outages, self.bus, self._processor.found
        )
        self._recoverer = Recoverer(
            store, self._work, self.worker_id, config, self._mux, self._clock, outages, self.bus,
            queues, lambda: self._heartbeater.steady_since, self._records,
            lambda worker_id: self._heartbeater.liveness.recovered(worker_id),
        )  # fmt: skip
        canceller = Canceller(store.cancels, self._in_flight)
        follow_relayer = FollowRelayer(store, queues, config.janitor_interval, outages)
        child_relayer = ChildRelayer(store, config.janitor_interval, outages)
        subscriber = Subscriber(
            store.redis,
            queues,
            outages,
            on_cancel=canceller.cancel,
            on_delay=self._forwarder.wake,
            on_room=self._processor.below_limit,
            on_follow=follow_relayer.wake,
            on_ended=child_relayer.wake,
        )
        pending_watcher = PendingWatcher(
            store.redis, self._work, queues, self.worker_id, outages,
            asleep=self._processor.asleep, found=self._processor.found,
        )  # fmt: skip
        self._recorder = Recorder(Stats(store.redis), self.worker_id, self._counts, outages)
        roles: list[Role] = [
            self._syncer,
            follow_relayer,
            child_relayer,
            self._recoverer,
            subscriber,
            wake_listener,
            pending_watcher,
            Janitor(store, config.janitor_interval, outages),
            self._recorder,
            unserved_reporter,
        ]
        if config.share_with_go and not config.burst:
            roles.append(go_watcher)
        if config.health_check is not None:
            roles.append(Healthchecker(store, config.health_check, config.health_check_interval, outages))
        if any(one.queue is None or one.queue in self.queues for one in self.app.aggregations):
            roles.append(self._aggregator(outages))
        self._limiter = Limiter(store.limits, limit_specs(self.app, queues), outages)
        if self._limiter.has_limits:
            roles.append(self._limiter)
        roles += [self._forwarder, self._processor]
        self._scheduler: SchedulerRole | None = None
        if config.scheduler and self.app.schedules and not config.burst:
            client = self._client()
            self._scheduler = SchedulerRole(self.app.scheduler_on(client), outages)
            roles.append(self._scheduler)
        self._roster = Roster(roles, self._restarts)

    def _aggregator(self, outages: OutageLog) -> Aggregator:
        """Aggregation functions have their own threads, so that busy handlers do not delay the groups."""
        client = self._client()
        group_runner = self._group_runner_for(client, self._processor.found)
        return Aggregator(self._store.groups, self.app.aggregations, self.queues, group_runner, outages)

    def _group_runner_for(self, client: Client, on_work: Callable[[str], None]) -> GroupRunner:
        mux = Mux(self.app.tasks, self.app.patterns, ())
        delay_of = functools.partial(mux.retry_delay, default=self.config.retry_delay)
        return GroupRunner(self._store.groups, client, self.bus, self._clock, self._group_threads, on_work, delay_of)

    def _client(self) -> Client:
        """Sends over this worker's connection."""
        return Client(self._store, max_payload=self.app.max_payload, clock=self._clock)

    def _free_slots(self) -> FreeSlots:
        """How many more handlers each pool can start now; 0 for a pool that no task of the app uses."""
        free, busy = self._in_flight.free, self._in_flight.busy_in
        if self.config.max_tasks:
            free = min(free, self.config.max_tasks - self._attempt_runner.started)
        slots = {
            "loop": free,
            "thread": min(free, self._threads.free(busy["thread"])),
            "process": min(free, self._processes.free(busy["process"])),
        }
        return FreeSlots(*[max(0, slots[pool]) if pool in self._pools else 0 for pool in POOLS])

    def _describe(self) -> ServerRecord:
        return ServerRecord(
            host=socket.gethostname() or "unknown-host",
            pid=os.getpid(),
            server_id=self.worker_id,
            concurrency=self.config.concurrency,
            queues=self.queues,
            strict_priority=self.config.strict,
            status=self._status,
            started_at=self._started_at,
            active_worker_count=self._in_flight.busy,
            startable=shown(self._startable, [(one.pattern, one.queue or "") for one in self.app.aggregations]),
            version=__version__,
            memory_mb=resident_mb(),
        )

    @property
    def signs(self) -> WorkerSigns:
        """The facts that decide whether this worker is healthy."""
        started = self._status != "new"
        return WorkerSigns(
            status=self._status,
            beat_age=time.monotonic() - self._heartbeater.beaten_at if started else 0.0,
            lease=self.config.lease,
            restarting=tuple(self._restarts.problems()) if started else (),
            busy=self._in_flight.busy if started else 0,
            overrun=self._in_flight.overrun(time.monotonic()) if started else 0,
            restarts=dict(self._restarts.counts) if started else {},
        )

    # Running.

    def request_stop(self) -> None:
        """Finish running tasks, then stop. A second call gives running tasks back at once."""
        if self._stop_requested.is_set():
            self._abort_requested.set()
        self._stop_requested.set()

    def quiet(self) -> None:
        """Take no new tasks, but keep running."""
        self._quiet = True
        if self._status == "new":
            return  # `_begin` calls this again
        self._status = "stopped"
        self._processor.stop()

    def _asked(self, what: str) -> None:
        """The command line or the dashboard asks for `quiet` or `stop`; repeated with every heartbeat."""
        if self._status == "active":
            logger.info("asked to %s: this worker takes no more tasks", what)
            self.quiet()
        if what == "stop":
            self._stop_requested.set()

    async def wait(self) -> None:
        """Until a stop is requested: by a signal, by `burst`, or by a limit."""
        await self._stop_requested.wait()

    async def _watch(self) -> None:
        """Stop the worker when a condition of its settings is met: burst, max_tasks, max_memory."""
        config = self.config
        while not self._stop_requested.is_set():
            await asyncio.sleep(0.05 if config.burst or config.max_tasks else 1.0)
            settled = not self._in_flight.held() and self._settler.idle and self._syncer.idle
            if config.burst and settled and self._processor.all_empty and not await self._is_more():
                self.request_stop()
            elif config.max_tasks and self._attempt_runner.started >= config.max_tasks:
                self._recycle(f"it has run {self._attempt_runner.started} tasks")
            elif config.max_memory and (used := resident_mb()) > config.max_memory:
                self._recycle(f"it uses {used} MB")

    async def _is_more(self) -> bool:
        """Before a burst ends: the processor may not have seen a task that waits for a limit or for its order key."""
        more, passed_over = False, self._processor.passed_over
        for queue in self.queues:
            try:
                is_waiting = await self._store.limits.waits(queue, but_pending=queue in passed_over)
            except CommandRefused:
                continue  # a damaged queue: no worker can take anything from it
            except StoreError:
                return True
            if is_waiting:
                more = True
                self._processor.found(queue)
        return more

    def _is_stopping(self) -> bool:
        return self._stop_requested.is_set()

    def _restarted(self, name: str) -> None:
        """Called from any thread; listeners run on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.bus.emit, RoleRestarted(name))

    def _recycle(self, reason: str) -> None:
        if not self._stop_requested.is_set():
            logger.info("this process will be replaced: %s", reason)
            self.exit_code = EXIT_RECYCLE
            self.request_stop()

    def _overran(self, attempt: Attempt) -> None:
        """A handler that ignores its deadline cannot be stopped, but its process can, once the other tasks are done."""
        self.bus.emit(TaskOverran(attempt.message, attempt.where))
        if self._shared is not None and self._draining is None and not self._stop_requested.is_set():
            logger.warning(
                "this process takes no more tasks, and is replaced when all tasks but %s (%s) have ended",
                attempt.task_id,
                attempt.kind,
            )
            self.quiet()
            self._shared.drain()
            drain = self._restarts.keep("drain", lambda: self._drain(attempt), is_over=self._is_stopping)
            self._draining = asyncio.create_task(drain)

    def _misjudged(self, leases: int) -> None:
        logger.error(
            "this worker looked dead to others, because all connections that show its life were closed for two seconds:"
            " %d of its tasks were recovered although it is alive",
            leases,
        )
        self.bus.emit(WorkerMisjudged(leases))

    async def _drain(self, stuck: Attempt) -> None:
        for attempt in self._in_flight.running():
            if attempt.lease.latest == math.inf:  # it waits for a slot that may never be free again
                attempt.force(End.ABORTED)
        while tasks := self._shutdown.unfinished(stuck_too=False):
            await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        self._recycle(f"task {stuck.task_id} ({stuck.kind}) does not end")

    def _hung(self, what: str) -> None:
        """Called from the heartbeater's thread. A process whose event loop hangs cannot be stopped any other way."""
        logger.critical("%s: this process ends and is replaced", what)
        sys.stderr.flush()
        os._exit(EXIT_HUNG)

    # Stopping.

    async def stop(self) -> None:
        """Take no new tasks, let running handlers finish for `shutdown_timeout`, give back the rest, write
        everything."""
        if self._status in ("new", "closed"):
            return
        self._stop_requested.set()
        for task in (self._watcher, self._draining):
            if task is not None:
                task.cancel()
        self._status = "stopped"
        if self._scheduler is not None:
            await self._roster.stop(self._scheduler)
        await self._roster.stop(self._forwarder)
        await self._roster.stop(self._processor)
        # If this process stops because of stuck handlers, it does not wait for them.
        stuck_too = self._draining is None
        await self._shutdown.finish(self.config.shutdown_timeout, self._abort_requested, stuck_too=stuck_too)
        await self._shutdown.give_back()
        await self._settler.drain()
        await self._roster.stop_all()
        await self._settler.drain()
        with contextlib.suppress(StoreError, TimeoutError):  # a few seconds of the statistics are lost then
            async with asyncio.timeout(LAST_RECORD):
                await self._recorder.step()
        self._threads.close()
        self._processes.close()
        self._group_threads.close()
        self._step_threads.close()
        await close(self._companions, "a companion")
        await close(self._lifespan, "the lifespan")
        self._status = "closed"
        await self._heartbeater.stop()
        self.left_behind = await self._shutdown.end_stuck()
        await self._store.close()
