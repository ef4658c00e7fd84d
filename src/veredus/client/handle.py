"""A producer's handle for a task: read its status, wait for its result, cancel it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from veredus.errors import ConfigError

if TYPE_CHECKING:
    from veredus.client.handle_queries import HandleQueries
    from veredus.model.attempts import AttemptInfo
    from veredus.model.run_info import RunInfo
    from veredus.model.task_status import CancelOutcome, Progress, Status

T = TypeVar("T", covariant=True)


class Stored(NamedTuple):
    """What the handles of tasks that were sent alike have in common."""

    queue: str
    type: str
    state: str
    created: bool
    queries: HandleQueries | None


class Handle(Generic[T]):
    """A task in Redis."""

    __slots__ = ("_id", "_stored")

    def __init__(
        self, id: str, queue: str, type: str, state: str, created: bool = True, _queries: HandleQueries | None = None
    ) -> None:
        self._id = id
        self._stored = Stored(queue, type, state, created, _queries)

    @property
    def id(self) -> str:
        return self._id

    @property
    def queue(self) -> str:
        """Empty for a handle that `app.handle` made of an id alone."""
        return self._stored.queue

    @property
    def type(self) -> str:
        return self._stored.type

    @property
    def state(self) -> str:
        """The state in which it was stored, or in which this call found it."""
        return self._stored.state

    @property
    def created(self) -> bool:
        """False if nothing was stored. Either another task holds the unique lock: then this is the handle of that task,
        whose state may be `gone`. Or, in a batch, the id is taken."""
        return self._stored.created

    async def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait until the task has ended, including all retries, and return what its handler returned.

        Raises TaskFailed (with the last error) if the task was archived, TaskCancelled if it was cancelled, ResultGone
        if it ended without a result while nobody waited, and TimeoutError after `timeout` seconds. The task itself goes
        on then.
        """
        return cast(T, await self._connected_queries.result(self, timeout))

    def result_sync(self, timeout: float | timedelta | None = None) -> T:
        """`result` for synchronous code. Raises ConfigError in async code, where it would block the event loop that the
        task may need."""
        queries = self._connected_queries
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # there is none: this thread may wait
        else:
            raise ConfigError(
                "result_sync", self.id, "a call from synchronous code; here write `await handle.result()`"
            )
        return cast(T, queries.run(queries.result(self, timeout)))

    async def status(self) -> Status:
        """The current status of the task."""
        return await self._connected_queries.status(self)

    def status_sync(self) -> Status:
        """`status` for synchronous code."""
        queries = self._connected_queries
        return queries.run(queries.status(self))

    async def attempts(self) -> list[AttemptInfo]:
        """The last ten attempts that have ended, the first one first: when and where each ran, how it ended, its error
        with the traceback, and the lines of `current().log`. Empty if the task is gone."""
        return await self._connected_queries.attempts(self)

    def attempts_sync(self) -> list[AttemptInfo]:
        """`attempts` for synchronous code."""
        queries = self._connected_queries
        return queries.run(queries.attempts(self))

    async def durable_run(self) -> RunInfo | None:
        """What a durable task has done so far: its steps and waits, its children, and what it waits for. None if it has
        used none of them, or is gone."""
        return await self._connected_queries.durable_run(self)

    def durable_run_sync(self) -> RunInfo | None:
        """`durable_run` for synchronous code."""
        queries = self._connected_queries
        return queries.run(queries.durable_run(self))

    def progress(self) -> AsyncIterator[Progress]:
        """`async for step in handle.progress():` yields what the handler reports, starting with the last report,
        until the task has ended."""
        return self._connected_queries.progress(self)

    async def cancel(self, then: str = "archive", *, children: str = "cancel") -> CancelOutcome:
        """Cancel the task, before or while it runs. `then` says what happens to it: archive, delete, or retry (as in
        Asynq: the running attempt ends and the task is retried). It stays cancelled through crashes and restarts.

        The children of a durable task are cancelled as well, and theirs; `children="keep"` lets them run. They are
        cancelled in pages: should this call be interrupted, a worker goes on with it."""
        return await self._connected_queries.cancel(self, then, children)

    def cancel_sync(self, then: str = "archive", *, children: str = "cancel") -> CancelOutcome:
        """`cancel` for synchronous code."""
        queries = self._connected_queries
        return queries.run(queries.cancel(self, then, children))

    @property
    def _connected_queries(self) -> HandleQueries:
        queries = self._stored.queries
        if queries is None:
            raise ConfigError("handle", self, "a handle from this app: get one with app.handle(task_id, queue=...)")
        return queries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        names = ("id", "queue", "type", "state", "created")
        values = ", ".join(f"{name}={value!r}" for name, value in zip(names, self._values, strict=True))
        return f"Handle({values})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its connection; `app.handle(...)` makes a handle that has one."""
        return Handle, self._values

    @property
    def _values(self) -> tuple[str, str, str, str, bool]:
        return (self._id, self.queue, self.type, self.state, self.created)


def handles_of(ids: Sequence[str], stored: Sequence[Stored]) -> list[Handle[Any]]:
    """Many at once; no code of ours runs for each."""
    handles: list[Handle[Any]] = list(map(_new, repeat(Handle, len(ids))))
    deque(map(_set_id, handles, ids), maxlen=0)
    deque(map(_set_stored, handles, stored), maxlen=0)
    return handles


_new: Callable[[type[Handle[Any]]], Handle[Any]] = object.__new__
_set_id, _set_stored = (getattr(Handle, name).__set__ for name in Handle.__slots__)
