"""Scheduler: of all that run, one leads and fires each tick; asleep in between, ready to take over."""

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
from veredus.restarts import Restarts
from veredus.scheduler.entries import Book, Entry
from veredus.scheduler.lines import Line
from veredus.scheduler.providers import Readings
from veredus.store.intake import CLOSED, CREATED
from veredus.store.schedules import EARLY, ELSEWHERE, Position, Schedules, Tick, Ticked
from veredus.wire.schedules import EnqueueEvent, encode_entry

logger = logging.getLogger("veredus.scheduler")

LEASE = 5.0
"""Seconds after which a leader that has gone is replaced."""
RENEW = 0.3
"""The part of the lease after which it is renewed."""
BEAT = 10.0
"""Seconds between two records for Asynq's tools; they live twice as long."""
AT_ONCE = 100
"""Ticks of one entry in one round trip."""
UNRECORDED = 1000
"""Ticks that are kept for the history while it cannot be written."""
RETRY = 0.5
"""Seconds to wait when Redis cannot be reached, and after an entry that failed."""


class Scheduler:
    """Runs until `stop`. Two that lead at once, for whatever reason, fire no tick twice: the script sees to that."""

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
        self._readings = Readings(book.providers, self.wake, restarts or Restarts())
        self._lines: dict[str, Line] = {}
        self._unrecorded: list[tuple[str, EnqueueEvent]] = []
        """Ticks that are enqueued, but not written into the history yet."""
        self._lease_ends = 0.0
        self._renew_at = 0.0
        self._beat_at = 0.0
        self._outage_since = 0.0
        self._wake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Something changed: look again now."""
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
        """Returns how long to sleep."""
        try:
            wait = await self.step()
        except StoreError as exc:
            if not self._outage_since:
                self._outage_since = time.monotonic()
                logger.error("schedules wait for Redis: %s", exc)
            return self._start_over()
        except Exception:
            self._start_over()
            raise  # whoever runs it logs this and starts it again
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
        """Lead if possible, fire what is due; returns the seconds until there is something to do again."""
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
        """Of all schedules the next, in Unix seconds; None if there is none, or none is known yet."""
        return min((line.next_tick for line in self._lines.values() if line.next_tick is not None), default=None)

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
            # After a gap somebody else may have led meanwhile: ask Redis again where everything stands.
            logger.info("scheduler %s leads %d entries", self.name, len(self._book.entries))
            self._lose_all()
            self._readings.start()
            self._beat_at = 0.0
        self.leads = True
        self._lease_ends = sent + self._lease
        self._renew_at = sent + self._lease * RENEW

    async def _step_down(self) -> None:
        logger.warning("scheduler %s does not lead any more", self.name)
        self.leads = False
        self._lose_all()
        await self._readings.stop()
        await self._schedules.hide(self.identity)

    async def leave(self) -> None:
        """Give up what is ours; if Redis cannot be reached, it runs out by itself."""
        await self._readings.stop()
        if not self.leads:
            return
        self.leads = False
        for _ in range(3):  # a connection that broke meanwhile is made again
            try:
                async with asyncio.timeout(1.0):
                    await self._schedules.hide(self.identity)
                    await self._schedules.resign(self._scope, self.name)
                return
            except (StoreError, TimeoutError):
                pass

    def _start_over(self) -> float:
        """What was asked may or may not have happened: find out again, after a pause."""
        self._lose_all()
        self._renew_at = 0.0
        return RETRY

    def _lose_all(self) -> None:
        for line in self._lines.values():
            line.lose()

    # Entries.

    async def _take_entries(self) -> bool:
        """Keep the lines in step with the entries; returns whether something was added or removed."""
        wanted: dict[str, Entry] = {**self._readings.entries(), **self._book.entries}
        removed = [line for entry_id, line in self._lines.items() if entry_id not in wanted]
        added = [entry for entry_id, entry in wanted.items() if entry_id not in self._lines]
        for line in removed:
            await self._schedules.forget(line.entry.queue, line.entry.id)
            del self._lines[line.entry.id]
        self._lines.update({entry.id: Line(entry) for entry in added})
        if removed or added:
            logger.info("schedule entries: %d added, %d removed, %d in all", len(added), len(removed), len(wanted))
        return bool(removed or added)

    async def _begin(self) -> None:
        """Ask where those entries stand that we do not know of, and plan what was missed."""
        unknown: dict[str, list[Line]] = {}
        now = time.monotonic()
        for line in self._lines.values():
            if line.at is None and line.not_before <= now:
                unknown.setdefault(line.entry.queue, []).append(line)
        parts = [(queue, lines[i : i + 500]) for queue, lines in unknown.items() for i in range(0, len(lines), 500)]
        answers = await self._ask_positions(parts)
        for (queue, lines), answer in zip(parts, answers, strict=True):
            if isinstance(answer, CommandRefused) and len(lines) > 1:  # one has a damaged position: find out which
                singles = [(queue, [line]) for line in lines]
                for (_, single), one in zip(singles, await self._ask_positions(singles), strict=True):
                    self._place(single, one)
            else:
                self._place(lines, answer)

    async def _ask_positions(
        self, parts: Sequence[tuple[str, Sequence[Line]]]
    ) -> list[tuple[int, list[Position]] | StoreError]:
        now = self._clock.time()
        return await self._schedules.begin(
            [(queue, [(line.entry.id, line.ttl_ms(now)) for line in lines]) for queue, lines in parts]
        )

    def _place(self, lines: Sequence[Line], answer: tuple[int, list[Position]] | StoreError) -> None:
        if isinstance(answer, StoreError):
            for line in lines:
                self._refused(line, answer)
            return
        now_ms, positions = answer
        for line, position in zip(lines, positions, strict=True):
            made = line.begin(position, now_ms // 1000, math.ceil(self._lease) + 1)
            if made.dropped:
                logger.warning(
                    "schedule %s of %s missed more ticks than are caught up: it goes on with the last %d",
                    line.entry.line.spec, line.entry.call.type, len(made.ticks),
                )  # fmt: skip

    # Firing.

    async def _fire(self) -> None:
        now = self._clock.time()
        ticks: list[tuple[Line, Tick]] = []
        for line in self._lines.values():
            ticks += [(line, tick) for tick in self._make_ticks(line, now)]
        for part in [ticks[i : i + 500] for i in range(0, len(ticks), 500)]:
            replies = await self._schedules.tick([tick for _, tick in part])
            for (line, tick), reply in zip(part, replies, strict=True):
                self._unrecorded += self._fired(line, tick, reply)
        try:
            await self._schedules.record(self._unrecorded)
            self._unrecorded.clear()
        except StoreError as exc:  # the tasks are there: only their mention in the history is not
            self._unrecorded = self._unrecorded[-UNRECORDED:]
            if isinstance(exc, ConnectionLost | NotReady) and self._client.store.redis.address.kind != "cluster":
                raise
            logger.warning("the history of a schedule cannot be written: %s", exc)

    def _make_ticks(self, line: Line, now: float) -> Iterable[Tick]:
        due = line.due(now, AT_ONCE)
        if not due or line.at is None:
            return
        at, ttl_ms, call = line.at, line.ttl_ms(now), line.entry.call
        for tick in due:
            options = call.options.merged({"task_id": line.entry.task_id(tick)})
            try:
                entry = self._client.entry(replace(call, options=options))
            except Exception as exc:
                self._fail(line, exc)
                return
            yield Tick(line.entry.queue, line.entry.id, at, tick, ttl_ms, entry)
            at = tick

    def _fired(self, line: Line, tick: Tick, reply: Ticked | StoreError) -> Iterable[tuple[str, EnqueueEvent]]:
        if isinstance(reply, StoreError):
            self._refused(line, reply)
        elif reply.code == ELSEWHERE:
            if reply.at is None:
                line.lose()
            elif line.at is not None:
                line.move(reply.at, fired=False)
        elif reply.code == EARLY:
            now = time.monotonic()
            self._clock.observe(reply.now_ms / 1000, now, now)  # ours was ahead
        elif line.at is not None:
            line.move(tick.tick, fired=True)
            if reply.code == CREATED:
                return [(line.entry.id, EnqueueEvent(tick.entry.task_id, reply.now_ms / 1000))]
            why = "its queue is closed" if reply.code == CLOSED else "another task holds its place"
            logger.info("tick %s was not enqueued: %s", tick.entry.task_id, why)
        return []

    def _refused(self, line: Line, exc: StoreError) -> None:
        """Of a cluster, one server may be gone: the schedules whose queues are on the others go on."""
        gone = isinstance(exc, ConnectionLost | NotReady)
        if gone and self._client.store.redis.address.kind != "cluster":
            raise exc
        self._fail(line, exc, RETRY if gone else 10 * RETRY)

    def _fail(self, line: Line, exc: Exception, pause: float = 10 * RETRY) -> None:
        """One bad entry never stops the others."""
        if not line.not_before:
            logger.error("schedule %s of %s cannot be enqueued: %s", line.entry.line.spec, line.entry.call.type, exc)
        line.lose()
        line.not_before = time.monotonic() + pause

    async def _show(self) -> None:
        records = sorted((line.record() for line in self._lines.values()), key=lambda r: r.next_at or math.inf)
        await self._schedules.show(
            self.identity, [encode_entry(record) for record in records], math.ceil(2 * self._beat)
        )
        self._beat_at = time.monotonic() + self._beat

    def _until_next(self) -> float:
        now, monotonic = self._clock.time(), time.monotonic()
        moments = [self._renew_at - monotonic, self._beat_at - monotonic]
        for line in self._lines.values():
            if line.next_tick is not None:
                moments.append(line.next_tick - now)
            elif line.at is None:
                moments.append(line.not_before - monotonic)
        return max(0.0005, min(moments))
