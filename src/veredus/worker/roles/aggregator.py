"""Aggregator: looks at each group when it may be ripe, and has its members made into tasks; gives back stale sets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from veredus.errors import StoreError
from veredus.model.build import new_id
from veredus.model.failure import one_line
from veredus.model.grouping import Agenda, Aggregation, GroupKey, backoff, find
from veredus.store.groups import DAMAGED, EMPTY, LEFT_ALONE, MADE, Checked, Groups, Probe
from veredus.worker.aggregation import Foundry, Staged
from veredus.worker.complaints import Complaints
from veredus.worker.endings import log_with_traceback
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

IN_FLIGHT = 3
"""Functions at once, as in Asynq; of one group only one, so that its tasks come out in the order of their members."""
SET_SECONDS = 120.0
"""How long a set is ours; afterwards anybody, a Go server too, gives its members back to the group."""
SPARE_SECONDS = 5.0
"""The function's time ends so much earlier."""
PAGE = 200
"""Groups looked at in one call per queue."""
LOOK_FOR_SIZE = 2.0
"""How often, at most, a group that may be ripe by its size is looked at, and new groups are looked for."""
FINISH_SECONDS = 3.0
"""How long running functions may go on when the worker stops; then their sets go back."""


class Aggregator(Role):
    name = "aggregator"

    def __init__(
        self,
        groups: Groups,
        aggregations: Sequence[Aggregation],
        queues: Mapping[str, int],
        foundry: Foundry,
        complaints: Complaints,
    ) -> None:
        super().__init__(min(LOOK_FOR_SIZE, min(one.grace for one in aggregations) / 2), complaints)
        self._groups = groups
        self._aggregations = aggregations
        self._queues = [queue for queue in queues if any(one.queue in (None, queue) for one in aggregations)]
        self._foundry = foundry
        self._wake = asyncio.Event()
        self._agenda = Agenda()
        self._list_at = 0.0
        self._running: dict[GroupKey, asyncio.Task[None]] = {}
        self._set_ids: dict[GroupKey, str] = {}
        """The id of a group's next set, the same until its making was confirmed: a lost reply makes no second set."""
        self._unanswered: set[GroupKey] = set()
        self._failures: dict[GroupKey, int] = {}
        self._not_before: dict[GroupKey, float] = {}
        self._owed: list[Staged] = []
        """Sets that could not be given back because Redis was away: not left until their two minutes are over."""
        self._told: set[str] = set()

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
                    self.complaints.error(self.name, "aggregator failed", exc)
                    self._list_at = time.monotonic() + 1.0
                await self._sleep()
            if self._running:
                await asyncio.wait(self._running.values(), timeout=FINISH_SECONDS)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def step(self) -> None:
        """One look at what is due; what is ripe is started, not awaited."""
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
        """Until a group is due, or groups are listed again, or a function ends."""
        until = self._list_at
        if len(self._running) < IN_FLIGHT:
            due = self._agenda.next()
            until = until if due is None else min(until, due)
        if (wait := until - time.monotonic()) > 0:
            alarm = asyncio.get_running_loop().call_later(wait, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    # Which groups there are.

    async def _list(self) -> None:
        owed, self._owed = self._owed, []
        for staged in owed:
            await self._give_back(staged)
        reclaimed, names = await asyncio.gather(self._groups.reclaim(self._queues), self._groups.names(self._queues))
        now = time.monotonic()
        for queue, back, groups in zip(self._queues, reclaimed, names, strict=True):
            if isinstance(back, StoreError) or isinstance(groups, StoreError):
                error = back if isinstance(back, StoreError) else groups
                assert isinstance(error, StoreError)
                self.complaints.error(("groups", queue), f"cannot look after the groups of queue {queue}", error)
                continue
            self.complaints.recovered(("groups", queue))
            for key, reason in back.damaged:
                self.complaints.say((queue, key), f"aggregation set {key} cannot be given back: {reason}")
            if back.moved:
                logger.warning("queue %s: %d members of stale aggregation sets went back", queue, back.moved)
            if back.more:
                self._list_at = 0.0
            self._plan(queue, groups, now, look_again=bool(back.moved))

    def _plan(self, queue: str, groups: list[str], now: float, *, look_again: bool) -> None:
        """Put new groups on the agenda and forget those that are gone."""
        present = set(groups)
        present.update(group for name, group in [*self._running, *self._unanswered] if name == queue)
        self._agenda.keep(queue, present)
        for memory in (self._set_ids, self._failures, self._not_before):
            for key in [key for key in memory if key[0] == queue and key[1] not in present]:
                del memory[key]
        for group in groups:
            key = (queue, group)
            if key in self._running or (key in self._agenda and not look_again):
                continue
            if find(self._aggregations, queue, group) is None:
                self._tell_unknown(queue, group)
            else:
                self._agenda.put(key, max(now, self._not_before.get(key, 0.0)))

    def _tell_unknown(self, queue: str, group: str) -> None:
        if queue not in self._told:
            self._told.add(queue)
            logger.warning("group %s of queue %s has members but no @app.aggregate of this app fits it", group, queue)

    # Which of them are ripe.

    async def _check(self, due: list[GroupKey]) -> None:
        """Never more sets than there is room for: what is staged is worked on at once."""
        room = IN_FLIGHT - len(self._running)
        now = time.monotonic()
        by_queue: dict[str, list[GroupKey]] = {}
        for key in due:
            if key[0] in by_queue or len(by_queue) < room:
                by_queue.setdefault(key[0], []).append(key)
            else:
                self._agenda.put(key, now)
        self._unanswered.update(key for rows in by_queue.values() for key in rows)
        results = await self._groups.check(
            [(queue, [self._probe(key) for key in rows]) for queue, rows in by_queue.items()],
            limit=room // len(by_queue),
            set_ms=round(SET_SECONDS * 1000),
        )
        now = (now + time.monotonic()) / 2  # when the server answered, as well as one can know
        for (queue, rows), result in zip(by_queue.items(), results, strict=True):
            if isinstance(result, StoreError):
                self.complaints.error(("check", queue), f"cannot check the groups of queue {queue}", result)
                for key in rows:
                    self._agenda.put(key, now + 1.0)
                continue
            self.complaints.recovered(("check", queue))
            for key, checked in zip(rows, result, strict=True):
                self._unanswered.discard(key)
                self._follow(key, checked, now)

    def _probe(self, key: GroupKey) -> Probe:
        one = self._aggregation(key)
        delay = round((one.max_delay or 0) * 1000)
        set_id = self._set_ids.setdefault(key, new_id())
        return Probe(key[1], set_id, one.max_size or 0, delay, round(one.grace * 1000))

    def _aggregation(self, key: GroupKey) -> Aggregation:
        found = find(self._aggregations, *key)
        assert found is not None, "only groups that somebody aggregates are on the agenda"
        return found

    def _follow(self, key: GroupKey, checked: Checked, now: float) -> None:
        aggregation = self._aggregation(key)
        if checked.code == MADE:
            staged = Staged(*key, self._set_ids.pop(key), aggregation)
            self._running[key] = asyncio.create_task(self._aggregate(staged), name=f"veredus-group-{key[1]}")
        elif checked.code == DAMAGED:
            self.complaints.say(("group", *key), f"the key of group {key[1]} in queue {key[0]} is no sorted set")
            self._agenda.put(key, now + 60.0)
        elif checked.code == EMPTY or checked.wait is None:
            self._set_ids.pop(key, None)
        else:
            wait = checked.wait if aggregation.max_size is None else min(checked.wait, self.interval)
            self._agenda.put(key, now if checked.code == LEFT_ALONE else now + wait)

    # What becomes of them.

    async def _aggregate(self, staged: Staged) -> None:
        key = (staged.queue, staged.group)
        try:
            async with asyncio.timeout(max(1.0, SET_SECONDS - SPARE_SECONDS)):
                await self._foundry.run(staged)
        except BaseException as exc:
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

    async def _failed(self, staged: Staged, exc: BaseException, *, stopping: bool) -> None:
        """The members go back at once; this group is left alone for a while, the others are not."""
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

    async def _give_back(self, staged: Staged) -> None:
        try:
            await self._groups.give_back(staged.queue, staged.group, staged.set_id)
        except StoreError as error:
            self._owed.append(staged)
            self.complaints.error(("give back", staged.queue), f"group {staged.group} gets its members later", error)
