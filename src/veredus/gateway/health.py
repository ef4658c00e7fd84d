"""Whether delivery works, not only whether the process lives; and the figures of one node."""

from __future__ import annotations

from typing import NamedTuple

STUCK_AFTER = 10.0
"""Seconds for which the logs may be unreadable, or the node unannounced, before health is red."""
BEHIND = 2.0
"""Seconds by which the event loop may be late."""


class Signs(NamedTuple):
    """What health is judged by; ages in seconds."""

    hints_arrive: bool
    hints_missing_for: float
    log_unreadable_for: float
    beat_age: float
    loop_late_by: float
    draining: bool
    listening: bool
    restarting: tuple[str, ...] = ()
    """What has ended in this process and is not back yet, with the reason."""


def problems(signs: Signs) -> list[str]:
    """Why clients do not get what they should; empty if they do."""
    found = []
    if not signs.hints_arrive and signs.hints_missing_for > STUCK_AFTER:
        found.append(f"no hints: the probe of pub/sub has been missed for {signs.hints_missing_for:.0f} s")
    if signs.log_unreadable_for > STUCK_AFTER:
        found.append(f"the logs cannot be read for {signs.log_unreadable_for:.0f} s")
    if signs.beat_age > STUCK_AFTER:
        found.append(f"no heartbeat of this node reached the store for {signs.beat_age:.0f} s")
    if signs.loop_late_by > BEHIND:
        found.append(f"the event loop is {signs.loop_late_by:.1f} s late")
    return [*found, *signs.restarting]


def not_ready(signs: Signs) -> list[str]:
    """Why no new client should be sent here; judged at once, without patience."""
    found = problems(signs)
    if signs.draining:
        found.append("draining: clients are being moved elsewhere")
    if not signs.listening:
        found.append("not listening")
    if not found and not signs.hints_arrive:
        found.append("no hints arrive")
    if not found and signs.log_unreadable_for > 0:
        found.append("the logs cannot be read")
    return found
