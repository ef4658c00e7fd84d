"""The schedules that a leader has in hand: where each stands and which ticks it is going to fire."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from veredus.scheduler.catchup import Plan, plan
from veredus.scheduler.entries import Entry
from veredus.store.schedules import Position
from veredus.wire.option_texts import option_texts
from veredus.wire.schedules import EntryRecord

KEEP = 30 * 86400
"""For how many seconds after its next tick a schedule's position is kept: after a longer outage it counts as new."""


@dataclass(slots=True)
class Line:
    """One entry while its ticks are being fired."""

    entry: Entry
    at: int | None = None
    """Where it stands; None until Redis was asked."""
    fired: int | None = None
    ticks: deque[int] = field(default_factory=deque)
    """What comes next, the oldest first."""
    not_before: float = 0.0
    """After an error: when to try again, on the monotonic clock; 0 if all is well."""

    def begin(self, position: Position, now: int, grace: int) -> Plan:
        """Take over: what was missed is caught up as the entry says."""
        made = plan(self.entry.schedule, position.at, now, self.entry.missed, grace)
        self.at, self.fired, self.ticks = position.at, position.fired, deque(made.ticks)
        return made

    def move(self, at: int, fired: bool) -> None:
        """It stands at this tick now, by our doing or by another leader's."""
        self.at, self.not_before = at, 0.0
        self.fired = at if fired else self.fired
        while self.ticks and self.ticks[0] <= at:
            self.ticks.popleft()
        if not self.ticks:
            following = self.entry.schedule.next_unix(at)
            if following is not None:
                self.ticks.append(following)

    def lose(self) -> None:
        """What we know of it may be out of date."""
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
        """A position outlives its next tick by far, so that no outage of a reasonable length can lose that tick."""
        following = self.entry.schedule.next_unix(max(now, self.at or 0))
        return int((max(0.0, (following or now) - now) + KEEP) * 1000)

    def record(self) -> EntryRecord:
        """As Asynq's tools show it."""
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
