"""Which ticks to fire, given where a schedule stands and what time it is."""

from __future__ import annotations

from dataclasses import dataclass

from veredus.model.cron import Schedule

WINDOW = 3600
"""Missed ticks of so many last seconds are all caught up ..."""
COUNT = 100
"""... and older ones up to so many in all."""


@dataclass(frozen=True, slots=True)
class Plan:
    ticks: list[int]
    """Unix seconds, the oldest first: those that are due, else the next one; empty if there is none."""
    dropped: bool = False
    """Whether ticks were missed that nobody will fire."""


def plan(schedule: Schedule, at: int, now: int, missed: str, grace: int) -> Plan:
    """`at` is the tick (or the first second) after which the schedule goes on. Ticks up to `grace` seconds old are on
    time even for "skip": that is how long it may take until somebody else leads."""
    if missed == "skip":
        due = _between(schedule, at, max(at, now - grace), now)
    elif missed == "once":
        due = _newest(schedule, at, now, 1, 0)
    else:
        due = _newest(schedule, at, now, COUNT, WINDOW)
    upcoming = schedule.next_unix(at)
    dropped = upcoming is not None and upcoming <= now and (not due or due[0] != upcoming)
    if not due:
        following = schedule.next_unix(schedule.aligned(at, max(at, now)))
        due = [] if following is None else [following]
    return Plan(due, dropped and missed == "all")


def _between(schedule: Schedule, at: int, since: int, now: int) -> list[int]:
    """All ticks later than `since`, up to now."""
    found = []
    tick = schedule.next_unix(schedule.aligned(at, since))
    while tick is not None and tick <= now:
        if tick > since:
            found.append(tick)
        tick = schedule.next_unix(tick)
    return found


def _newest(schedule: Schedule, at: int, now: int, count: int, window: int) -> list[int]:
    """The newest `count` ticks, or all of the window if those are more. Looks back in growing steps, because the ticks
    of a long time would be too many to visit."""
    reach = max(window, 60)
    while True:
        since = max(at, now - reach)
        found = _between(schedule, at, since, now)
        if since == at or len(found) >= count:
            break
        reach *= 4
    recent = sum(tick > now - window for tick in found)
    return found[-max(count, recent) :]
