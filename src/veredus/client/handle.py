"""What a producer holds of a task it sent: ask how it stands, wait for its result, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from veredus.errors import ConfigError

if TYPE_CHECKING:
    from veredus.client.desk import Desk
    from veredus.model.ending import CancelOutcome, Progress, Status

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Handle(Generic[T]):
    """A task that Redis has. `state` is the one it was stored in, or was in when this call found it there."""

    id: str
    queue: str
    type: str
    state: str
    created: bool = True
    """False when nothing was stored: because the task is unique and another one has its lock (then this is the handle
    of that one, whose state may be `gone`), or (in a batch) because the id is taken."""
    _desk: Desk | None = field(default=None, repr=False, compare=False)

    async def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait until the task has ended for good, through all its retries, and return what its handler returned.

        Raises TaskFailed (with the last error) if it was archived, TaskCancelled if somebody cancelled it, ResultGone
        if it ended and left nothing behind while nobody waited, and TimeoutError after `timeout` seconds: the task
        itself goes on then.
        """
        return cast(T, await self._at_desk.result(self, timeout))

    def result_sync(self, timeout: float | timedelta | None = None) -> T:
        """`result` for synchronous code."""
        desk = self._at_desk
        return cast(T, desk.run(desk.result(self, timeout)))

    async def status(self) -> Status:
        """How the task stands now."""
        return await self._at_desk.status(self)

    def status_sync(self) -> Status:
        """`status` for synchronous code."""
        desk = self._at_desk
        return desk.run(desk.status(self))

    def progress(self) -> AsyncIterator[Progress]:
        """`async for step in handle.progress():` what the handler reports, beginning with the last report so far, until
        the task has ended, however it ends."""
        return self._at_desk.progress(self)

    async def cancel(self, then: str = "archive") -> CancelOutcome:
        """Cancel the task, also before it begins: `then` is what becomes of it: archive, delete, or retry (Asynq's own
        way: the running attempt ends, the task is tried again). It stays cancelled through crashes and restarts."""
        return await self._at_desk.cancel(self.queue, self.id, then)

    def cancel_sync(self, then: str = "archive") -> CancelOutcome:
        """`cancel` for synchronous code."""
        desk = self._at_desk
        return desk.run(desk.cancel(self.queue, self.id, then))

    @property
    def _at_desk(self) -> Desk:
        if self._desk is None:
            raise ConfigError("handle", self, "a handle from this app: get one with app.handle(task_id, queue=...)")
        return self._desk

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels without its connection; `app.handle(...)` makes one that has it."""
        return Handle, (self.id, self.queue, self.type, self.state, self.created)
