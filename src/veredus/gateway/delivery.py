"""The pump: what is in the logs of this process's sessions goes to their clients, what they acknowledge goes back.

Pushed just now or missed long ago, a message takes the same way: a hint brings it along, or it is read from the log.
Either is offered to the link, which alone knows what is next.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

from veredus.clock import Clock
from veredus.errors import StoreError
from veredus.gateway.acks import Acks
from veredus.gateway.connection import Connection
from veredus.gateway.errands import Errands
from veredus.gateway.wheel import Wheel
from veredus.link.events import Acked
from veredus.link.transports.base import HIGH_WATER
from veredus.model.frames import CloseCode
from veredus.restarts import Restarts
from veredus.store.outbox import Excerpt, Outbox, ReadRow
from veredus.store.sessions import Sessions
from veredus.wire.entries import Entry, Hint, Kick
from veredus.wire.tails import RESPONSE, response_rid
from veredus.worker.complaints import Complaints

logger = logging.getLogger("veredus.gateway")

READ_ROWS = 64
"""Sessions read in one call."""
READS_AT_ONCE = 4
STRAYS = 10_000


class Delivery:
    """Sessions attached to this process, by id. Everything here runs on one event loop."""

    def __init__(
        self,
        outbox: Outbox,
        sessions: Sessions,
        clock: Clock,
        complaints: Complaints,
        restarts: Restarts,
        *,
        node: str,
        position_check: float,
        tick: float,
        answered: Callable[[str, int], None],
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._complaints = complaints
        self._restarts = restarts
        self._node = node
        self._position_check = position_check
        self._answered = answered
        self._tick = tick
        self.attached: dict[str, Connection] = {}
        self.connections: dict[Connection, None] = {}
        self.counters = {"hints": 0, "reads": 0, "slow": 0, "forks": 0}
        self.degraded = False
        self.stuck_since: float | None = None
        """Since when the log could not be read."""
        self._loop = asyncio.get_running_loop()
        self._wheel: Wheel[Connection] = Wheel(min(0.25, tick), clock.monotonic())
        self._touched: dict[Connection, None] = {}
        self._flushing = False
        self._wanting: deque[Connection] = deque()
        self._reads = 0
        self._acks = Acks(outbox, sessions, self.outage)
        self.write_acks_of = self._acks.write_now
        self._errands = Errands("delivery")
        self._strays: dict[str, Kick | None] = {}
        self._wall_offset = clock.time() - clock.monotonic()
        self.counting_answers = False
        """Whether anybody waits to hear of responses."""

    # Who is here.

    def opened(self, connection: Connection) -> None:
        self.connections[connection] = None
        self._wheel.put(connection, self._clock.monotonic())

    def attach(self, connection: Connection) -> None:
        """From now on, hints for its session are its own. What was appended between the attach and now is read."""
        sid = connection.sid
        older = self.attached.get(sid)
        self.attached[sid] = connection
        if older is not None and older is not connection:
            older.end(CloseCode.SUPERSEDED, "the session is attached by another connection")
        connection.check_at = self._clock.monotonic() + self._position_check * random.uniform(0.5, 1.0)
        if sid in self._strays:
            stray = self._strays.pop(sid)
            if stray is not None:
                self._kicked(stray)
            self._look(connection)

    def left(self, connection: Connection) -> None:
        """A connection is gone; its session stays in Redis, to be resumed."""
        self.connections.pop(connection, None)
        self._touched.pop(connection, None)
        if not connection.sid:
            return
        if self.attached.get(connection.sid) is connection:
            del self.attached[connection.sid]
        if connection.generation:
            self._acks.left(connection)

    # From Redis to the clients.

    def hinted(self, rows: Sequence[Hint | Kick]) -> None:
        """What a published message says. Nothing is concluded from what it does not say."""
        now = self._clock.monotonic()
        wall_ms = round((now + self._wall_offset) * 1000)
        attached = self.attached
        for row in rows:
            if isinstance(row, Hint):
                connection = attached.get(row.sid)
                if connection is None:
                    self._stray(row.sid)
                    continue
                self.counters["hints"] += 1
                entries = row.entries
                if entries:
                    if self.counting_answers:
                        self._look_for_answers(row.sid, entries)
                    events = connection.link.offer_entries(entries, now, wall_ms=wall_ms)
                    if events and not connection.handle(events):
                        continue
                else:
                    connection.link.note_top(row.first + row.count - 1)
                self.touch(connection)
            else:
                self._kicked(row)

    def look_at_all(self) -> None:
        """Hints may have been missed: compare every session with its log."""
        for connection in list(self.attached.values()):
            self._look(connection)

    def touch(self, connection: Connection) -> None:
        """It may have something to send: once per turn of the loop, whatever has come by then leaves together."""
        self._touched[connection] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        touched, self._touched = self._touched, {}
        for connection in touched:
            if not connection.over:
                try:
                    self._flush_one(connection)
                except Exception:
                    self._failed(connection)
        self._pump()

    def _flush_one(self, connection: Connection) -> None:
        if connection.flush():
            self.touch(connection)
        if not connection.reading and connection.sid and connection.transport.unsent < HIGH_WATER:
            wanted = connection.link.wanted()
            if wanted is not None:
                connection.reading = True
                self._wanting.append(connection)

    def _look(self, connection: Connection) -> None:
        """Read its log even if nothing is known to be new, and compare the last that was sent: is it still the same?"""
        connection.link.doubt()
        if not connection.reading and not connection.over:
            connection.reading = True
            self._wanting.append(connection)
            self._pump()

    def _pump(self) -> None:
        while self._wanting and self._reads < READS_AT_ONCE and not self.degraded:
            self._reads += 1
            batch = [self._wanting.popleft() for _ in range(min(READ_ROWS, len(self._wanting)))]
            self._errands.start(self._read(batch))

    async def _read(self, connections: list[Connection]) -> None:
        rows, asked = self._rows(connections)
        try:
            excerpts = await self._outbox.read(rows) if rows else []
        except StoreError as exc:
            self.outage(exc)
            return
        finally:
            self._reads -= 1
            for connection in asked:
                connection.reading = False
        if rows:
            self.counters["reads"] += 1
            self._recovered()
        now = self._clock.monotonic()
        wall_ms = round((now + self._wall_offset) * 1000)
        for connection, excerpt in zip(asked, excerpts, strict=True):
            if not connection.over:
                self._offer(connection, excerpt, now, wall_ms)
        self._pump()

    def _rows(self, connections: list[Connection]) -> tuple[list[ReadRow], list[Connection]]:
        """What each wants by now."""
        rows, asked = [], []
        for connection in connections:
            if connection.over or self.attached.get(connection.sid) is not connection:
                connection.reading = False
                continue
            wanted = connection.link.wanted()
            if wanted is None:
                connection.reading = False
                continue
            rows.append(ReadRow(connection.sid, wanted.from_seq, wanted.count, wanted.max_bytes))
            asked.append(connection)
        return rows, asked

    def _offer(self, connection: Connection, excerpt: Excerpt | None, now: float, wall_ms: int) -> None:
        if excerpt is None:
            connection.lost()
            return
        if excerpt.generation > connection.generation:
            connection.end(CloseCode.SUPERSEDED, "the session is attached by another connection")
            return
        if excerpt.node != self._node:  # this node was taken for dead: no hint will come any more
            connection.end(CloseCode.REBALANCE, "the session was detached", retry_after_ms=0)
            return
        if self.counting_answers:
            self._look_for_answers(connection.sid, excerpt.entries)
        events = connection.link.offer_read(
            excerpt.epoch,
            excerpt.floor,
            excerpt.policy_floor,
            excerpt.top,
            excerpt.entries,
            now,
            floor_ts=excerpt.floor_ts,
            wall_ms=wall_ms,
        )
        if connection.handle(events):
            self.touch(connection)

    def _look_for_answers(self, sid: str, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.tail[:2] == RESPONSE:
                self._answered(sid, response_rid(entry.tail))

    def _kicked(self, kick: Kick) -> None:
        connection = self.attached.get(kick.sid)
        if connection is None or connection.generation < kick.generation:
            self._stray(kick.sid, kick)
        if connection is not None and connection.generation <= kick.generation:
            connection.kicked(kick.reason)

    def _stray(self, sid: str, kick: Kick | None = None) -> None:
        """A hint for a session that is perhaps just being attached: it will look when it is here, and end if it has
        lost the session by then."""
        if len(self._strays) >= STRAYS:
            self._strays.clear()
        self._strays[sid] = kick or self._strays.get(sid)

    def acked(self, connection: Connection, ack: Acked) -> None:
        self._acks.acked(connection, ack)

    # Time.

    def tick(self, now: float) -> None:
        """Heartbeats, timeouts and position checks of those whose turn it is."""
        self._wall_offset = self._clock.time() - now
        for connection in self._wheel.due(now):
            if not connection.over:
                try:
                    self._tick_one(connection, now)
                except Exception:
                    self._failed(connection)

    def _tick_one(self, connection: Connection, now: float) -> None:
        if not connection.handle(connection.link.tick(now, unsent=connection.transport.unsent)):
            return
        self.touch(connection)
        if connection.generation and now >= connection.check_at:
            connection.check_at = now + self._position_check * random.uniform(0.9, 1.1)
            self._look(connection)
        self._wheel.put(connection, min(connection.link.deadline(), now + self._tick))

    def _failed(self, connection: Connection) -> None:
        """A defect of ours ends one connection, not the round of all."""
        logger.exception("session %s fails: its connection is cut, to be resumed", connection.sid)
        connection.over = True
        connection.transport.abort()

    def slow(self, connection: Connection, seconds: float) -> None:
        self.counters["slow"] += 1
        logger.info("session %s has acknowledged nothing for %d s", connection.sid, seconds)

    # Without Redis.

    def outage(self, exc: StoreError) -> None:
        """Keep the sockets, stop pumping, try again soon; then all are looked at."""
        self._complaints.error(("gateway", "log"), "the clients' logs cannot be reached", exc)
        if not self.degraded:
            self.degraded = True
            self.stuck_since = self._clock.monotonic()
            for connection in self.connections:
                connection.link.degraded(True)
            self._loop.call_later(0.2, self._start_trying)

    def _start_trying(self) -> None:
        reading = self._restarts.keep("reading after an outage", self._try_again, is_over=lambda: not self.degraded)
        self._errands.start(reading)

    async def _try_again(self) -> None:
        """One that reads for all: when it gets an answer, the pump goes on."""
        pause = 0.1
        while self.degraded:
            batch = [self._wanting.popleft() for _ in range(min(READ_ROWS, len(self._wanting)))]
            self._reads += 1
            if batch:
                await self._read(batch)
            else:
                try:
                    await self._outbox.read([ReadRow("p000-" + "0" * 20, 1, 0)])
                except StoreError:
                    pass
                else:
                    self._recovered()
                finally:
                    self._reads -= 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 2.0)

    def _recovered(self) -> None:
        if not self.degraded:
            return
        self.degraded = False
        self.stuck_since = None
        self._complaints.recovered(("gateway", "log"))
        for connection in self.connections:
            connection.link.degraded(False)
        self.look_at_all()

    async def close(self) -> None:
        """Write what is still to be written."""
        await self._acks.close()
        await self._errands.close(0.0)
