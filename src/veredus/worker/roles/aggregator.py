"""Aggregator: checks each group when it may be ready, aggregates its members, and gives back stale sets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from veredus.errors import StoreError
from veredus.handlers.failure_log import log_with_traceback
from veredus.model.build import new_id
from veredus.model.failure import one_line
from veredus.model.grouping import Agenda, Aggregation, GroupKey, backoff, find
from veredus.process.outage_log import OutageLog
from veredus.store.tasks.groups import DAMAGED, EMPTY, LEFT_ALONE, MADE, Checked, GroupProbe, Groups
from veredus.worker.group_runner import GroupRunner, StagedSet
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

IN_FLIGHT = 3
"""Functions that run at once, as in Asynq. Only one per group, so that its tasks keep the order of their members."""
SET_SECONDS = 120.0
"""How long a set is ours. Afterwards any worker, Go servers included, gives its members back to the group."""
SPARE_SECONDS = 5.0
"""How much earlier the function times out."""
PAGE = 200
"""Groups checked in one call per queue."""
LOOK_FOR_SIZE = 2.0
"""The longest interval between two checks of a group's size, and between two listings of groups."""
FINISH_SECONDS = 3.0
"""How long running functions may go on when the worker stops. Then their sets are given back."""


class Aggregator(Role):
    name = "aggregator"

    def __init__(
        self,
        groups: Groups,
        aggregations: Sequence[Aggregation],
        queues: Mapping[str, int],
        group_runner: GroupRunner,
        outages: OutageLog,
    ) -> None:
        super().__init__(min(LOOK_FOR_SIZE, min(one.grace for one in aggregations) / 2), outages)
        self._groups = groups
        self._aggregations = aggregations
        self._queues = [queue for queue in queues if any(one.queue in (None, queue) for one in aggregations)]
        self._group_runner = group_runner
        self._wake = asyncio.Event()
        self._agenda = Agenda()
        self._list_at = 0.0
        self._running: dict[GroupKey, asyncio.Task[None]] = {}
        self._set_ids: dict[GroupKey, str] = {}
        """The id of each group's next set. It stays until the set is confirmed, so that a lost reply makes no second
        set."""
        self._unanswered: set[GroupKey] = set()
        self._failures: dict[GroupKey, int] = {}
        self._not_before: dict[GroupKey, float] = {}
        self._owed: list[StagedSet] = []
        """Sets that could not be given back because Redis was away. Retried before they expire."""
        self._reported: set[str] = set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._wake.clear()
                try:
                    await self.step()
                except StoreError as exc:
                    self.outages.error(self.name, "aggregator failed", exc)
                    self._list_at = time.monotonic() + 1.0
                await self._sleep()
            if self._running:
                await asyncio.wait(self._running.values(), timeout=FINISH_SECONDS)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def step(self) -> None:
        """Check the groups that are due, and start the functions of those that are ready."""
        now = time.monotonic()
        if self._list_at <= now:
            self._list_at = now + self.interval
            await self._list()
            now = time.monotonic()
        while not self.stopping.is_set() and len(self._running) < IN_FLIGHT:
            due = self._agenda.take(now, PAGE)
            if not due:
                break
            await self._check(due)

    async def _sleep(self) -> None:
        """Until a group is due, the groups are to be listed, or a function ends."""
        until = self._list_at
        if len(self._running) < IN_FLIGHT:
            due = self._agenda.next()
            until = until if due is None else min(until, due)
        if (wait := until - time.monotonic()) > 0:
            timer = asyncio.get_running_loop().call_later(wait, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    # Listing groups.

    async def _list(self) -> None:
        owed, self._owed = self._owed, []
        for staged in owed:
            await self._give_back(staged)
        reclaimed, names = await asyncio.gather(self._groups.reclaim(self._queues), self._groups.names(self._queues))
        now = time.monotonic()
        for queue, back, groups in zip(self._queues, reclaimed, names, strict=True):
            if isinstance(back, StoreError):
                self._report_failure(queue, back)
                continue
            if isinstance(groups, StoreError):
                self._report_failure(queue, groups)
                continue
            self.outages.recovered(("groups", queue))
            for key, reason in back.damaged:
                self.outages.log((queue, key), f"aggregation set {key} cannot be given back: {reason}")
            if back.moved:
                logger.warning("queue %s: %d members of stale aggregation sets were given back", queue, back.moved)
            if back.more:
                self._list_at = 0.0
            self._plan(queue, groups, now, check_again=bool(back.moved))

    def _report_failure(self, queue: str, error: StoreError) -> None:
        self.outages.error(("groups", queue), f"cannot list the groups of queue {queue}", error)

    def _plan(self, queue: str, groups: list[str], now: float, *, check_again: bool) -> None:
        """Add new groups to the agenda and forget those that are gone."""
        present = set(groups)
        present.update(group for name, group in [*self._running, *self._unanswered] if name == queue)
        self._agenda.keep(queue, present)
        for memory in (self._set_ids, self._failures, self._not_before):
            for key in [key for key in memory if key[0] == queue and key[1] not in present]:
                del memory[key]
        for group in groups:
            key = (queue, group)
            if key in self._running or (key in self._agenda and not check_again):
                continue
            if find(self._aggregations, queue, group) is None:
                self._report_unknown(queue, group)
            else:
                self._agenda.put(key, max(now, self._not_before.get(key, 0.0)))

    def _report_unknown(self, queue: str, group: str) -> None:
        if queue not in self._reported:
            self._reported.add(queue)
            logger.warning(
                "group %s of queue %s has members, but no @app.aggregate of this app matches it", group, queue
            )

    # Checking groups.

    async def _check(self, due: list[GroupKey]) -> None:
        """Makes only as many sets as there are free slots, so that each is aggregated at once."""
        free = IN_FLIGHT - len(self._running)
        now = time.monotonic()
        by_queue: dict[str, list[GroupKey]] = {}
        for key in due:
            if key[0] in by_queue or len(by_queue) < free:
                by_queue.setdefault(key[0], []).append(key)
            else:
                self._agenda.put(key, now)
        self._unanswered.update(key for rows in by_queue.values() for key in rows)
        results = await self._groups.check(
            [(queue, [self._probe(key) for key in rows]) for queue, rows in by_queue.items()],
            limit=free // len(by_queue),
            set_ms=round(SET_SECONDS * 1000),
        )
        now = (now + time.monotonic()) / 2  # the best estimate of when the server answered
        for (queue, rows), result in zip(by_queue.items(), results, strict=True):
            if isinstance(result, StoreError):
                self.outages.error(("check", queue), f"cannot check the groups of queue {queue}", result)
                for key in rows:
                    self._agenda.put(key, now + 1.0)
                continue
            self.outages.recovered(("check", queue))
            for key, checked in zip(rows, result, strict=True):
                self._unanswered.discard(key)
                self._follow(key, checked, now)

    def _probe(self, key: GroupKey) -> GroupProbe:
        one = self._aggregation(key)
        delay = round((one.max_delay or 0) * 1000)
        set_id = self._set_ids.setdefault(key, new_id())
        return GroupProbe(key[1], set_id, one.max_size or 0, delay, round(one.grace * 1000))

    def _aggregation(self, key: GroupKey) -> Aggregation:
        found = find(self._aggregations, *key)
        if found is None:  # the agenda has only groups with an aggregation
            raise LookupError(f"no aggregation for group {key[1]} of queue {key[0]}")
        return found

    def _follow(self, key: GroupKey, checked: Checked, now: float) -> None:
        aggregation = self._aggregation(key)
        if checked.code == MADE:
            staged = StagedSet(*key, self._set_ids.pop(key), aggregation)
            self._running[key] = asyncio.create_task(self._aggregate(staged), name=f"veredus-group-{key[1]}")
        elif checked.code == DAMAGED:
            self.outages.log(("group", *key), f"the key of group {key[1]} in queue {key[0]} is not a sorted set")
            self._agenda.put(key, now + 60.0)
        elif checked.code == EMPTY or checked.wait is None:
            self._set_ids.pop(key, None)
        else:
            wait = checked.wait if aggregation.max_size is None else min(checked.wait, self.interval)
            self._agenda.put(key, now if checked.code == LEFT_ALONE else now + wait)

    # Aggregating.

    async def _aggregate(self, staged: StagedSet) -> None:
        key = (staged.queue, staged.group)
        try:
            async with asyncio.timeout(max(1.0, SET_SECONDS - SPARE_SECONDS)):
                await self._group_runner.run(staged)
        except BaseException as exc:  # the function may raise anything
            task = asyncio.current_task()
            stopping = isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0
            await self._failed(staged, exc, stopping=stopping)
            if stopping:
                raise
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            self._agenda.put(key, time.monotonic())  # for the rest of the group
        finally:
            del self._running[key]
            self._wake.set()

    async def _failed(self, staged: StagedSet, exc: BaseException, *, stopping: bool) -> None:
        """Give the members back at once. Only this group waits before its next try."""
        key = (staged.queue, staged.group)
        self._failures[key] = self._failures.get(key, 0) + 1
        pause = backoff(self._failures[key])
        if not stopping:
            line = (
                f"group {staged.group} of queue {staged.queue} could not be aggregated, next try in {pause:g} s: "
                f"{one_line(exc)}"
            )
            if isinstance(exc, StoreError):
                logger.error("%s", line)
            else:
                log_with_traceback(logger, logging.ERROR, line, exc)
        await self._give_back(staged)
        self._not_before[key] = time.monotonic() + pause
        self._agenda.put(key, self._not_before[key])

    async def _give_back(self, staged: StagedSet) -> None:
        try:
            await self._groups.give_back(staged.queue, staged.group, staged.set_id)
        except StoreError as error:
            self._owed.append(staged)
            self.outages.error(
                ("give back", staged.queue), f"the members of group {staged.group} cannot be given back yet", error
            )
