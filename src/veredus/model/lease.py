"""A lease as its worker knows it: until when it is valid, how long it may be renewed, and whether it was lost."""

from __future__ import annotations

import math


class Lease:
    """What the worker may still do with a task, by the monotonic clock. Time is an argument.

    A lease that ran out may not be lost: if nobody has claimed the task, the next heartbeat renews it. It is lost when
    Redis says that another worker has the task, and stays so. Once its handler has begun, only the heartbeater's
    thread changes a lease, and the event loop reads it; each change is one assignment, so there is no lock.
    """

    __slots__ = ("_ends_at", "_latest", "lost")

    def __init__(self, ends_at: float, latest: float = math.inf) -> None:
        self._ends_at = ends_at
        self._latest = latest
        self.lost = False
        """Whether another worker has the task: this one must not write anything for it."""

    def begin(self, latest: float) -> None:
        """The handler begins: from now on the lease is kept until that instant at most, its deadline and grace."""
        self._latest = latest

    def is_valid(self, now: float) -> bool:
        """Whether nobody else can have the task: only then may its handler begin."""
        return now < self._ends_at and not self.lost

    def is_overrun(self, now: float) -> bool:
        """Whether a handler that still runs has had all its time: the deadline and its grace have passed."""
        return now >= self._latest

    def renewal(self, now: float, length: float, *, bounded: bool) -> float:
        """For how many seconds from now to renew it; 0 if it is to run out. `bounded`: never past the deadline and its
        grace; otherwise for as long as its handler runs, and until the task is settled."""
        if self.lost:
            return 0.0
        return max(0.0, min(length, self._latest - now)) if bounded else length

    @property
    def latest(self) -> float:
        """When a handler that still runs will have had all its time."""
        return self._latest

    def renew(self, ends_at: float) -> None:
        """Redis has renewed it."""
        self._ends_at = ends_at

    def lose(self) -> None:
        """Redis says that another worker has the task."""
        self.lost = True
