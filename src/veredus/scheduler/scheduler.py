"""Scheduler: enqueues a task at each tick of a schedule. Of several processes, one leads; the others can take over."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.errors import CommandRefused, ConnectionLost, NotReady, StoreError
from veredus.process.restarts import Restarts
from veredus.scheduler.entries import Book, Entry
from veredus.scheduler.providers import ProviderReader
from veredus.scheduler.schedule_state import ScheduleState
from veredus.store.tasks.intake import CLOSED, CREATED
from veredus.store.tasks.schedules import EARLY, ELSEWHERE, PAUSED, Position, Schedules, Tick, Ticked
from veredus.wire.schedules import EnqueueRecord, encode_entry

logger = logging.getLogger("veredus.scheduler")

LEASE = 5.0
"""Seconds after which a lost leader is replaced."""
RENEW = 0.3
"""The fraction of the lease after which it is renewed."""
BEAT = 10.0
"""Seconds between two records for Asynq's tools. A record lives twice as long."""
SHOWN_WITHIN = 1.0
"""Seconds after a tick until its record shows the next one."""
AT_ONCE = 100
"""Ticks of one entry in one round trip."""
UNRECORDED = 1000
"""Ticks to keep for the history while it cannot be written."""
RETRY = 0.5
"""Seconds to wait while Redis cannot be reached, and the unit of the pause after a failed entry."""


class Scheduler:
    """Runs until `stop`. Even two leaders at once enqueue no tick twice: the Lua script checks the position."""

    def __init__(
        self,
        client: Client,
        book: Book,
        scope: str,
        *,
        lease: float = LEASE,
        beat: float = BEAT,
        clock: ServerClock | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self._client = client
        self._schedules = Schedules(client.store.redis, client.store.intake)
        self._book = book
        self._scope = scope
        self._lease = lease
        self._beat = beat
        self.identity = (socket.gethostname() or "unknown-host", os.getpid(), str(uuid.uuid4()))
        self.name = ":".join(map(str, self.identity))
        self.leads = False
        self._clock = clock or ServerClock()
        self._provided = ProviderReader(book.providers, self.wake, restarts or Restarts())
        self._states: dict[str, ScheduleState] = {}
        self._unrecorded: list[tuple[str, EnqueueRecord]] = []
        """Ticks that are enqueued but not in the history yet."""
        self._lease_ends = 0.0
        self._renew_at = 0.0
        self._beat_at = 0.0
        self._outage_since = 0.0
        self._wake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Something changed: run the next step now."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                await self._sleep(await self._try_step())
        finally:
            await self.leave()

    async def _try_step(self) -> float:
        """Run a step; returns how long to sleep."""
        try:
            wait = await self.step()
        except StoreError as exc:
            if not self._outage_since:
                self._outage_since = time.monotonic()
                logger.error("schedules wait for Redis: %s", exc)
            return self._start_over()
        except Exception:
            self._start_over()
            raise  # it is logged, and the scheduler is restarted
        if self._outage_since:
            logger.warning("schedules go on after %.1f s", time.monotonic() - self._outage_since)
            self._outage_since = 0.0
        return wait

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def step(self) -> float:
        """Lead if possible and fire what is due; returns the seconds until the next step."""
        if time.monotonic() >= self._renew_at:
            await self._elect()
        if not self.leads:
            return self._renew_at - time.monotonic()
        changed = await self._take_entries()
        await self._begin()
        await self._fire()
        if changed or time.monotonic() >= self._beat_at:
            await self._show()
        return self._until_next()

    @property
    def next_tick(self) -> int | None:
        """The next tick of all schedules, in Unix seconds; None if there is none, or none is known yet."""
        return min((state.next_tick for state in self._states.values() if state.next_tick is not None), default=None)

    # Leading.

    async def _elect(self) -> None:
        sent = time.monotonic()
        answer = await self._schedules.lead(self._scope, self.name, round(self._lease * 1000))
        self._clock.observe(answer.now_ms / 1000, sent, time.monotonic())
        if not answer.leads:
            self._renew_at = time.monotonic() + max(0.02, answer.left + 0.005)
            if self.leads:
                await self._step_down()
            return
        if not self.leads or sent > self._lease_ends:
            # After a gap, another process may have led: read all positions again.
            logger.info("scheduler %s leads %d entries", self.name, len(self._book.entries))
            self._forget_positions()
            self._provided.start()
            self._beat_at = 0.0
        self.leads = True
        self._lease_ends = sent + self._lease
        self._renew_at = sent + self._lease * RENEW

    async def _step_down(self) -> None:
        logger.warning("scheduler %s no longer leads", self.name)
        self.leads = False
        self._forget_positions()
        await self._provided.stop()
        await self._schedules.hide(self.identity)

    async def leave(self) -> None:
        """Give up the lead. If Redis cannot be reached, the lease expires."""
        await self._provided.stop()
        if not self.leads:
            return
        self.leads = False
        for _ in range(3):  # a connection that broke is opened again
            try:
                async with asyncio.timeout(1.0):
                    await self._schedules.hide(self.identity)
                    await self._schedules.resign(self._scope, self.name)
                return
            except (StoreError, TimeoutError):
                pass

    def _start_over(self) -> float:
        """A call may or may not have been executed: read all positions again after a pause."""
        self._forget_positions()
        self._renew_at = 0.0
        return RETRY

    def _forget_positions(self) -> None:
        for state in self._states.values():
            state.forget_position()

    # Entries.

    async def _take_entries(self) -> bool:
        """Add and remove states as the entries change; returns whether any did."""
        wanted: dict[str, Entry] = {**self._provided.entries(), **self._book.entries}
        removed = [state for entry_id, state in self._states.items() if entry_id not in wanted]
        added = [entry for entry_id, entry in wanted.items() if entry_id not in self._states]
        for state in removed:
            await self._schedules.forget(state.entry.queue, state.entry.id)
            del self._states[state.entry.id]
        self._states.update({entry.id: ScheduleState(entry) for entry in added})
        if removed or added:
            logger.info("schedule entries: %d added, %d removed, %d in all", len(added), len(removed), len(wanted))
        return bool(removed or added)

    async def _begin(self) -> None:
        """Read unknown positions, and plan the ticks that were missed."""
        unknown: dict[str, list[ScheduleState]] = {}
        now = time.monotonic()
        for state in self._states.values():
            if state.at is None and state.not_before <= now:
                unknown.setdefault(state.entry.queue, []).append(state)
        parts = [(queue, states[i : i + 500]) for queue, states in unknown.items() for i in range(0, len(states), 500)]
        answers = await self._ask_positions(parts)
        for (queue, states), answer in zip(parts, answers, strict=True):
            if isinstance(answer, CommandRefused) and len(states) > 1:  # one position is damaged: read them one by one
                singles = [(queue, [state]) for state in states]
                for (_, single), one in zip(singles, await self._ask_positions(singles), strict=True):
                    self._apply_positions(single, one)
            else:
                self._apply_positions(states, answer)

    async def _ask_positions(
        self, parts: Sequence[tuple[str, Sequence[ScheduleState]]]
    ) -> list[tuple[int, list[Position]] | StoreError]:
        now = self._clock.time()
        return await self._schedules.begin(
            [(queue, [(state.entry.id, state.ttl_ms(now)) for state in states]) for queue, states in parts]
        )

    def _apply_positions(
        self, states: Sequence[ScheduleState], answer: tuple[int, list[Position]] | StoreError
    ) -> None:
        if isinstance(answer, StoreError):
            for state in states:
                self._refused(state, answer)
            return
        now_ms, positions = answer
        for state, position in zip(states, positions, strict=True):
            made = state.begin(position, now_ms // 1000, math.ceil(self._lease) + 1)
            if made.dropped:
                logger.warning(
                    "schedule %s of %s missed too many ticks: only the last %d are caught up",
                    state.entry.line.spec, state.entry.call.type, len(made.ticks),
                )  # fmt: skip

    # Firing.

    async def _fire(self) -> None:
        now = self._clock.time()
        ticks: list[tuple[ScheduleState, Tick]] = []
        for state in self._states.values():
            ticks += [(state, tick) for tick in self._make_ticks(state, now)]
        if ticks:
            self._beat_at = min(self._beat_at, time.monotonic() + SHOWN_WITHIN)
        for part in [ticks[i : i + 500] for i in range(0, len(ticks), 500)]:
            replies = await self._schedules.tick([tick for _, tick in part])
            for (state, tick), reply in zip(part, replies, strict=True):
                self._unrecorded += self._fired(state, tick, reply)
        try:
            await self._schedules.record(self._unrecorded)
            self._unrecorded.clear()
        except StoreError as exc:  # the tasks are enqueued, only the history is missing
            self._unrecorded = self._unrecorded[-UNRECORDED:]
            if isinstance(exc, ConnectionLost | NotReady) and self._client.store.redis.address.kind != "cluster":
                raise
            logger.warning("the history of a schedule cannot be written: %s", exc)

    def _make_ticks(self, state: ScheduleState, now: float) -> Iterable[Tick]:
        due = state.due(now, AT_ONCE)
        if not due or state.at is None:
            return
        at, ttl_ms, call = state.at, state.ttl_ms(now), state.entry.call
        for tick in due:
            options = call.options.merged({"task_id": state.entry.task_id(tick)})
            try:
                entry = self._client.entry(replace(call, options=options))
            except Exception as exc:  # options that were valid before may be rejected now
                self._fail(state, exc)
                return
            yield Tick(state.entry.queue, state.entry.id, at, tick, ttl_ms, entry)
            at = tick

    def _fired(
        self, state: ScheduleState, tick: Tick, reply: Ticked | StoreError
    ) -> Iterable[tuple[str, EnqueueRecord]]:
        if isinstance(reply, StoreError):
            self._refused(state, reply)
        elif reply.code == ELSEWHERE:
            if reply.at is None:
                state.forget_position()
            elif state.at is not None:
                state.move(reply.at, fired=False)
        elif reply.code == EARLY:
            now = time.monotonic()
            self._clock.observe(reply.now_ms / 1000, now, now)  # ours was ahead
        elif reply.code == PAUSED:
            state.move(tick.tick, fired=False)
        elif state.at is not None:
            state.move(tick.tick, fired=True)
            if reply.code == CREATED:
                return [(state.entry.id, EnqueueRecord(tick.entry.task_id, reply.now_ms / 1000))]
            why = "its queue is closed" if reply.code == CLOSED else "a task with its id or unique lock exists"
            logger.info("tick %s was not enqueued: %s", tick.entry.task_id, why)
        return []

    def _refused(self, state: ScheduleState, exc: StoreError) -> None:
        """One server of a cluster may be away: schedules with queues on other servers go on."""
        gone = isinstance(exc, ConnectionLost | NotReady)
        if gone and self._client.store.redis.address.kind != "cluster":
            raise exc
        self._fail(state, exc, RETRY if gone else 10 * RETRY)

    def _fail(self, state: ScheduleState, exc: Exception, pause: float = 10 * RETRY) -> None:
        """A failing entry does not affect the others."""
        if not state.not_before:
            logger.error("schedule %s of %s cannot be enqueued: %s", state.entry.line.spec, state.entry.call.type, exc)
        state.forget_position()
        state.not_before = time.monotonic() + pause

    async def _show(self) -> None:
        records = sorted((state.record() for state in self._states.values()), key=lambda r: r.next_at or math.inf)
        await self._schedules.show(
            self.identity, [encode_entry(record) for record in records], math.ceil(2 * self._beat)
        )
        self._beat_at = time.monotonic() + self._beat

    def _until_next(self) -> float:
        now, monotonic = self._clock.time(), time.monotonic()
        moments = [self._renew_at - monotonic, self._beat_at - monotonic]
        for state in self._states.values():
            if state.next_tick is not None:
                moments.append(state.next_tick - now)
            elif state.at is None:
                moments.append(state.not_before - monotonic)
        return max(0.0005, min(moments))
