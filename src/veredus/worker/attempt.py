"""Attempt: one run of one task. InFlight: all attempts of a worker, from dequeue until the settlement is written."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from veredus.handlers.context import Context
from veredus.handlers.reports import Reports
from veredus.model.job import Job
from veredus.model.lease import Lease
from veredus.model.message import TaskMessage, deadline_of
from veredus.model.verdict import End


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
        "overrun_told",
        "owner",
        "queue",
        "running",
        "slot",
        "started_at",
        "task",
        "task_id",
        "then",
        "wait_ms",
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
        """When the task was dequeued; later, when its handler began. Unix seconds, like the deadline."""
        self.deadline = 0.0
        """Set when the handler begins, so that the wait for a slot does not count."""
        self.ends_at = math.inf
        """The deadline on the monotonic clock."""
        self.began_at = math.inf
        """When its handler began, on the monotonic clock."""
        self.context = Context(Job(message), self.deadline, owner, reports)
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Set by its first step. An asyncio task that is cancelled before would end silently and keep its slot
        forever."""
        self.running = True
        self.abandoned = False
        """Settled although its handler still runs, because the process ends."""
        self.overrun_told = False
        """Whether it was reported that its handler runs on after its deadline."""
        self.slot: Any = None
        """The ChildProcess that runs the handler, if it runs in a process. Any, because pools yield different slots."""
        self.forced: End | None = None
        """Set if the attempt is ended from outside."""
        self.then = ""
        """What follows a cancel: archive, delete or retry; empty for Asynq's behaviour, a retry."""
        self.wait_ms = -1
        """For how many ms the task was pending; -1 if unknown."""
        self.where = where
        """Where the handler runs: loop, thread or process."""

    @property
    def kind(self) -> str:
        return self.message.type

    def begin(self, now: float, monotonic: float, grace: float) -> None:
        """Start the timeout of the handler."""
        self.started_at, self.began_at, self.deadline = now, monotonic, deadline_of(self.message, now)
        self.context.deadline_at = self.deadline
        self.ends_at = monotonic + (self.deadline - now)
        self.lease.begin(self.ends_at + grace)

    def force(self, end: End) -> None:
        """End the attempt from outside. A handler in a thread is only notified; others are cancelled."""
        if not self.running or (self.forced is not None and end is not End.ABORTED):
            return
        self.forced = end
        self.context.cancel()
        stoppable = self.where != "thread" or end in (End.ABORTED, End.LEASE_LOST)
        if stoppable and self.begun and self.task is not None:
            self.task.cancel()

    def cancel(self, then: str = "") -> None:
        """End the attempt, and the task as requested."""
        if self.running and self.forced in (None, End.CANCELLED):
            self.then = then or self.then
            self.force(End.CANCELLED)


class InFlight:
    """Written only on the event loop; also read by the heartbeater's thread."""

    def __init__(self, size: int, on_free: Callable[[], None]) -> None:
        self.size = size
        self._busy = 0
        self._on_free = on_free
        self._held: dict[Attempt, None] = {}  # in the order of dequeue
        self.busy_in = {"loop": 0, "thread": 0, "process": 0}
        """Busy slots by where the handlers run."""

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
        """The handler has ended: free its slot. The lease is renewed until the settlement is written."""
        self._busy -= 1
        self.busy_in[attempt.where] -= 1
        self._on_free()

    def forget(self, attempt: Attempt) -> None:
        """The settlement is written, or this worker no longer owns the task."""
        self._held.pop(attempt, None)

    def held(self) -> list[Attempt]:
        """All attempts whose leases are to be renewed. An atomic copy, safe in other threads."""
        return list(self._held)

    def running(self) -> list[Attempt]:
        return [attempt for attempt in self.held() if attempt.running]

    def park(self, context: Context) -> None:
        """The handler with this context waits for something: it leaves its worker."""
        for attempt in self.held():
            if attempt.context is context and attempt.forced is None:
                attempt.force(End.PARKED)
            elif attempt.context is context and attempt.where == "loop" and attempt.task is not None:
                attempt.task.cancel()  # it is being ended already, and its cleaning would wait for ever

    def crash(self, context: Context) -> None:
        """For tests: whatever the handler with this context still does, its worker has died."""
        for attempt in self.held():
            if attempt.context is context:
                attempt.forced = End.CRASHED
                context.cancel()

    def overrun(self, now: float) -> int:
        """How many handlers still run after their deadline and grace."""
        return sum(attempt.lease.is_overrun(now) for attempt in self.running())
