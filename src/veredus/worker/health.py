"""Whether a worker does its work, not only whether its process lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Signs(NamedTuple):
    """What health is judged by; seconds."""

    status: str
    """new, active, stopped (takes nothing more) or closed."""
    beat_age: float
    """Since a heartbeat last reached the server."""
    lease: float
    restarting: tuple[str, ...]
    """What has ended in this process and is not back yet, with the reason."""
    busy: int
    """Handlers at work."""
    overrun: int = 0
    """Those among them that run on after their deadline and its grace."""
    restarts: Mapping[str, int] = {}
    """How often each part of the worker was started again."""


def problems(signs: Signs) -> list[str]:
    """Why this process should be replaced; empty if it should not. That Redis is away is no reason: a new process would
    not reach it either."""
    if signs.status == "closed":
        return ["it has stopped"]
    return list(signs.restarting)


def not_ready(signs: Signs) -> list[str]:
    """Why it takes no tasks now."""
    found = problems(signs)
    if signs.status != "active":
        found.append("not started yet" if signs.status == "new" else "stopping: it takes no new tasks")
    if signs.beat_age > signs.lease:
        found.append(f"no heartbeat reached Redis for {signs.beat_age:.0f} s")
    return found
