"""Order keys: the score of waiting tasks, and what the inspector shows of an order key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PARKED = 9_999_999_999
"""The score in `scheduled` of a task that waits for its turn or for a limit: a due time that Go's forwarder never
reaches."""

UNTIL_WOKEN = 9_999_999_998
"""The score of a durable task that waits for something without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderKeyInfo:
    """The unfinished tasks with one order key."""

    queue: str
    order_key: str
    size: int
    first: str
    """The id of the task whose turn it is."""
    state: str
    """The state of that task; empty if it is gone, which a worker's next sweep repairs."""
    held: bool
    """Archived with order_hold: the others wait until it is run or deleted, or the order key is released."""

    def as_dict(self) -> dict[str, Any]:
        names = "queue order_key size first state held"
        return {name: getattr(self, name) for name in names.split()}
