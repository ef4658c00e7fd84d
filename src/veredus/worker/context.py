"""What a handler can know of the attempt it runs in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

from veredus.model.job import Job


class Context:
    """The running attempt: `current().attempt`, `.deadline`, `.headers`, `.cancelled` ..."""

    __slots__ = ("_cancelled", "_deadline", "job")

    def __init__(self, job: Job, deadline: float) -> None:
        self.job = job
        self._deadline = deadline
        self._cancelled: threading.Event | None = None

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def type(self) -> str:
        return self.job.type

    @property
    def headers(self) -> Mapping[str, str]:
        return self.job.headers

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.job.retried + 1

    @property
    def max_retry(self) -> int:
        return self.job.max_retry

    @property
    def deadline(self) -> datetime:
        """When this attempt will be stopped."""
        return datetime.fromtimestamp(self._deadline, UTC)

    @property
    def cancelled(self) -> bool:
        """True once this attempt shall end: timed out, cancelled, or no longer ours. A thread cannot be stopped from
        outside, so a long synchronous handler should look at it now and then."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """For synchronous handlers: sleep until cancelled, at most so many seconds; True if it was."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled.wait(timeout)

    def cancel(self) -> None:
        if self._cancelled is None:
            self._cancelled = threading.Event()
        self._cancelled.set()


_CURRENT: ContextVar[Context] = ContextVar("veredus_current")


def current() -> Context:
    """The context of the handler that calls this. Raises LookupError outside of one."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise LookupError("current() works only inside a handler that a worker runs") from None


def enter(context: Context) -> None:
    _CURRENT.set(context)
