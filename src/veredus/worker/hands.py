"""What this process has in hand: every attempt from dequeue until Redis has its settlement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from veredus.model.job import Job
from veredus.model.lease import Lease
from veredus.model.message import TaskMessage, deadline_of
from veredus.model.verdict import End
from veredus.worker.context import Context
from veredus.worker.reports import Reports


class Attempt:
    """One run of one task."""

    __slots__ = (
        "abandoned",
        "began_at",
        "begun",
        "context",
        "data",
        "deadline",
        "ends_at",
        "forced",
        "lease",
        "message",
        "owner",
        "queue",
        "running",
        "slot",
        "started_at",
        "task",
        "task_id",
        "then",
        "where",
    )

    def __init__(
        self,
        queue: str,
        task_id: str,
        owner: str,
        data: bytes,
        message: TaskMessage,
        lease: Lease,
        *,
        started_at: float,
        where: str = "loop",
        reports: Reports | None = None,
    ) -> None:
        self.queue = queue
        self.task_id = task_id
        self.owner = owner
        self.data = data
        self.message = message
        self.lease = lease
        self.started_at = started_at
        """When it was taken; once its handler runs, when that began. Unix seconds, as is the deadline."""
        self.deadline = 0.0
        """Set when the handler begins: time spent waiting for a slot is not run time."""
        self.ends_at = math.inf
        """The deadline on the monotonic clock."""
        self.began_at = math.inf
        """When its handler began, on the monotonic clock."""
        self.context = Context(Job(message), self.deadline, owner, reports)
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Set by its first step: a task cancelled before that would end without a trace, and keep its hand for ever."""
        self.running = True
        self.abandoned = False
        """Settled while its handler runs on, because the process ends."""
        self.slot: Any = None
        """The child process that runs its handler, if that needs one."""
        self.forced: End | None = None
        """Set when the attempt was ended from outside."""
        self.then = ""
        """Cancelled: what shall become of the task (archive, delete, retry); empty for Asynq's own way, a retry."""
        self.where = where
        """Where its handler runs: loop, thread or process."""

    @property
    def kind(self) -> str:
        return self.message.type

    def begin(self, now: float, monotonic: float, grace: float) -> None:
        """The handler begins, and so does its timeout."""
        self.started_at, self.began_at, self.deadline = now, monotonic, deadline_of(self.message, now)
        self.context.deadline_at = self.deadline
        self.ends_at = monotonic + (self.deadline - now)
        self.lease.begin(self.ends_at + grace)

    def force(self, end: End) -> None:
        """End the attempt from outside. A thread is only told; everything else is cancelled."""
        if not self.running or (self.forced is not None and end is not End.ABORTED):
            return
        self.forced = end
        self.context.cancel()
        stoppable = self.where != "thread" or end in (End.ABORTED, End.LEASE_LOST)
        if stoppable and self.begun and self.task is not None:
            self.task.cancel()

    def cancel(self, then: str = "") -> None:
        """End the attempt and the task as asked."""
        if self.running and self.forced in (None, End.CANCELLED):
            self.then = then or self.then
            self.force(End.CANCELLED)


class Hands:
    """The attempts in hand. Read from the heartbeater's thread, written only on the event loop."""

    def __init__(self, size: int, on_free: Callable[[], None]) -> None:
        self.size = size
        self._busy = 0
        self._on_free = on_free
        self._held: dict[Attempt, None] = {}  # in the order they were taken
        self.busy_in = {"loop": 0, "thread": 0, "process": 0}
        """How many of the busy hands are for each place where handlers run."""

    @property
    def free(self) -> int:
        return self.size - self._busy

    @property
    def busy(self) -> int:
        return self._busy

    def take(self, attempt: Attempt) -> None:
        self._busy += 1
        self.busy_in[attempt.where] += 1
        self._held[attempt] = None

    def release(self, attempt: Attempt) -> None:
        """A handler has ended: its hand is free, though its lease is still to be kept until it is settled."""
        self._busy -= 1
        self.busy_in[attempt.where] -= 1
        self._on_free()

    def forget(self, attempt: Attempt) -> None:
        """Redis has the settlement, or the task is no longer ours."""
        self._held.pop(attempt, None)

    def held(self) -> list[Attempt]:
        """All attempts whose leases are to be kept: one atomic copy, safe from another thread."""
        return list(self._held)

    def running(self) -> list[Attempt]:
        return [attempt for attempt in self.held() if attempt.running]

    def overrun(self, now: float) -> int:
        """How many run on after their deadline and its grace."""
        return sum(attempt.lease.is_overrun(now) for attempt in self.running())
