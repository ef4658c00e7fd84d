"""Runs Django's tasks in a worker: functions in threads, coroutines on the event loop."""

from __future__ import annotations

from typing import Any

from django.db import close_old_connections

from veredus.app import App
from veredus.contrib.django.framework import base, signals, tasks
from veredus.contrib.django.records import (
    ASYNC_PREFIX,
    BACKEND,
    ENQUEUED,
    PREFIX,
    DjangoTaskRecord,
    instant,
    new_result,
    task_of,
)
from veredus.errors import Retry, RevokeTask, SkipRetry
from veredus.handlers.context import current
from veredus.model.job import Job


def serve_tasks(app: App) -> None:
    """Let this app's workers run Django's tasks too, in all queues of the backends that use it. The backend calls this
    for its app."""
    if f"{PREFIX}*" in app.patterns:
        return
    app.queue_sources.append(lambda: _queues_of(app))

    @app.handler(f"{PREFIX}*")
    def run_task(job: Job) -> bytes:
        return _run(app, job)

    @app.handler(f"{ASYNC_PREFIX}*")
    async def run_async_task(job: Job) -> bytes:
        return await _run_async(app, job)


def _queues_of(app: App) -> dict[str, int]:
    from veredus.contrib.django.backend import VeredusBackend

    found: dict[str, int] = {}
    for backend in tasks.task_backends.all():
        if isinstance(backend, VeredusBackend) and backend.app is app:
            found |= backend.worker_queues()
    return found


class _Attempt:
    """One attempt of a task and the TaskResult for Django's signals."""

    def __init__(self, app: App, job: Job, before: bytes | None) -> None:
        self._clock = app.clock
        self._job = job
        self.record = DjangoTaskRecord.read(before)
        self.record.begin(self._clock.time())
        self.task = task_of(job.type, job.headers)
        self._arguments = job.json()
        self.sender = type(self.task.get_backend())
        self.result = self._result("RUNNING")

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        context = [base.TaskContext(task_result=self.result)] if self.task.takes_context else []
        return context + self.result.args, self.result.kwargs

    def succeeded(self, value: Any) -> bytes:
        self.record.succeed(value, self._clock.time())
        self.result = self._result("SUCCESSFUL")
        return self.record.write()

    def failed(self, error: BaseException) -> bytes:
        self.record.fail(error, self._clock.time())
        self.result = self._result("FAILED")
        return self.record.write()

    def is_last(self, error: BaseException) -> bool:
        if isinstance(error, Retry) and not error.counts:
            return False
        return self._job.retried >= self._job.max_retry or isinstance(error, SkipRetry | RevokeTask)

    def _result(self, status: str) -> Any:
        return new_result(
            self.task,
            self._job.id,
            self._job.headers.get(BACKEND, self.task.backend),
            self._arguments["args"],
            self._arguments["kwargs"],
            self.record,
            status=base.TaskResultStatus[status],
            enqueued_at=instant(float(self._job.headers.get(ENQUEUED, 0)) or None),
        )


def _run(app: App, job: Job) -> bytes:
    close_old_connections()
    try:
        before = app.blocking(_result_before(app, job)) if job.retried else None
        attempt = _Attempt(app, job, before)
        current().write_result_sync(attempt.record.write())
        signals.task_started.send(attempt.sender, task_result=attempt.result)
        args, kwargs = attempt.arguments()
        try:
            result = attempt.succeeded(attempt.task.call(*args, **kwargs))
        except BaseException as exc:
            current().write_result_sync(attempt.failed(exc))
            if attempt.is_last(exc):
                signals.task_finished.send(attempt.sender, task_result=attempt.result)
            raise
        signals.task_finished.send(attempt.sender, task_result=attempt.result)
        return result
    finally:
        close_old_connections()


async def _run_async(app: App, job: Job) -> bytes:
    before = await _result_before(app, job) if job.retried else None
    attempt = _Attempt(app, job, before)
    await current().write_result(attempt.record.write())
    await signals.task_started.asend(attempt.sender, task_result=attempt.result)
    args, kwargs = attempt.arguments()
    try:
        result = attempt.succeeded(await attempt.task.acall(*args, **kwargs))
    except Exception as exc:
        await current().write_result(attempt.failed(exc))
        if attempt.is_last(exc):
            await signals.task_finished.asend(attempt.sender, task_result=attempt.result)
        raise
    await signals.task_finished.asend(attempt.sender, task_result=attempt.result)
    return result


async def _result_before(app: App, job: Job) -> bytes | None:
    """The record that earlier attempts wrote."""
    return (await app.inspector().task(job.queue, job.id)).result
