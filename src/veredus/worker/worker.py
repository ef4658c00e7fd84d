"""Worker: puts the roles together, starts them, and stops them without losing anything."""

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
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from veredus import forks
from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.errors import CommandRefused, ConfigError, NotReady, StoreError, WorkerStopped
from veredus.events import Bus, RoleRestarted, TaskOverran
from veredus.model.limits import queue_specs, task_specs
from veredus.model.pools import POOLS, Rooms
from veredus.model.settlement import Requeue
from veredus.model.verdict import End
from veredus.restarts import Restarts
from veredus.store.roll import Roll
from veredus.store.store import LARGEST_VALUE, Store
from veredus.store.work import Work
from veredus.wire.presence import ServerRecord
from veredus.wire.types import shown, startable
from veredus.worker.aggregation import Foundry
from veredus.worker.announcement import announce, warn_of_eviction
from veredus.worker.attempt import Workshop
from veredus.worker.canceller import Canceller
from veredus.worker.complaints import Complaints
from veredus.worker.config import WorkerConfig
from veredus.worker.executors.processes import ProcessPool
from veredus.worker.executors.threads import ThreadPool
from veredus.worker.hands import Attempt, Hands
from veredus.worker.health import Signs
from veredus.worker.lifespan import close, open_lifespan
from veredus.worker.memory import resident_mb
from veredus.worker.mux import Mux
from veredus.worker.reports import Reports
from veredus.worker.requests import Requests
from veredus.worker.role import Role, Roster
from veredus.worker.roles.aggregator import IN_FLIGHT, Aggregator
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.healthchecker import Healthchecker
from veredus.worker.roles.heartbeater import Heartbeater
from veredus.worker.roles.herald import Herald
from veredus.worker.roles.janitor import Janitor
from veredus.worker.roles.limiter import Limiter
from veredus.worker.roles.processor import Processor
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.scheduler import SchedulerRole
from veredus.worker.roles.sharer import Sharer
from veredus.worker.roles.subscriber import Subscriber
from veredus.worker.roles.syncer import Syncer
from veredus.worker.roles.unserved import Unserved
from veredus.worker.settlement import Settler
from veredus.worker.shared_beat import SharedBeat

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")
T = TypeVar("T")

LOADING_PATIENCE = 60.0
"""Seconds to wait at the start for a server that is still loading."""
EXIT_RECYCLE = 75
"""A child that wants to be replaced ends with this code."""
EXIT_HUNG = 70
"""A child whose event loop hangs ends itself with this code."""


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
        """Runs when this process is to be replaced because a handler does not end."""
        self.left_behind = False
        """Whether it stopped without handlers that do not end: their tasks are settled, so the process ends at once."""

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
            raise WorkerStopped("this worker was started before; make a new one")
        self._loop = asyncio.get_running_loop()
        forks.end_in(self._loop)
        self._clock = ServerClock()
        redis = self.app.open_redis(f"veredus-worker-{self.worker_id[:8]}")
        self._store = Store(redis, archive=self.app.archive)
        self._lifespan = contextlib.AsyncExitStack()
        try:
            await self._check_server()
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
        """From here on others can see it."""
        await self._when_ready(self._register)
        await self._when_ready(self._limiter.declare)
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
        """A list of queues that is no set holds up no worker; the recoverer registers them once that is mended."""
        try:
            await self._store.register(list(self.queues))
        except CommandRefused as exc:
            if "WRONGTYPE" not in str(exc):
                raise
            logger.error("the queues of this worker cannot be registered: %s", exc)

    def _compose(self) -> None:
        config, store, largest = self.config, self._store, self._largest_value
        self._restarts = Restarts(self._restarted)
        complaints = Complaints(many_servers=store.redis.address.kind == "cluster")
        names = {name: task.run_in for name, task in self.app.tasks.items()}
        patterns = {name: task.run_in for name, task in self.app.patterns.items()}
        self._pools = {*names.values(), *patterns.values()} or {"loop"}
        self._startable = startable(names, patterns)
        self._work = Work(
            store.redis,
            self.worker_id,
            lease_ms=config.lease_ms,
            archive=store.archive,
            startable=self._startable,
        )
        self._hands = Hands(config.concurrency, lambda: self._processor.wake())
        self._syncer = Syncer(1.0, complaints)
        self._settler = Settler(self._work, self._hands, self.bus, self._syncer.keep)
        self._syncer.settler = self._settler
        self._threads = ThreadPool(config.threads, lambda: self._processor.wake())
        self._group_threads = ThreadPool(IN_FLIGHT, lambda: None)
        self._processes = ProcessPool(config.process_pool)
        mux = Mux(self.app.tasks, self.app.patterns, self.app.middlewares)
        reports = Reports(store.results, self._clock, Requests(store.outbox, self._clock), max_result=largest)
        self._workshop = Workshop(
            config, mux, self._hands, self._settler, self.bus, self._clock, self._threads, self._processes,
            self.app.result_ttl, reports, max_result=largest,
        )  # fmt: skip
        unserved = Unserved(Roll(store.redis), config.lease / 2, complaints)
        sharer = Sharer(Roll(store.redis), self.queues, complaints)
        self._processor = Processor(
            self._work,
            store.redis,
            self.queues,
            strict=config.strict,
            lease=config.lease,
            hands=self._hands,
            workshop=self._workshop,
            bus=self.bus,
            complaints=complaints,
            rooms=self._rooms,
            on_unknown=unserved.met,
            shares=sharer.shares,
        )
        self._forwarder = Forwarder(
            store.delays, list(self.queues), config.forward_interval, complaints, self.bus, self._processor.found
        )
        self._recoverer = Recoverer(
            store, self._work, self.worker_id, config, mux, self._clock, complaints, self.bus,
            list(self.queues), lambda: self._heartbeater.steady_since,
        )  # fmt: skip
        canceller = Canceller(store.cancels, self._hands)
        herald = Herald(store, list(self.queues), config.janitor_interval, complaints)
        subscriber = Subscriber(
            store.redis,
            list(self.queues),
            complaints,
            canceller.told,
            self._forwarder.wake,
            self._processor.room,
            herald.wake,
        )
        roles: list[Role] = [
            self._syncer,
            herald,
            self._recoverer,
            subscriber,
            Janitor(store, config.janitor_interval, complaints),
            unserved,
        ]
        if config.share_with_go and not config.burst:
            roles.append(sharer)
        if config.health_check is not None:
            roles.append(Healthchecker(store, config.health_check, config.health_check_interval, complaints))
        if any(one.queue is None or one.queue in self.queues for one in self.app.aggregations):
            roles.append(self._aggregator(complaints))
        self._limiter = Limiter(store.limits, self._limit_specs(), complaints)
        if self._limiter.has_limits:
            roles.append(self._limiter)
        roles += [self._forwarder, self._processor]
        self._scheduler: SchedulerRole | None = None
        if config.scheduler and self.app.schedules and not config.burst:
            client = Client(store, max_payload=self.app.max_payload, clock=self._clock)
            self._scheduler = SchedulerRole(self.app.scheduler_on(client), complaints)
            roles.append(self._scheduler)
        self._roster = Roster(roles, self._restarts)
        self._heartbeater = Heartbeater(
            lambda: self.app.open_redis(f"veredus-heart-{self.worker_id[:8]}"),
            config,
            self._hands,
            self._clock,
            self._describe,
            self._overran,
            self._hung,
            complaints,
            self._restarts,
            self._shared,
        )

    def _aggregator(self, complaints: Complaints) -> Aggregator:
        """Its functions have threads of their own: handlers that fill the worker's must not hold up the groups."""
        client = Client(self._store, max_payload=self.app.max_payload, clock=self._clock)
        foundry = self._foundry_for(client, self._processor.found)
        return Aggregator(self._store.groups, self.app.aggregations, self.queues, foundry, complaints)

    def _foundry_for(self, client: Client, on_work: Callable[[str], None]) -> Foundry:
        mux = Mux(self.app.tasks, self.app.patterns, ())
        delay_of = functools.partial(mux.retry_delay, default=self.config.retry_delay)
        return Foundry(self._store.groups, client, self.bus, self._clock, self._group_threads, on_work, delay_of)

    async def _check_server(self) -> None:
        """Refuse what cannot work, warn of what will lose tasks."""
        # Before the first task is taken: with a wrong clock, deadlines would seem to have passed.
        await self._when_ready(lambda: self._store.set_clock(self._clock))
        info = await self._when_ready(lambda: self._store.redis.command("INFO", "server", key=""))
        info = info.decode(errors="replace")
        version = next((line.split(":")[1] for line in info.splitlines() if line.startswith("redis_version:")), "")
        numbers = tuple(int(part) for part in version.strip().split(".")[:2] if part.isdigit())
        if numbers and numbers < (6, 2):
            raise ConfigError("redis server", version.strip(), "Redis 6.2 or newer, or Valkey")
        await warn_of_eviction(self._store)
        self._largest_value = await self._store.largest_value()

    async def _when_ready(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A server that has just been started reads its data first: that is no reason to give up."""
        give_up = time.monotonic() + LOADING_PATIENCE
        while True:
            try:
                return await ask()
            except NotReady as exc:
                if time.monotonic() > give_up:
                    raise
                logger.warning("the server is not ready yet: %s", exc)
                await asyncio.sleep(1.0)

    def _rooms(self) -> Rooms:
        """How many more handlers each pool can start now. A pool that no task of the app uses has no room."""
        free, busy = self._hands.free, self._hands.busy_in
        if self.config.max_tasks:
            free = min(free, self.config.max_tasks - self._workshop.started)
        rooms = {
            "loop": free,
            "thread": min(free, self._threads.room(busy["thread"])),
            "process": min(free, self._processes.room(busy["process"])),
        }
        return Rooms(*[max(0, rooms[pool]) if pool in self._pools else 0 for pool in POOLS])

    def _limit_specs(self) -> dict[str, dict[str, str]]:
        """The limits of the queues that this worker serves, as the app has them; those that it no longer has, too."""
        specs: dict[str, dict[str, str]] = {queue: {} for queue in self.queues}
        for name, task in [*self.app.tasks.items(), *self.app.patterns.items()]:
            if task.options.queue in specs:
                specs[task.options.queue] |= task_specs(name, task.limits)
        for queue, limits in self.app.limits.items():
            if queue in specs:
                specs[queue] |= queue_specs(limits)
        return specs

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
            active_worker_count=self._hands.busy,
            startable=shown(self._startable, [(one.pattern, one.queue or "") for one in self.app.aggregations]),
        )

    @property
    def signs(self) -> Signs:
        """What its health is judged by."""
        started = self._status != "new"
        return Signs(
            status=self._status,
            beat_age=time.monotonic() - self._heartbeater.beaten_at if started else 0.0,
            lease=self.config.lease,
            restarting=tuple(self._restarts.problems()) if started else (),
            busy=self._hands.busy if started else 0,
            overrun=self._hands.overrun(time.monotonic()) if started else 0,
            restarts=dict(self._restarts.counts) if started else {},
        )

    # Running.

    def request_stop(self) -> None:
        """Finish what runs, then stop. Asked twice: give back what runs, now."""
        if self._stop_requested.is_set():
            self._abort_requested.set()
        self._stop_requested.set()

    def quiet(self) -> None:
        """Take no new tasks, but stay alive."""
        self._quiet = True
        if self._status == "new":
            return  # it will not even take the first ones
        self._status = "stopped"
        self._processor.stop()

    async def wait(self) -> None:
        """Until a stop is requested: by a signal, by `burst`, or by a limit."""
        await self._stop_requested.wait()

    async def _watch(self) -> None:
        """Conditions under which a worker ends by itself."""
        config = self.config
        while not self._stop_requested.is_set():
            await asyncio.sleep(0.05 if config.burst or config.max_tasks else 1.0)
            settled = not self._hands.held() and self._settler.idle and self._syncer.idle
            if config.burst and settled and self._processor.all_empty and not await self._is_more():
                self.request_stop()
            elif config.max_tasks and self._workshop.started >= config.max_tasks:
                self._recycle(f"it has run {self._workshop.started} tasks")
            elif config.max_memory and (used := resident_mb()) > config.max_memory:
                self._recycle(f"it uses {used} MB")

    async def _is_more(self) -> bool:
        """Before a burst ends: a task whose turn has just come, or that waits for a limit, is not seen yet."""
        more, passed_over = False, self._processor.passed_over
        for queue in self.queues:
            try:
                is_waiting = await self._store.limits.waits(queue, but_pending=queue in passed_over)
            except CommandRefused:
                continue  # a damaged queue: nobody can take anything from it
            except StoreError:
                return True
            if is_waiting:
                more = True
                self._processor.found(queue)
        return more

    def _is_stopping(self) -> bool:
        return self._stop_requested.is_set()

    def _restarted(self, name: str) -> None:
        """Also called from the heartbeater's thread; listeners are called on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.bus.emit, RoleRestarted(name))

    def _recycle(self, reason: str) -> None:
        if not self._stop_requested.is_set():
            logger.info("this process will be replaced: %s", reason)
            self.exit_code = EXIT_RECYCLE
            self.request_stop()

    def _overran(self, attempt: Attempt) -> None:
        """A handler that runs on after its deadline cannot be ended, but its process can, when the others are done."""
        self.bus.emit(TaskOverran(attempt.message, attempt.where))
        if self._shared is not None and self._draining is None and not self._stop_requested.is_set():
            logger.warning(
                "this process takes no more tasks, and is replaced when all but task %s (%s) have ended",
                attempt.task_id,
                attempt.kind,
            )
            self.quiet()
            self._shared.drain()
            drain = self._restarts.keep("drain", lambda: self._drain(attempt), is_over=self._is_stopping)
            self._draining = asyncio.create_task(drain)

    async def _drain(self, stuck: Attempt) -> None:
        for attempt in self._hands.running():
            if attempt.lease.latest == math.inf:  # it waits for a slot, which may never be free again
                attempt.force(End.ABORTED)
        while tasks := self._running_tasks(stuck_too=False):
            await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        self._recycle(f"task {stuck.task_id} ({stuck.kind}) does not end")

    def _hung(self, what: str) -> None:
        """Called from the heartbeater's thread: a process whose loop hangs cannot be ended in any gentler way."""
        logger.critical("%s: this process ends and is replaced", what)
        sys.stderr.flush()
        os._exit(EXIT_HUNG)

    # Stopping.

    async def stop(self) -> None:
        """Senders stop before receivers; running handlers get their time; the rest is given back; nothing earned is
        lost."""
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
        await self._finish_running(self.config.shutdown_timeout)
        await self._give_back_running()
        await self._settler.drain()
        await self._roster.stop_all()
        await self._settler.drain()
        self._threads.close()
        self._processes.close()
        self._group_threads.close()
        await close(self._companions, "a companion")
        await close(self._lifespan, "the lifespan")
        self._status = "closed"
        await self._heartbeater.stop()
        await self._end_stuck()
        await self._store.close()

    async def _finish_running(self, seconds: float) -> None:
        """Handlers that are stuck get this time only if a stop was asked for, not if it is because of them."""
        stuck_too = self._draining is None
        tasks = self._running_tasks(stuck_too)
        if not tasks:
            return
        logger.info("stopping: %d running tasks have up to %g s to finish", len(tasks), seconds)
        abort = asyncio.create_task(self._abort_requested.wait())
        ends = time.monotonic() + seconds
        while tasks and not abort.done() and (left := ends - time.monotonic()) > 0:
            await asyncio.wait([*tasks, abort], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            tasks = self._running_tasks(stuck_too)
        abort.cancel()

    async def _give_back_running(self) -> None:
        running = [attempt for attempt in self._hands.running() if attempt.forced is not End.TIMED_OUT]
        if not running:
            return
        logger.warning("giving back %d tasks that did not finish in time", len(running))
        for attempt in running:
            attempt.force(End.ABORTED)
        tasks = [attempt.task for attempt in running if attempt.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        # Handlers that ignore being cancelled: their tasks go back all the same, and what they do later is void.
        for attempt in running:
            if attempt.running:
                self._settler.settle(attempt.queue, Requeue(attempt.task_id, attempt.owner), attempt)

    async def _end_stuck(self) -> None:
        """Handlers that run on after their deadline: their attempts end as timed out, as late as can be, so that the
        next attempt does not begin before this process has ended."""
        stuck = [attempt for attempt in self._hands.running() if attempt.forced is End.TIMED_OUT]
        if not stuck:
            return
        self.left_behind = True
        logger.warning("%d handlers that do not end are left behind; their tasks have timed out", len(stuck))
        await asyncio.gather(*(self._workshop.end_without_handler(attempt) for attempt in stuck))
        await self._settler.drain()

    def _running_tasks(self, stuck_too: bool = True) -> list[asyncio.Task[Any]]:
        now = time.monotonic()
        return [
            attempt.task
            for attempt in self._hands.held()
            if attempt.task is not None
            and not attempt.task.done()
            and (stuck_too or not (attempt.running and attempt.lease.is_overrun(now)))
        ]
