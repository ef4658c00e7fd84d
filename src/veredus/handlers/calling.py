"""Calls the function of a task on the event loop or in a thread, with its arguments decoded and dependencies
injected."""

from __future__ import annotations

import functools
from typing import Any

from veredus.errors import PayloadError
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.injection import call_injected, dependencies
from veredus.handlers.mux import AnyTask
from veredus.handlers.only_retry import only_retry
from veredus.model.failure import concerns
from veredus.model.job import Job


class UnreadablePayload(Exception):
    """The payload does not fit the parameters of the handler. The cause is the PayloadError."""


async def call_on_loop(task: AnyTask, job: Job) -> Any:
    """Raises UnreadablePayload if the handler cannot be called with this payload."""
    args, kwargs = _arguments(task, job)
    try:
        if not dependencies(task.function):
            return await task.function(*args, **kwargs)
        return await call_injected(task.function, lambda given: task.function(*args, **kwargs, **given))
    except BaseExceptionGroup as group:
        retry = only_retry(group)
        if retry is None:
            raise
    raise retry


async def call_in_thread(task: AnyTask, threads: ThreadPool, job: Job) -> Any:
    """Raises UnreadablePayload if the handler cannot be called with this payload."""
    args, kwargs = _arguments(task, job)
    run = functools.partial(task.function, *args, **kwargs)
    try:
        if not dependencies(task.function):
            return await threads.submit(run)
        return await call_injected(task.function, lambda given: threads.submit(functools.partial(run, **given)))
    except BaseExceptionGroup as group:
        retry = only_retry(group)
        if retry is None:
            raise
    raise retry


def _arguments(task: AnyTask, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return task.codec.decode(job)
    except PayloadError as exc:
        concerns(exc, task.function)
        raise UnreadablePayload from exc
