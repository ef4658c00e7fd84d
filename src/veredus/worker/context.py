"""What a handler can know of the attempt it runs in."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from veredus.model.job import Job

if TYPE_CHECKING:
    from veredus.worker.requests import RequestClient


class Reporting(Protocol):
    """What carries out the reports of a handler: the worker itself, or a pipe to it."""

    async def progress(self, job: Job, owner: str, share: float, note: str) -> None: ...

    def progress_sync(self, job: Job, owner: str, share: float, note: str) -> None: ...

    async def write_result(self, job: Job, owner: str, data: bytes) -> None: ...

    def wait_for(self, coroutine: Coroutine[Any, Any, None]) -> None: ...

    def client_of(self, job: Job) -> RequestClient: ...


class Context:
    """The running attempt: `current().attempt`, `.deadline`, `.headers`, `.cancelled` ..."""

    __slots__ = ("_cancelled", "_client", "_owner", "_reports", "deadline_at", "job", "raw", "reported", "written")

    def __init__(self, job: Job, deadline: float, owner: str = "", reports: Reporting | None = None) -> None:
        self.job = job
        self.deadline_at = deadline
        self._cancelled: threading.Event | None = None
        self._owner = owner
        self._reports = reports
        self._client: RequestClient | None = None
        self.raw = False
        """Whether the result is bytes of the handler's own."""
        self.reported = False
        """Whether any progress was reported."""
        self.written: bytes | None = None
        """The result that was written before the end."""

    @property
    def id(self) -> str:
        """The task's id: the same in every attempt, so it serves as an idempotency key elsewhere."""
        return self.job.id

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.job.queue

    @property
    def type(self) -> str:
        """The task's type, as on the wire."""
        return self.job.type

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender gave along."""
        return self.job.headers

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.job.retried + 1

    @property
    def max_retry(self) -> int:
        """How often it may be retried."""
        return self.job.max_retry

    @property
    def deadline(self) -> datetime:
        """When this attempt will be stopped."""
        return datetime.fromtimestamp(self.deadline_at, UTC)

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

    @property
    def client(self) -> RequestClient:
        """The client whose request this task is: `await current().client.notify(...)`. Raises LookupError in a task
        that is no request."""
        if self._client is None:
            if self._reports is None:
                raise LookupError("current().client: no worker runs this handler")
            self._client = self._reports.client_of(self.job)
        return self._client

    @property
    def served(self) -> RequestClient | None:
        """The client, if the handler has asked for it."""
        return self._client

    def serve(self, client: RequestClient) -> None:
        """Say who the client is, where no worker does."""
        self._client = client

    async def progress(self, share: float, note: str = "") -> None:
        """Say how far this task is, from 0 to 1: `async for step in handle.progress()` gets it. Cheap: at most ten a
        second are written, and the last one always."""
        if self._reports is not None:
            self.reported = True
            await self._reports.progress(self.job, self._owner, share, note)

    def progress_sync(self, share: float, note: str = "") -> None:
        """`progress` for handlers that run in threads or processes."""
        if self._reports is not None:
            self.reported = True
            self._reports.progress_sync(self.job, self._owner, share, note)

    async def write_result(self, data: bytes) -> int:
        """Store a result now, where Asynq's ResultWriter puts it; a return value other than None will replace it.
        Raises LeaseLost if the task is no longer ours. Returns the number of bytes."""
        await self._reporting.write_result(self.job, self._owner, data)
        self.written = data
        return len(data)

    def write_result_sync(self, data: bytes) -> int:
        """`write_result` for handlers that run in threads or processes."""
        self._reporting.wait_for(self._reporting.write_result(self.job, self._owner, data))
        self.written = data
        return len(data)

    @property
    def _reporting(self) -> Reporting:
        if self._reports is None:
            raise LookupError("write_result(): no worker runs this handler")
        return self._reports

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
