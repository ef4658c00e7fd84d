"""Order per key: where a task stands that waits for its turn, and what a lane looks like from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PARKED = 9_999_999_999
"""The score in `scheduled` of a task that waits for its turn, or for a limit: a day that Go's forwarder never sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """The tasks with one order key that have not ended yet."""

    queue: str
    order_key: str
    size: int
    first: str
    """The id of the task whose turn it is."""
    state: str
    """What that task is doing; empty if it is gone, which a worker's next sweep mends."""
    held: bool
    """Archived with order_hold: the others wait until somebody runs it, deletes it or releases the lane."""

    def as_dict(self) -> dict[str, Any]:
        names = "queue order_key size first state held"
        return {name: getattr(self, name) for name in names.split()}
