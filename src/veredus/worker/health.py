"""The health of a worker: whether it does its work, not only whether its process runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class WorkerSigns(NamedTuple):
    """The facts that health depends on. Durations in seconds."""

    status: str
    """new, active, stopped (takes no more tasks) or closed."""
    beat_age: float
    """Time since the last heartbeat reached the server."""
    lease: float
    restarting: tuple[str, ...]
    """Roles that have ended and not recovered yet, with the reason."""
    busy: int
    """Running handlers."""
    overrun: int = 0
    """Running handlers whose deadline and grace have passed."""
    restarts: Mapping[str, int] = {}
    """How often each role was restarted."""


def problems(signs: WorkerSigns) -> list[str]:
    """Why this process should be replaced; empty if it is healthy. An outage of Redis is no reason, because a new
    process could not reach it either."""
    if signs.status == "closed":
        return ["it has stopped"]
    return list(signs.restarting)


def not_ready(signs: WorkerSigns) -> list[str]:
    """Why it takes no tasks now; empty if it does."""
    found = problems(signs)
    if signs.status != "active":
        found.append("not started yet" if signs.status == "new" else "stopping: it takes no new tasks")
    if signs.beat_age > signs.lease:
        found.append(f"no heartbeat reached Redis for {signs.beat_age:.0f} s")
    return found
