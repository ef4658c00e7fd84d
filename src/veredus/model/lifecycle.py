"""The life cycle of a task as data: the states, and the verbs that lead from one to another."""

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
"""Before a task is stored, and after it is deleted."""

ANY_VERB: tuple[tuple[State | None, State | None], ...] = ((State.SCHEDULED, State.PENDING),)
"""Every verb that ends a task may also make the next task pending that waits for the same order key or limit."""

_ENDED = (State.ARCHIVED, State.COMPLETED)
_WAITING = (State.PENDING, State.SCHEDULED, State.RETRY, State.AGGREGATING)
_AT_REST = (*_WAITING, *_ENDED)


def _each(starts: tuple[State, ...], *ends: State | None) -> tuple[tuple[State | None, State | None], ...]:
    return tuple([(start, end) for start in starts for end in ends if start is not end])


TRANSITIONS: dict[str, tuple[tuple[State | None, State | None], ...]] = {
    "enqueue": ((GONE, State.PENDING), (GONE, State.SCHEDULED)),
    "schedule": ((GONE, State.SCHEDULED),),
    "replace": _each(_ENDED, State.PENDING, State.SCHEDULED, State.AGGREGATING),
    "forward": (
        (State.SCHEDULED, State.PENDING),
        (State.RETRY, State.PENDING),
        (State.SCHEDULED, State.AGGREGATING),
        (State.RETRY, State.AGGREGATING),
        (State.RETRY, State.SCHEDULED),
        (State.SCHEDULED, GONE),
        (State.RETRY, GONE),
    ),
    "advance_stale_lanes": ((State.SCHEDULED, State.PENDING),),
    "release": ((State.SCHEDULED, State.PENDING),),
    "dequeue": ((State.PENDING, State.ACTIVE), (State.PENDING, GONE), (State.PENDING, State.SCHEDULED)),
    "done": ((State.ACTIVE, GONE),),
    "complete": ((State.ACTIVE, State.COMPLETED),),
    "retry": ((State.ACTIVE, State.RETRY), (State.AGGREGATING, State.RETRY)),
    "archive": ((State.ACTIVE, State.ARCHIVED), *_each(_WAITING, State.ARCHIVED), (State.ARCHIVED, GONE)),
    "requeue": ((State.ACTIVE, State.PENDING),),
    "recover": ((State.ACTIVE, GONE),),
    "cancel": (*_each(_WAITING, State.ARCHIVED, GONE), (State.ARCHIVED, GONE)),
    "park": ((State.ACTIVE, State.SCHEDULED), (State.ACTIVE, State.PENDING)),
    "wake": ((State.SCHEDULED, State.PENDING),),
    "join": ((State.SCHEDULED, State.PENDING),),
    "expire": ((State.COMPLETED, GONE),),
    "add": ((GONE, State.AGGREGATING),),
    "read": ((State.AGGREGATING, GONE),),
    "aggregate": (
        (State.AGGREGATING, GONE),
        (GONE, State.PENDING),
        (GONE, State.SCHEDULED),
        (GONE, State.AGGREGATING),
        (State.AGGREGATING, State.PENDING),
        (State.AGGREGATING, State.SCHEDULED),
    ),
    "run": _each(_AT_REST, State.PENDING, State.SCHEDULED),
    "run_all": _each(_AT_REST[1:], State.PENDING, State.SCHEDULED),
    "reschedule": _each((State.PENDING, State.AGGREGATING, *_ENDED), State.SCHEDULED),
    "archive_all": (*_each(_WAITING, State.ARCHIVED), (State.ARCHIVED, GONE)),
    "delete": _each(_AT_REST, GONE),
    "delete_all": _each(_AT_REST, GONE),
    "move": (*_each(_AT_REST, GONE), *[(GONE, state) for state in _AT_REST]),
    "stage_copy": ((GONE, State.ARCHIVED),),
    "delete_original": _each(_AT_REST, GONE),
    "release_copy": (*_each((State.ARCHIVED,), *_AT_REST), (State.ARCHIVED, GONE)),
    "quarantine": (*_each(_WAITING, State.ARCHIVED), (State.COMPLETED, State.ARCHIVED)),
}
"""Every move that a verb makes with a task, and no other. A verb that leaves the state as it is has no row, nor has the
repair of a task that is not where its state says. `tests/lua/test_moves.py` makes each of these moves; the script tests
and the property tests fail for a move that is not here."""

BY_HAND = frozenset(
    {"run", "run_all", "reschedule", "archive_all", "delete", "delete_all", "move", "stage_copy"}
    | {"delete_original", "release_copy", "quarantine"}
)
"""Verbs that people and tools call through the inspector; the picture of the life cycle leaves them out."""
