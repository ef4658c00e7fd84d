"""The field `held` of an active task: whose it is, and the end of the lease that this owner wrote."""

from __future__ import annotations

_LENGTH = 13
"""So much of a worker's id says which worker it is: 48 random bits. It is written with every task that is taken."""


def owner(worker_id: str, what: object) -> str:
    """Who holds a task: a worker, and which of its batches or sweeps."""
    return f"{worker_id[:_LENGTH]}:{what}"


def owner_under(held: bytes | None, lease_end: bytes | None) -> str | None:
    """Who holds a task whose lease ends then; None if that lease was not written by the one that `held` names."""
    if held is None or lease_end is None:
        return None
    name, _, until = held.rpartition(b":")
    return name.decode("utf-8", "replace") if until == lease_end else None
