"""The part of an app that steers what was sent: handles, cancelling, pausing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from veredus.client.blocking import BlockingPortal
from veredus.client.handle import Handle
from veredus.client.task import Task
from veredus.model.options import Options

if TYPE_CHECKING:
    from veredus.client.client import Client
    from veredus.client.connections import Connections
    from veredus.client.desk import Desk
    from veredus.model.ending import CancelOutcome


class Steering:
    """What an app can do with tasks that are in Redis already."""

    tasks: dict[str, Task[..., Any, Any]]
    patterns: dict[str, Task[..., Any, Any]]
    _defaults: Options
    _portal: BlockingPortal

    if TYPE_CHECKING:

        def _client(self) -> Client: ...

        def _all_connections(self) -> Connections: ...

    def handle(self, task_id: str, *, queue: str | None = None, type: str = "") -> Handle[Any]:
        """A handle for a task that was sent before or elsewhere. `type` says how to decode its result; left out, it is
        read from the task."""
        return Handle(task_id, queue or self._defaults.queue, type, "unknown", True, self._desk)

    async def cancel(self, task_id: str, *, queue: str | None = None, then: str = "archive") -> CancelOutcome:
        """Cancel a task for good, before it begins or while it runs; `then`: archive, delete or retry."""
        return await self._desk.cancel(queue or self._defaults.queue, task_id, then)

    def cancel_sync(self, task_id: str, *, queue: str | None = None, then: str = "archive") -> CancelOutcome:
        """`cancel` for synchronous code."""
        return self._portal.run(self.cancel(task_id, queue=queue, then=then))

    async def pause(self, queue: str) -> bool:
        """Hand out no more tasks of this queue, in Python and Go; what runs goes on. False if it was paused already."""
        from veredus.store.queues import Queues

        return await Queues(self._client().store.redis).pause(queue)

    def pause_sync(self, queue: str) -> bool:
        """`pause` for synchronous code."""
        return self._portal.run(self.pause(queue))

    async def resume(self, queue: str) -> bool:
        """Hand out tasks again. False if it was not paused."""
        from veredus.store.queues import Queues

        return await Queues(self._client().store.redis).resume(queue)

    def resume_sync(self, queue: str) -> bool:
        """`resume` for synchronous code."""
        return self._portal.run(self.resume(queue))

    @property
    def _desk(self) -> Desk:
        desk = self._all_connections().desk
        assert desk is not None
        return desk

    def _function_of(self, task_type: str) -> Callable[..., Any] | None:
        """The function that serves a type here, if this app knows one."""
        task = self.tasks.get(task_type)
        if task is None:
            fitting = [pattern for pattern in self.patterns if task_type.startswith(pattern[:-1])]
            task = self.patterns[max(fitting, key=len)] if fitting else None
        return None if task is None else task.function
