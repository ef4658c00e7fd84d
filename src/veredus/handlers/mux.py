"""Finds the handler of a task: the exact name first, then the longest pattern. Wraps it in the middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from veredus.client.task import Task
from veredus.errors import ConfigError, VeredusError
from veredus.model.job import Job
from veredus.model.retry import RetryDelayFunction

AnyTask = Task[..., Any, Any]
Run = Callable[[Job], Awaitable[Any]]
Middleware = Callable[[Job, Run], Awaitable[Any]]


class HandlerNotFound(VeredusError):
    """No handler for this type. The task is retried, because a worker with the handler may start soon."""

    has_asynqs_text = True

    def __init__(self, task_type: str) -> None:
        super().__init__(f'handler not found for task "{task_type}"')


class Mux:
    """The handlers of an app, by task type."""

    def __init__(
        self, tasks: Mapping[str, AnyTask], patterns: Mapping[str, AnyTask], middlewares: Sequence[Middleware]
    ) -> None:
        self._tasks = tasks
        self._patterns = sorted(
            ((pattern[:-1], task) for pattern, task in patterns.items()), key=lambda row: -len(row[0])
        )
        self._middlewares = tuple(middlewares)
        for middleware in middlewares:
            if not callable(middleware):
                raise ConfigError("middleware", middleware, "an async function of (job, call_next)")

    def find(self, task_type: str) -> AnyTask | None:
        task = self._tasks.get(task_type)
        if task is None:
            for prefix, candidate in self._patterns:
                if task_type.startswith(prefix):
                    return candidate
        return task

    def retry_delay(self, task_type: str, default: RetryDelayFunction) -> RetryDelayFunction:
        task = self.find(task_type)
        return (task.retry_delay if task is not None else None) or default

    def retry_front(self, task_type: str, default: bool) -> bool:
        """Whether a due retry goes to the front of its queue."""
        task = self.find(task_type)
        return default if task is None or task.retry_front is None else task.retry_front

    def wrap(self, run: Run) -> Run:
        """The first middleware declared is the outermost."""
        for middleware in reversed(self._middlewares):
            run = _around(middleware, run)
        return run


def _around(middleware: Middleware, inner: Run) -> Run:
    async def call(job: Job) -> Any:
        return await middleware(job, inner)

    return call
