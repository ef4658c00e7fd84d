"""Worker: builds the roles, starts them, and stops them without losing a task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Self

from veredus import __version__
from veredus.clock import ServerClock
from veredus.errors import CommandRefused, StoreError, WorkerStopped
from veredus.events import Bus, RoleRestarted, TaskOverran, WorkerMisjudged
from veredus.handlers.lifespan import close, open_lifespan
from veredus.model.verdict import End
from veredus.process import forks
from veredus.process.memory import resident_mb
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.store import LARGEST_VALUE, Store, when_ready
from veredus.wire.presence import ServerRecord
from veredus.wire.types import shown
from veredus.worker.attempt import Attempt
from veredus.worker.config import WorkerConfig
from veredus.worker.execution import Execution, WorkerBase
from veredus.worker.health import WorkerSigns
from veredus.worker.roles.heartbeater import Heartbeater, HeartbeatHooks
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.startup import announce, check_server
from veredus.worker.worker_roles import WorkerRoles

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
        await when_ready(self._roles.limiter.declare)
        self._heartbeater.start()
        if self.config.burst:
            await self._roles.forwarder.step()
        if self._quiet:
            self.quiet()
        self._roles.roster.start()
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
        store = self._store
        self._restarts = Restarts(self._restarted)
        self._outages = OutageLog(many_servers=store.redis.address.kind == "cluster")
        base = WorkerBase(
            self.app,
            self.config,
            self.worker_id,
            self.queues,
            store,
            self._clock,
            self.bus,
            self._outages,
            self._restarts,
        )
        execution = Execution(base, largest_value=self._largest_value, on_free=lambda: self._roles.processor.wake())
        self._execution, self._in_flight = execution, execution.in_flight
        self._roles: WorkerRoles = WorkerRoles(
            base,
            execution,
            steady_since=lambda: self._heartbeater.steady_since,
            on_recovered=lambda worker_id: self._heartbeater.liveness.recovered(worker_id),
        )
        self._heartbeater: Heartbeater = Heartbeater(
            lambda: self.app.open_redis(f"veredus-heart-{self.worker_id[:8]}"),
            self.config,
            self._in_flight,
            self._clock,
            HeartbeatHooks(
                self._describe,
                self._overran,
                self._hung,
                self._asked,
                execution.records.shown_payload,
                self._roles.recoverer.found_dead,
                self._misjudged,
            ),
            self._outages,
            self._restarts,
            self._shared,
            self.worker_id,
        )

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
            startable=shown(
                self._execution.startable, [(one.pattern, one.queue or "") for one in self.app.aggregations]
            ),
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
        self._roles.processor.stop()

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
            if (
                config.burst
                and self._execution.is_settled
                and self._roles.processor.all_empty
                and not await self._roles.is_more_waiting()
            ):
                self.request_stop()
            elif config.max_tasks and self._execution.attempt_runner.started >= config.max_tasks:
                self._recycle(f"it has run {self._execution.attempt_runner.started} tasks")
            elif config.max_memory and (used := resident_mb()) > config.max_memory:
                self._recycle(f"it uses {used} MB")

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
        while tasks := self._execution.shutdown.unfinished(stuck_too=False):
            await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        self._recycle(f"task {stuck.task_id} ({stuck.kind}) does not end")

    def _hung(self, what: str) -> None:
        """Called from the heartbeater's thread. A process whose event loop hangs cannot be stopped any other way."""
        logger.critical("%s: this process ends and is replaced", what)
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
        if self._roles.scheduler is not None:
            await self._roles.roster.stop(self._roles.scheduler)
        await self._roles.roster.stop(self._roles.forwarder)
        await self._roles.roster.stop(self._roles.processor)
        # If this process stops because of stuck handlers, it does not wait for them.
        stuck_too = self._draining is None
        await self._execution.shutdown.finish(self.config.shutdown_timeout, self._abort_requested, stuck_too=stuck_too)
        await self._execution.shutdown.give_back()
        await self._execution.settler.drain()
        await self._roles.roster.stop_all()
        await self._execution.settler.drain()
        with contextlib.suppress(StoreError, TimeoutError):  # a few seconds of the statistics are lost then
            async with asyncio.timeout(LAST_RECORD):
                await self._roles.recorder.step()
        self._execution.close()
        await close(self._companions, "a companion")
        await close(self._lifespan, "the lifespan")
        self._status = "closed"
        await self._heartbeater.stop()
        self.left_behind = await self._execution.shutdown.end_stuck()
        self._execution.attempt_runner.close()
        await self._store.close()
