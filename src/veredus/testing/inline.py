"""A worker that runs its jobs one after the other when a test asks for it, instead of by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from typing import Any

from veredus.client.client import Client
from veredus.errors import StoreError
from veredus.events import Event, ItemDropped, TaskEnded
from veredus.handlers.context import Context
from veredus.handlers.lifespan import close, open_lifespan
from veredus.model.build import new_id
from veredus.model.grouping import backoff, find
from veredus.model.priority import by_priority
from veredus.scheduler.scheduler import Scheduler
from veredus.store.store import Store
from veredus.store.tasks.groups import MADE, GroupProbe
from veredus.testing.clock import ManualClock
from veredus.worker.group_runner import StagedSet
from veredus.worker.roles.child_relayer import relay
from veredus.worker.wait_looker import WaitLooker
from veredus.worker.worker import Worker

logger = logging.getLogger("veredus.testing")

SET_SECONDS = 120.0
AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class PlannedCrash:
    """Where a worker dies, once: `inside` or `after` a durable call, given by its name or its number in the attempt."""

    where: str
    what: str | int

    def fits(self, where: str, name: str, number: int) -> bool:
        return where == self.where and self.what == (name if isinstance(self.what, str) else number)


class InlineWorker(Worker):
    """The real worker's parts, called in turn. Nothing runs while none of its methods does."""

    crashes: list[PlannedCrash]

    async def open(self, clock: ManualClock) -> None:
        self._stop_requested, self._abort_requested = asyncio.Event(), asyncio.Event()
        self._clock = clock
        self._store = Store(self.app.open_redis("veredus-test-worker"), archive=self.app.archive)
        self._lifespan = contextlib.AsyncExitStack()
        try:
            await open_lifespan(self.app, self._lifespan)
            await self._open(clock)
        except BaseException:
            await close(self._lifespan, "the lifespan")
            await self._store.close()
            raise

    async def _open(self, clock: ManualClock) -> None:
        self._compose()
        self._execution.reports.crash = self._crash
        await self._roles.limiter.declare()
        client = Client(self._store, max_payload=self.app.max_payload, clock=clock)
        self._cron = Scheduler(client, self.app.schedules, self.app.schedule_scope(), clock=clock)
        self._group_runner = self._roles.group_runner(client, lambda queue: None)
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}
        self._limited: dict[str, float] = {}
        """Queues at their limit, and when there is room again."""
        self._ended = asyncio.Event()
        self.bus.subscribe(self._hear)
        await self.tick()

    async def close(self) -> None:
        for attempt in self._in_flight.running():
            attempt.cancel("archive")
        self._execution.close()
        try:
            await self._cron.leave()
            await self._lifespan.aclose()
        finally:
            self._execution.attempt_runner.close()
            await self._store.close()

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskEnded):
            self._ended.set()

    def _crash(self, context: Context, where: str, name: str, number: int) -> bool:
        for crash in self.crashes:
            if crash.fits(where, name, number):
                self.crashes.remove(crash)
                self._in_flight.crash(context)
                return True
        return False

    async def tick(self) -> None:
        """Do what is due at this instant: schedules fire, delayed tasks and ripe groups become pending, what was kept
        long enough goes."""
        if self.app.schedules:
            await self._cron.step()
        for result in await self._store.delays.forward(list(self.queues)):
            if isinstance(result, StoreError):
                raise result
            for task_id, reason in result.dropped:
                self.bus.emit(ItemDropped("", task_id, reason))
        await self._store.retention.expire(list(self.queues), AT_ONCE)
        await WaitLooker(self._store, self._outages, clock=self._clock).look(list(self.queues))

    async def run_pending(self) -> None:
        """Until nothing is pending and nothing runs."""
        while True:
            self._ended.clear()
            started = await self._take() if self._in_flight.free > 0 else 0
            if started and self._in_flight.free > 0:
                continue
            if self._in_flight.busy:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02 if self._in_flight.free else None):
                        await self._ended.wait()
                continue
            await self._execution.settler.drain()
            if started or await self._take():  # what has ended may have called others, as a child its parent
                continue
            if not await self._aggregate() and not await self._relay():
                return

    async def _relay(self) -> bool:
        """Bring the outcomes of children to their parents; True if there were any."""
        return any([await relay(self._store, queue) for queue in self.queues])

    async def _take(self) -> int:
        started = 0
        for queue in by_priority(self.queues):
            if self._in_flight.free <= 0:
                break
            leased_until = self._clock.monotonic() + self.config.lease
            batch = await self._execution.work.dequeue(queue, self._in_flight.free)
            for task_id, reason in batch.dropped:
                self.bus.emit(ItemDropped(queue, task_id, reason))
            self._execution.attempt_runner.start(queue, batch, leased_until)
            started += len(batch.rows)
            self._limited.pop(queue, None)
            if batch.wait is not None:
                self._limited[queue] = self._clock.time() + batch.wait
        return started

    async def next_event_ms(self, *, schedules: bool = True) -> float:
        """When something becomes due next, in Unix ms; infinity if nothing waits for time."""
        moments = [math.inf]
        now = self._clock.time()
        for result in await self._store.delays.forward(list(self.queues)):
            if isinstance(result, StoreError):
                raise result
            if result.wait is not None:
                moments.append(math.ceil(round((now + result.wait) * 1000, 3)))
        if schedules and self._cron.next_tick is not None:
            moments.append(self._cron.next_tick * 1000)
        moments += [at * 1000 for at in self._limited.values()]
        moments += [(now + wait) * 1000 for wait in await self._ripening()]
        return max(min(moments), now * 1000)

    # Aggregate one set of every ripe group; True if there was one.

    async def _aggregate(self) -> bool:
        """Make one set of every group that is ripe; True if there was one."""
        made = False
        for queue, group, probe in await self._probes():
            [checked] = await self._check(queue, probe)
            aggregation = find(self.app.aggregations, queue, group)
            if checked.code != MADE or aggregation is None:
                continue
            made = True
            staged = StagedSet(queue, group, probe.set_id, aggregation)
            try:
                await self._group_runner.run(staged)
            except Exception:
                logger.exception("group %s of queue %s could not be aggregated", group, queue)
                failures = self._failures.get((queue, group), (0, 0.0))[0] + 1
                self._failures[queue, group] = failures, self._clock.time() + backoff(failures)
                await self._store.groups.give_back(queue, group, probe.set_id)
            else:
                self._failures.pop((queue, group), None)
        return made

    async def _ripening(self) -> list[float]:
        """Seconds until each group is ripe, or may be tried again."""
        waits = []
        now = self._clock.time()
        for queue, group, probe in await self._probes(also_failed=True):
            if (queue, group) in self._failures:
                waits.append(max(0.0, self._failures[queue, group][1] - now))
                continue
            [checked] = await self._check(queue, probe, most=0)
            if checked.wait is not None:
                waits.append(checked.wait)
        return waits

    async def _probes(self, also_failed: bool = False) -> list[tuple[str, str, GroupProbe]]:
        found = []
        names = await self._store.groups.names(list(self.queues))
        for queue, groups in zip(self.queues, names, strict=True):
            for group in [] if isinstance(groups, StoreError) else groups:
                one = find(self.app.aggregations, queue, group)
                failed = self._failures.get((queue, group), (0, 0.0))[1] > self._clock.time()
                if one is not None and (also_failed or not failed):
                    delay, grace = round((one.max_delay or 0) * 1000), round(one.grace * 1000)
                    found.append((queue, group, GroupProbe(group, new_id(), one.max_size or 0, delay, grace)))
        return found

    async def _check(self, queue: str, probe: GroupProbe, most: int = 1) -> list[Any]:
        [result] = await self._store.groups.check([(queue, [probe])], limit=most, set_ms=round(SET_SECONDS * 1000))
        if isinstance(result, StoreError):
            raise result
        return result
