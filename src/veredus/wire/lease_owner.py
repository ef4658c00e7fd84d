"""The field `held` of an active task: its owner, and the end of the lease that this owner wrote."""

from __future__ import annotations

_LENGTH = 13
"""So much of a worker's id says which worker it is: 48 random bits. It is written with every task that is taken."""
_FIRST_MS = 10**12
"""Numbers below are no milliseconds since 1970: those would be in 2001."""


def owner(worker_id: str, what: object) -> str:
    """Who holds a task: a worker, and which of its batches or sweeps."""
    return f"{worker_part(worker_id)}:{what}"


def worker_part(worker_id: str) -> str:
    """The beginning of a worker's id, by which owners name it."""
    return worker_id[:_LENGTH]


def taken_at(owner: str) -> float:
    """When a worker took the task, in Unix seconds: batches are numbered by the milliseconds at which they were asked
    for. 0 for owners of other versions, which count from 1."""
    number = owner.rpartition(":")[2]
    return int(number) / 1000 if number.isascii() and number.isdigit() and int(number) >= _FIRST_MS else 0.0


def owner_under(held: bytes | None, lease_end: bytes | None) -> str | None:
    """The owner of a task whose lease has this end; None if the owner in `held` did not write that lease."""
    if held is None or lease_end is None:
        return None
    name, _, until = held.rpartition(b":")
    return name.decode("utf-8", "replace") if until == lease_end else None
