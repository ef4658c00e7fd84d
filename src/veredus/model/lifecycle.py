"""The law of a task's life as data: states, and which verb leads from which to which."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Exactly as on the wire."""

    ACTIVE = "active"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    ARCHIVED = "archived"
    COMPLETED = "completed"
    AGGREGATING = "aggregating"


GONE = None
"""Before a task was made, and after it was deleted."""

# Whatever ends a task may bring the next one of its lane, or one that waits for a limit, from scheduled to pending.
TRANSITIONS: dict[str, tuple[tuple[State | None, State | None], ...]] = {
    "enqueue": ((GONE, State.PENDING), (GONE, State.SCHEDULED)),
    "schedule": ((GONE, State.SCHEDULED),),
    "forward": (
        (State.SCHEDULED, State.PENDING),
        (State.RETRY, State.PENDING),
        (State.SCHEDULED, State.AGGREGATING),
        (State.RETRY, State.AGGREGATING),
        (State.SCHEDULED, State.SCHEDULED),
        (State.RETRY, State.SCHEDULED),
    ),
    "tend": ((State.SCHEDULED, State.PENDING),),
    "release": ((State.SCHEDULED, State.PENDING),),
    "dequeue": ((State.PENDING, State.ACTIVE), (State.PENDING, GONE), (State.PENDING, State.SCHEDULED)),
    "done": ((State.ACTIVE, GONE),),
    "complete": ((State.ACTIVE, State.COMPLETED),),
    "retry": ((State.ACTIVE, State.RETRY),),
    "archive": ((State.ACTIVE, State.ARCHIVED), (State.AGGREGATING, State.ARCHIVED)),
    "requeue": ((State.ACTIVE, State.PENDING),),
    "recover": ((State.ACTIVE, State.ACTIVE),),
    "extend": ((State.ACTIVE, State.ACTIVE),),
    "cancel": (
        (State.PENDING, State.ARCHIVED),
        (State.SCHEDULED, State.ARCHIVED),
        (State.RETRY, State.ARCHIVED),
        (State.AGGREGATING, State.ARCHIVED),
        (State.PENDING, GONE),
        (State.SCHEDULED, GONE),
        (State.RETRY, GONE),
        (State.AGGREGATING, GONE),
        (State.ACTIVE, State.ACTIVE),
    ),
    "expire": ((State.COMPLETED, GONE),),
    "add": ((GONE, State.AGGREGATING),),
    "check": ((State.AGGREGATING, State.AGGREGATING),),
    "aggregate": ((State.AGGREGATING, GONE),),
    "reclaim": ((State.AGGREGATING, State.AGGREGATING),),
}
