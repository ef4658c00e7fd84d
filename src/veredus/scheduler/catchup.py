"""Plans which ticks of a schedule to fire, from its position and the time."""

from __future__ import annotations

from dataclasses import dataclass

from veredus.model.cron import Schedule

WINDOW = 3600
"""Seconds whose missed ticks are all caught up ..."""
COUNT = 100
"""... and older ones up to this total."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The ticks to fire next."""

    ticks: list[int]
    """Unix seconds, oldest first: the due ticks, otherwise the next one; empty if there is none."""
    dropped: bool = False
    """Whether missed ticks are not caught up."""


def plan(schedule: Schedule, at: int, now: int, missed: str, grace: int) -> Plan:
    """`at` is the tick (or first second) after which the schedule goes on. Ticks up to `grace` seconds old count as on
    time even for "skip": a change of the leader may take that long."""
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
    """The newest `count` ticks, or all of the window if there are more. Searches back in growing steps, because a long
    time may have too many ticks to visit."""
    reach = max(window, 60)
    while True:
        since = max(at, now - reach)
        found = _between(schedule, at, since, now)
        if since == at or len(found) >= count:
            break
        reach *= 4
    recent = sum(tick > now - window for tick in found)
    return found[-max(count, recent) :]
