"""WorkerRoles: makes the roles of one worker and connects them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from veredus.client.client import Client
from veredus.errors import CommandRefused, StoreError
from veredus.handlers.mux import Mux
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.store.tasks.stats import Stats
from veredus.worker.canceller import Canceller
from veredus.worker.execution import Execution, WorkerBase
from veredus.worker.group_runner import GroupRunner
from veredus.worker.role import Role, Roster
from veredus.worker.roles.aggregator import Aggregator
from veredus.worker.roles.child_relayer import ChildRelayer
from veredus.worker.roles.follow_relayer import FollowRelayer
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.go_watcher import GoWatcher
from veredus.worker.roles.healthchecker import Healthchecker
from veredus.worker.roles.janitor import Janitor
from veredus.worker.roles.limiter import Limiter, limit_specs
from veredus.worker.roles.pending_watcher import PendingWatcher
from veredus.worker.roles.processor import Processor
from veredus.worker.roles.recorder import Recorder
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.scheduler_role import SchedulerRole
from veredus.worker.roles.subscriber import Subscriber
from veredus.worker.roles.unserved_reporter import UnservedReporter
from veredus.worker.roles.wake_listener import WakeListener


class WorkerRoles:
    """The roles that other parts of the worker use are attributes; the roster has them all."""

    def __init__(
        self,
        base: WorkerBase,
        execution: Execution,
        *,
        steady_since: Callable[[], float],
        on_recovered: Callable[[str], None],
    ) -> None:
        """The arguments by name come from the heartbeater, which is made later."""
        self._base, self._execution = base, execution
        self._queues = list(base.queues)
        store, config, outages = base.store, base.config, base.outages
        self.limiter = Limiter(store.limits, limit_specs(base.app, self._queues), outages)
        self.recorder = Recorder(Stats(store.redis), base.worker_id, execution.counts, outages)
        self._live_processes = LiveProcesses(store.redis)
        self._unserved_reporter = UnservedReporter(self._live_processes, config.lease / 2, outages)
        self._go_watcher = GoWatcher(self._live_processes, self._queues, outages)
        self._wake_listener = WakeListener(
            store.redis,
            self._queues,
            base.worker_id,
            outages,
            by_server=store.delays.by_server,
            on_wake=lambda queue: self.processor.found(queue),
        )
        self.processor = self._make_processor()
        self.forwarder = Forwarder(
            store.delays, self._queues, config.forward_interval, outages, base.bus, self.processor.found
        )
        self.recoverer = Recoverer(
            store, execution.work, base.worker_id, config, execution.mux, base.clock, outages, base.bus,
            self._queues, steady_since, execution.records, on_recovered,
        )  # fmt: skip
        self.scheduler: SchedulerRole | None = None
        if config.scheduler and base.app.schedules and not config.burst:
            self.scheduler = SchedulerRole(base.app.scheduler_on(execution.client()), outages)
        self.roster = Roster([*self._receivers(), *self._optional(), *self._senders()], base.restarts)

    def _make_processor(self) -> Processor:
        base, execution, store = self._base, self._execution, self._base.store
        return Processor(
            execution.work,
            base.queues,
            base.config,
            execution.attempt_runner,
            base.bus,
            base.outages,
            free_slots=execution.free_slots,
            channel_of=self._wake_listener.channel_of,
            on_unknown=self._unserved_reporter.met,
            shares=self._go_watcher.shares,
            by_node=store.delays.by_server if store.redis.address.kind == "cluster" else None,
        )

    def _receivers(self) -> list[Role]:
        """They start first and stop last."""
        base, execution, processor = self._base, self._execution, self.processor
        store, outages, interval = base.store, base.outages, base.config.janitor_interval
        follow_relayer = FollowRelayer(store, self._queues, interval, outages)
        child_relayer = ChildRelayer(store, interval, outages)
        subscriber = Subscriber(
            store.redis,
            self._queues,
            outages,
            on_cancel=Canceller(store.cancels, execution.in_flight).cancel,
            on_delay=self.forwarder.wake,
            on_room=processor.below_limit,
            on_follow=follow_relayer.wake,
            on_ended=child_relayer.wake,
        )
        pending_watcher = PendingWatcher(
            store.redis, execution.work, self._queues, base.worker_id, outages,
            asleep=processor.asleep, found=processor.found,
        )  # fmt: skip
        return [
            execution.syncer,
            follow_relayer,
            child_relayer,
            self.recoverer,
            subscriber,
            self._wake_listener,
            pending_watcher,
            Janitor(store, interval, outages),
            self.recorder,
            self._unserved_reporter,
        ]

    def _optional(self) -> list[Role]:
        """Roles that depend on the settings of the worker and on what its app declares."""
        base, config = self._base, self._base.config
        roles: list[Role] = []
        if config.share_with_go and not config.burst:
            roles.append(self._go_watcher)
        if config.health_check is not None:
            roles.append(Healthchecker(base.store, config.health_check, config.health_check_interval, base.outages))
        if any(one.queue is None or one.queue in base.queues for one in base.app.aggregations):
            roles.append(self._aggregator())
        if self.limiter.has_limits:
            roles.append(self.limiter)
        return roles

    def _senders(self) -> list[Role]:
        """They start last and stop first."""
        return [self.forwarder, self.processor, *([self.scheduler] if self.scheduler is not None else [])]

    def _aggregator(self) -> Aggregator:
        """Aggregation functions have their own threads, so that busy handlers do not delay the groups."""
        base = self._base
        group_runner = self.group_runner(self._execution.client(), self.processor.found)
        return Aggregator(base.store.groups, base.app.aggregations, base.queues, group_runner, base.outages)

    def group_runner(self, client: Client, on_work: Callable[[str], None]) -> GroupRunner:
        base = self._base
        mux = Mux(base.app.tasks, base.app.patterns, ())
        delay_of = functools.partial(mux.retry_delay, default=base.config.retry_delay)
        threads = self._execution.group_threads
        return GroupRunner(base.store.groups, client, base.bus, base.clock, threads, on_work, delay_of)

    async def is_more_waiting(self) -> bool:
        """Before a burst ends: the processor may not have seen a task that waits for a limit or for its order key."""
        more, passed_over = False, self.processor.passed_over
        for queue in self._queues:
            try:
                is_waiting = await self._base.store.limits.waits(queue, but_pending=queue in passed_over)
            except CommandRefused:
                continue  # a damaged queue: no worker can take anything from it
            except StoreError:
                return True
            if is_waiting:
                more = True
                self.processor.found(queue)
        return more
