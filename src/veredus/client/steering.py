"""The part of an app that controls tasks after they were sent: handles, cancelling, pausing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from veredus.client.handle import Handle
from veredus.client.task import Task
from veredus.model.durable import EVENT_TTL
from veredus.model.options import Options

if TYPE_CHECKING:
    from veredus.app_server import AppServer
    from veredus.client.handle_queries import HandleQueries
    from veredus.model.task_status import CancelOutcome


class Steering:
    """What an app can do with tasks that are in Redis already."""

    tasks: dict[str, Task[..., Any, Any]]
    patterns: dict[str, Task[..., Any, Any]]
    _defaults: Options
    server: AppServer

    def handle(self, task_id: str, *, queue: str | None = None, type: str = "") -> Handle[Any]:
        """A handle for a task that was sent earlier or elsewhere. `type` says how to decode its result; without it,
        the type is read from the task. Without `queue`, the task is searched for in all queues at each use."""
        return Handle(task_id, queue or "", type, "unknown", True, self._queries)

    async def cancel(
        self, task_id: str, *, queue: str | None = None, then: str = "archive", children: str = "cancel"
    ) -> CancelOutcome:
        """Cancel a task of any queue for good, before it begins or while it runs; `then`: archive, delete or retry;
        `children` of a durable task: cancel or keep."""
        return await self._queries.cancel(self.handle(task_id, queue=queue), then, children)

    def cancel_sync(
        self, task_id: str, *, queue: str | None = None, then: str = "archive", children: str = "cancel"
    ) -> CancelOutcome:
        """`cancel` for synchronous code."""
        return self.server.portal.run(self.cancel(task_id, queue=queue, then=then, children=children))

    async def pause(self, queue: str) -> bool:
        """Stop dequeuing tasks of this queue, in Python and Go; running tasks go on. Returns False if it was paused
        already."""
        from veredus.store.inspect.queues import Queues

        return await Queues(self.server.client().store.redis).pause(queue)

    def pause_sync(self, queue: str) -> bool:
        """`pause` for synchronous code."""
        return self.server.portal.run(self.pause(queue))

    async def resume(self, queue: str) -> bool:
        """Dequeue tasks again. Returns False if the queue was not paused."""
        from veredus.store.inspect.queues import Queues

        return await Queues(self.server.client().store.redis).resume(queue)

    def resume_sync(self, queue: str) -> bool:
        """`resume` for synchronous code."""
        return self.server.portal.run(self.resume(queue))

    async def emit(self, event: str, payload: Any = True, *, ttl: float | timedelta = EVENT_TTL) -> bool:
        """Tell durable tasks that wait for this event, now or later: `await app.emit("approved:7", {"by": "ada"})`.
        The first of a name counts, and is kept for `ttl` (7 days); returns whether this was the first. `payload` is any
        JSON value but None."""
        from veredus.client.emitting import emit

        return await emit(self.server.client().store, event, payload, ttl)

    def emit_sync(self, event: str, payload: Any = True, *, ttl: float | timedelta = EVENT_TTL) -> bool:
        """`emit` for synchronous code."""
        return self.server.portal.run(self.emit(event, payload, ttl=ttl))

    @property
    def _queries(self) -> HandleQueries:
        return self.server.queries()

    def function_of(self, task_type: str) -> Callable[..., Any] | None:
        """The function for a type, if this app declares one."""
        task = self.tasks.get(task_type)
        if task is None:
            fitting = [pattern for pattern in self.patterns if task_type.startswith(pattern[:-1])]
            task = self.patterns[max(fitting, key=len)] if fitting else None
        return None if task is None else task.function
