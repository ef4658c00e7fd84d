"""Context: the running attempt, as its handler sees it through `current()`."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from veredus.clock import SYSTEM
from veredus.handlers.durable_calls import DurableCalls
from veredus.model.attempts import LogLines
from veredus.model.durable import Wait
from veredus.model.job import Job
from veredus.model.retry import RetryRule

if TYPE_CHECKING:
    from veredus.client.children import ChildSender
    from veredus.handlers.durable_run import DurableRun
    from veredus.handlers.request_answers import RequestClient


class Reporting(Protocol):
    """Carries out what a handler reports: the worker itself, or a pipe to it."""

    async def progress(self, job: Job, owner: str, share: float, note: str) -> None: ...

    def progress_sync(self, job: Job, owner: str, share: float, note: str) -> None: ...

    async def write_result(self, job: Job, owner: str, data: bytes) -> None: ...

    def wait_for(self, coroutine: Coroutine[Any, Any, None]) -> None: ...

    def client_of(self, job: Job) -> RequestClient: ...

    def log(self, context: Context, text: str) -> None: ...

    @property
    def children(self) -> ChildSender: ...

    def durable_run(self, context: Context, owner: str) -> DurableRun: ...

    def run_blocking(self, coroutine: Coroutine[Any, Any, Any]) -> Any: ...


class Context(DurableCalls):
    """The running attempt: `current().attempt`, `.deadline`, `.headers`, `.cancelled` ..."""

    __slots__ = (
        "_cancelled",
        "_client",
        "_lines",
        "_owner",
        "_reports",
        "deadline_at",
        "durable",
        "job",
        "raw",
        "reported",
        "retry_rule",
        "wait",
        "written",
    )

    def __init__(self, job: Job, deadline: float, owner: str = "", reports: Reporting | None = None) -> None:
        self.job = job
        self.deadline_at = deadline
        self._cancelled: threading.Event | None = None
        self._owner = owner
        self._reports = reports
        self._client: RequestClient | None = None
        self.retry_rule: RetryRule | None = None
        """Which errors are final, as the task was declared."""
        self._lines: LogLines | None = None
        self.raw = False
        """Whether the handler returned bytes, which are stored unchanged."""
        self.reported = False
        """Whether any progress was reported."""
        self.written: bytes | None = None
        """The result that `write_result` stored."""
        self.durable: DurableRun | None = None
        """What durable calls have done, once the handler has used one."""
        self.wait: Wait | None = None
        """What the handler has left its worker for."""

    @property
    def id(self) -> str:
        """The task's id: the same in every attempt, so it serves as an idempotency key elsewhere."""
        return self.job.id

    @property
    def queue(self) -> str:
        """The queue of the task."""
        return self.job.queue

    @property
    def type(self) -> str:
        """The task's type, as on the wire."""
        return self.job.type

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the sender set."""
        return self.job.headers

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.retried + 1

    @property
    def max_retry(self) -> int:
        """How often the task may be retried."""
        return self.job.max_retry

    @property
    def deadline(self) -> datetime:
        """When this attempt times out."""
        return datetime.fromtimestamp(self.deadline_at, UTC)

    @property
    def cancelled(self) -> bool:
        """True once this attempt must end, because it timed out, was cancelled or lost its lease. A thread cannot be
        stopped from outside, so a long synchronous handler should check this regularly."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """For synchronous handlers: sleep until cancelled, at most `timeout` seconds. True if it was cancelled."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled.wait(timeout)

    @property
    def client(self) -> RequestClient:
        """The client that sent this request: `await current().client.notify(...)`. Raises LookupError if the task is
        not a request."""
        if self._client is None:
            if self._reports is None:
                raise LookupError("current().client: no worker runs this handler")
            self._client = self._reports.client_of(self.job)
        return self._client

    @property
    def served(self) -> RequestClient | None:
        """The client, if the handler has used it."""
        return self._client

    def serve(self, client: RequestClient) -> None:
        """Set the client, for a request that runs without a worker."""
        self._client = client

    async def progress(self, share: float, note: str = "") -> None:
        """Report the progress of this task, from 0 to 1, to `async for step in handle.progress()`. Cheap: at most ten
        reports a second are written, and always the last one."""
        if self._reports is not None:
            self.reported = True
            await self._reports.progress(self.job, self._owner, share, note)

    def progress_sync(self, share: float, note: str = "") -> None:
        """`progress` for handlers that run in threads or processes."""
        if self._reports is not None:
            self.reported = True
            self._reports.progress_sync(self.job, self._owner, share, note)

    def log(self, text: object) -> None:
        """Add a line to the record of this attempt: `current().log(f"{len(rows)} rows")`. The last 30 lines are kept,
        of 200 bytes each, and stored with the task when the attempt ends."""
        if self._reports is not None:
            self._reports.log(self, str(text))
        else:
            self.add_line(SYSTEM.time(), str(text))

    def add_line(self, at: float, text: str) -> None:
        if self._lines is None:
            self._lines = LogLines()
        self._lines.add(at, text)

    @property
    def log_lines(self) -> tuple[tuple[float, str], ...]:
        """What `log` added."""
        return () if self._lines is None else self._lines.taken()

    async def write_result(self, data: bytes) -> int:
        """Store a result now, as Asynq's ResultWriter does; a return value other than None replaces it. Returns the
        number of bytes. Raises LeaseLost if this worker no longer owns the task."""
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

    def _durable(self) -> DurableRun:
        if self.durable is None:
            if self._reports is None:
                raise LookupError("durable calls work only inside a handler that a worker runs")
            self.durable = self._reports.durable_run(self, self._owner)
        return self.durable

    def _children(self) -> ChildSender:
        self._durable()
        return self._reporting.children

    def _blocking(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._reports is None:
            coroutine.close()
            raise LookupError("durable calls work only inside a handler that a worker runs")
        return self._reports.run_blocking(coroutine)

    def cancel(self) -> None:
        if self._cancelled is None:
            self._cancelled = threading.Event()
        self._cancelled.set()


_CURRENT: ContextVar[Context] = ContextVar("veredus_current")


def current() -> Context:
    """The context of the running handler. Raises LookupError outside of a handler."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise LookupError("current() works only inside a handler that a worker runs") from None


def enter(context: Context) -> None:
    _CURRENT.set(context)
