"""ScheduleState: the position of one schedule, and the ticks that its leader fires next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from veredus.scheduler.catchup import Plan, plan
from veredus.scheduler.entries import Entry
from veredus.store.tasks.schedules import Position
from veredus.wire.option_texts import option_texts
from veredus.wire.schedules import EntryRecord

KEEP = 30 * 86400
"""Seconds that a position is kept after the next tick. After a longer outage the schedule counts as new."""


@dataclass(slots=True)
class ScheduleState:
    """An entry and its position."""

    entry: Entry
    at: int | None = None
    """The last tick that is done; None until it has been read from Redis."""
    fired: int | None = None
    ticks: deque[int] = field(default_factory=deque)
    """The next ticks, oldest first."""
    not_before: float = 0.0
    """After an error: when to try again, on the monotonic clock; otherwise 0."""

    def begin(self, position: Position, now: int, grace: int) -> Plan:
        """Start at a position from Redis. Missed ticks are handled according to the entry."""
        made = plan(self.entry.schedule, position.at, now, self.entry.missed, grace)
        self.at, self.fired, self.ticks = position.at, position.fired, deque(made.ticks)
        return made

    def move(self, at: int, fired: bool) -> None:
        """This tick is done, by this leader or another one."""
        self.at, self.not_before = at, 0.0
        self.fired = at if fired else self.fired
        while self.ticks and self.ticks[0] <= at:
            self.ticks.popleft()
        if not self.ticks:
            following = self.entry.schedule.next_unix(at)
            if following is not None:
                self.ticks.append(following)

    def forget_position(self) -> None:
        """The position may be out of date: read it again."""
        self.at = None
        self.ticks.clear()

    @property
    def next_tick(self) -> int | None:
        return self.ticks[0] if self.ticks else None

    def due(self, now: float, most: int) -> list[int]:
        found: list[int] = []
        for tick in self.ticks:
            if tick > now or len(found) == most:
                break
            found.append(tick)
        return found

    def ttl_ms(self, now: float) -> int:
        """The lifetime of the position in Redis: long enough that an outage cannot lose the next tick."""
        following = self.entry.schedule.next_unix(max(now, self.at or 0))
        return int((max(0.0, (following or now) - now) + KEEP) * 1000)

    def record(self) -> EntryRecord:
        """The record for Asynq's tools."""
        call = self.entry.call
        return EntryRecord(
            id=self.entry.id,
            spec=self.entry.line.spec,
            task_type=call.type,
            task_payload=call.payload or b"",
            enqueue_options=option_texts(call.options),
            next_at=self.next_tick,
            previous_at=self.fired,
        )
