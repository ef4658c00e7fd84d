"""GatewaySigns: whether delivery works, not only whether the process is alive."""

from __future__ import annotations

from typing import NamedTuple

STUCK_AFTER = 10.0
"""Seconds without log reads, hints or heartbeats after which the gateway is unhealthy."""
BEHIND = 2.0
"""Seconds by which the event loop may be late before the gateway is unhealthy."""


class GatewaySigns(NamedTuple):
    """The measurements behind the health checks; ages in seconds."""

    hints_arrive: bool
    hints_missing_for: float
    log_unreadable_for: float
    beat_age: float
    loop_late_by: float
    draining: bool
    listening: bool
    restarting: tuple[str, ...] = ()
    """Parts of this process that failed and are not running again yet, with the reason."""


def problems(signs: GatewaySigns) -> list[str]:
    """Why delivery does not work; empty if it works."""
    found = []
    if not signs.hints_arrive and signs.hints_missing_for > STUCK_AFTER:
        found.append(f"no hints: no pub/sub probe has arrived for {signs.hints_missing_for:.0f} s")
    if signs.log_unreadable_for > STUCK_AFTER:
        found.append(f"the logs have been unreadable for {signs.log_unreadable_for:.0f} s")
    if signs.beat_age > STUCK_AFTER:
        found.append(f"no heartbeat of this node has reached the store for {signs.beat_age:.0f} s")
    if signs.loop_late_by > BEHIND:
        found.append(f"the event loop is {signs.loop_late_by:.1f} s late")
    return [*found, *signs.restarting]


def not_ready(signs: GatewaySigns) -> list[str]:
    """Why no new client should be sent here, without any tolerance in time."""
    found = problems(signs)
    if signs.draining:
        found.append("draining: clients are being moved to other gateways")
    if not signs.listening:
        found.append("not listening")
    if not found and not signs.hints_arrive:
        found.append("no hints arrive")
    if not found and signs.log_unreadable_for > 0:
        found.append("the logs cannot be read")
    return found
