"""Delivery: sends the stored messages of this process's sessions to their clients and writes the acks to Redis.

New and missed messages take the same path. A hint contains the message, or it is read from the log. Either way it is
offered to the link, which decides what to send next.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence

from veredus.errors import StoreError
from veredus.gateway.ack_writer import AckWriter
from veredus.gateway.background import BackgroundTasks
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.open_requests import OpenRequests
from veredus.gateway.services import Services
from veredus.gateway.timer_wheel import TimerWheel
from veredus.link.events import Acked
from veredus.link.transports.base import HIGH_WATER
from veredus.model.backoff import Backoff
from veredus.model.frames import CloseCode
from veredus.store.sessions.outbox import Excerpt, ReadRow
from veredus.wire.log_entries import Hint, Kick, LogEntry
from veredus.wire.peek import RESPONSE, response_rid

logger = logging.getLogger("veredus.gateway")

READ_ROWS = 64
"""Sessions read in one call."""
READS_AT_ONCE = 4
MAX_STRAYS = 10_000
"""Hints remembered for sessions that are not attached here."""
TICK = 0.1
"""Seconds between two ticks of the process."""


class Delivery:
    """The connections of this process and the sessions attached to them. Everything here runs on one event loop."""

    def __init__(self, services: Services, open_requests: OpenRequests) -> None:
        config, clock = services.config, services.clock
        self._outbox = services.store.outbox
        self._clock = clock
        self._outages = services.outages
        self._restarts = services.restarts
        self._node = services.node
        self._position_check = config.position_check
        self._open_requests = open_requests
        shortest = min(config.heartbeat, config.pong, config.hello_timeout, config.cleanup_interval, 5.0)
        self._tick = max(shortest / 2, TICK)
        self.attached: dict[str, ClientConnection] = {}
        self.connections: dict[ClientConnection, None] = {}
        self.counters = {"hints": 0, "reads": 0, "slow": 0, "forks": 0}
        self.degraded = False
        self.stuck_since: float | None = None
        """When reading the logs began to fail."""
        self._loop = asyncio.get_running_loop()
        self._wheel: TimerWheel[ClientConnection] = TimerWheel(min(0.25, self._tick), clock.monotonic())
        self._touched: dict[ClientConnection, None] = {}
        self._flushing = False
        self._closed = False
        self._to_read: deque[ClientConnection] = deque()
        self._reads = 0
        self._acks = AckWriter(self._outbox, services.store.sessions, self.outage)
        self._background = BackgroundTasks("delivery")
        self._strays: dict[str, Kick | None] = {}
        self._wall_offset = clock.time() - clock.monotonic()

    # Connections.

    def opened(self, connection: ClientConnection) -> None:
        self.connections[connection] = None
        self._wheel.put(connection, self._clock.monotonic())

    def attach(self, connection: ClientConnection) -> None:
        """Route the session's hints to this connection. If a hint came during the attach, read the log."""
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
            self._check(connection)

    def left(self, connection: ClientConnection) -> None:
        """The connection has closed. Its session stays in Redis and can be resumed."""
        self.connections.pop(connection, None)
        self._touched.pop(connection, None)
        if not connection.sid:
            return
        if self.attached.get(connection.sid) is connection:
            del self.attached[connection.sid]
        if connection.generation:
            self._acks.left(connection)

    # From Redis to the clients.

    def on_hints(self, rows: Sequence[Hint | Kick]) -> None:
        """Handle published hints. A missing hint proves nothing: the position check finds what was missed."""
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
                    if self._open_requests:
                        self._note_answers(row.sid, entries)
                    events = connection.link.offer_entries(entries, now, wall_ms=wall_ms)
                    if events and not connection.handle(events):
                        continue
                else:
                    connection.link.note_top(row.first + row.count - 1)
                self.touch(connection)
            else:
                self._kicked(row)

    def check_all(self) -> None:
        """Compare every session with its log, because hints may have been missed."""
        for connection in list(self.attached.values()):
            self._check(connection)

    def touch(self, connection: ClientConnection) -> None:
        """Flush the connection in the next turn of the loop, so that everything collected until then is one write."""
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
                except Exception:  # a defect of one session must not stop the others; `_cut` logs it
                    self._cut(connection)
        self._start_reads()

    def _flush_one(self, connection: ClientConnection) -> None:
        if connection.flush():
            self.touch(connection)
        if not connection.reading and connection.sid and connection.transport.unsent < HIGH_WATER:
            wanted = connection.link.wanted()
            if wanted is not None:
                connection.reading = True
                self._to_read.append(connection)

    def _check(self, connection: ClientConnection) -> None:
        """Read the log even if no new message is known, and verify that the last message sent is still in it."""
        connection.link.verify_log()
        if not connection.reading and not connection.over:
            connection.reading = True
            self._to_read.append(connection)
            self._start_reads()

    def _start_reads(self) -> None:
        while self._to_read and self._reads < READS_AT_ONCE and not self.degraded:
            self._reads += 1
            batch = [self._to_read.popleft() for _ in range(min(READ_ROWS, len(self._to_read)))]
            self._background.start(self._read(batch))

    async def _read(self, connections: list[ClientConnection]) -> None:
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
        self._start_reads()

    def _rows(self, connections: list[ClientConnection]) -> tuple[list[ReadRow], list[ClientConnection]]:
        """The rows to read. What a connection wants may have changed while it waited."""
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

    def _offer(self, connection: ClientConnection, excerpt: Excerpt | None, now: float, wall_ms: int) -> None:
        if excerpt is None:
            connection.lost()
            return
        if excerpt.generation > connection.generation:
            connection.end(CloseCode.SUPERSEDED, "the session is attached by another connection")
            return
        if excerpt.node != self._node:  # another gateway took this node for dead: no more hints arrive here
            connection.end(CloseCode.REBALANCE, "the session was detached", retry_after_ms=0)
            return
        if self._open_requests:
            self._note_answers(connection.sid, excerpt.entries)
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

    def _note_answers(self, sid: str, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.tail[:2] == RESPONSE:
                self._open_requests.remove((sid, response_rid(entry.tail)))

    def _kicked(self, kick: Kick) -> None:
        connection = self.attached.get(kick.sid)
        if connection is None or connection.generation < kick.generation:
            self._stray(kick.sid, kick)
        if connection is not None and connection.generation <= kick.generation:
            connection.kicked(kick.reason)

    def _stray(self, sid: str, kick: Kick | None = None) -> None:
        """Remember a hint for a session that may be attaching now. `attach` then reads the log, or ends the connection
        if it has lost the session."""
        if len(self._strays) >= MAX_STRAYS:
            self._strays.clear()
        self._strays[sid] = kick or self._strays.get(sid)

    def acked(self, connection: ClientConnection, ack: Acked) -> None:
        self._acks.acked(connection, ack)

    async def write_acks(self, sid: str) -> None:
        """Write the acks of a session that is about to end."""
        await self._acks.write_now(sid)

    # Time.

    def tick(self, now: float) -> None:
        """Run the heartbeats, timeouts and position checks that are due."""
        self._wall_offset = self._clock.time() - now
        for connection in self._wheel.due(now):
            if not connection.over:
                try:
                    self._tick_one(connection, now)
                except Exception:  # as above
                    self._cut(connection)

    def _tick_one(self, connection: ClientConnection, now: float) -> None:
        if not connection.handle(connection.link.tick(now, unsent=connection.transport.unsent)):
            return
        self.touch(connection)
        if connection.generation and now >= connection.check_at:
            connection.check_at = now + self._position_check * random.uniform(0.9, 1.1)
            self._check(connection)
        self._wheel.put(connection, min(connection.link.deadline(), now + self._tick))

    def _cut(self, connection: ClientConnection) -> None:
        """Limit a bug to one connection: the client reconnects and resumes."""
        logger.exception("session %s failed; its connection is closed and can be resumed", connection.sid)
        connection.over = True
        connection.transport.abort()

    def slow(self, connection: ClientConnection, seconds: float) -> None:
        self.counters["slow"] += 1
        logger.info("session %s has not acknowledged anything for %d s", connection.sid, seconds)

    # Without Redis.

    def outage(self, exc: StoreError) -> None:
        """Keep the connections, stop reading and retry. After the outage all sessions are checked."""
        self._outages.error(("gateway", "log"), "the clients' logs cannot be read", exc)
        if not self.degraded:
            self.degraded = True
            self.stuck_since = self._clock.monotonic()
            for connection in self.connections:
                connection.link.degraded(True)
            self._loop.call_later(0.2, self._start_trying)

    def _start_trying(self) -> None:
        if self._closed:
            return
        reading = self._restarts.keep("reading after an outage", self._try_again, is_over=lambda: not self.degraded)
        self._background.start(reading)

    async def _try_again(self) -> None:
        """Retry with one read at a time. The first reply resumes all reads."""
        backoff = Backoff(0.1, 2.0)
        while self.degraded:
            batch = [self._to_read.popleft() for _ in range(min(READ_ROWS, len(self._to_read)))]
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
            await asyncio.sleep(backoff.take())

    def _recovered(self) -> None:
        if not self.degraded:
            return
        self.degraded = False
        self.stuck_since = None
        self._outages.recovered(("gateway", "log"))
        for connection in self.connections:
            connection.link.degraded(False)
        self.check_all()

    async def close(self) -> None:
        """Write the outstanding acks."""
        self._closed = True
        await self._acks.close()
        await self._background.close(0.0)
