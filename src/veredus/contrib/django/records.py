"""The record of a Django task: stored as the task's result, read back as a TaskResult."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.module_loading import import_string

from veredus.contrib.django.framework import base, normalize_json
from veredus.model.info import TaskInfo

PREFIX, ASYNC_PREFIX = "django:", "django:async:"
BACKEND, QUEUE, PRIORITY, ENQUEUED = "django-backend", "django-queue", "django-priority", "django-enqueued"
MAX_ERRORS = 10
"""Failed attempts that are kept with their tracebacks, the last ones."""
MAX_TRACEBACK = 8_000
"""Characters of a traceback that are kept, the last ones."""
_STATUS = {"active": "RUNNING", "completed": "SUCCESSFUL", "archived": "FAILED"}


@dataclass(slots=True)
class DjangoTaskRecord:
    """When a task started, which workers ran it, and its errors."""

    started_at: float | None = None
    last_attempted_at: float | None = None
    finished_at: float | None = None
    worker_ids: list[str] = field(default_factory=list)
    errors: list[list[str]] = field(default_factory=list)
    return_value: Any = None

    @classmethod
    def read(cls, data: bytes | None) -> DjangoTaskRecord:
        """Empty if the task has not started, or if the handler wrote a result of its own."""
        try:
            return cls(**json.loads(data or b"{}"))
        except (ValueError, TypeError):
            return cls()

    def begin(self, now: float) -> None:
        self.started_at = self.started_at or now
        self.last_attempted_at = now
        self.worker_ids.append(f"{socket.gethostname()}:{os.getpid()}")

    def succeed(self, value: Any, now: float) -> None:
        self.return_value, self.finished_at = normalize_json(value), now

    def fail(self, error: BaseException, now: float) -> None:
        kind = type(error)
        text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
        self.errors = [*self.errors, [f"{kind.__module__}.{kind.__qualname__}", text]][-MAX_ERRORS:]
        self.finished_at = now

    def write(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def type_of(task: Any, is_async: bool) -> str:
    return f"{ASYNC_PREFIX if is_async else PREFIX}{task.module_path}"


def headers_of(task: Any, alias: str, now: float) -> dict[str, str]:
    return {BACKEND: alias, QUEUE: task.queue_name, PRIORITY: str(task.priority), ENQUEUED: repr(now)}


def task_of(task_type: str, headers: Mapping[str, str], run_after: datetime | None = None) -> Any:
    """The Django task of this type with the options it was enqueued with. Refuses anything that is not a Django
    task."""
    path = task_type.removeprefix(ASYNC_PREFIX).removeprefix(PREFIX)
    found = import_string(path)
    if not isinstance(found, base.Task):
        raise ImportError(f"{path} is a {type(found).__name__}, not a Django task")
    return found.using(
        priority=int(headers.get(PRIORITY, found.priority)),
        queue_name=headers.get(QUEUE, found.queue_name),
        backend=headers.get(BACKEND, found.backend),
        run_after=run_after,
    )


def new_result(
    task: Any, task_id: str, alias: str, args: Any, kwargs: Any, record: DjangoTaskRecord, **times: Any
) -> Any:
    """A TaskResult. Its constructor converts the arguments to JSON values or raises."""
    result = base.TaskResult(
        task=task,
        id=task_id,
        status=times.pop("status", base.TaskResultStatus.READY),
        started_at=instant(record.started_at),
        last_attempted_at=instant(record.last_attempted_at),
        finished_at=instant(record.finished_at),
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[base.TaskError(exception_class_path=path, traceback=text) for path, text in record.errors],
        worker_ids=list(record.worker_ids),
        **times,
    )
    object.__setattr__(result, "_return_value", record.return_value)
    return result


def result_of(info: TaskInfo) -> Any:
    """The TaskResult for the current state in Redis."""
    record = DjangoTaskRecord.read(info.result)
    arguments = json.loads(info.payload)
    status = base.TaskResultStatus[_STATUS.get(info.state, "READY")]
    if status in (base.TaskResultStatus.READY, base.TaskResultStatus.RUNNING):
        record.finished_at = None
    elif status is base.TaskResultStatus.FAILED and not record.errors:  # its worker died, or it was cancelled
        record.errors = [["veredus.errors.TaskFailed", info.last_error]]
        record.finished_at = record.finished_at or float(info.last_failed)
    due = instant(info.next_ms / 1000) if info.state == "scheduled" and info.next_ms else None
    return new_result(
        task_of(info.type, info.headers, due),
        info.id,
        info.headers.get(BACKEND, base.DEFAULT_TASK_BACKEND_ALIAS),
        arguments["args"],
        arguments["kwargs"],
        record,
        status=status,
        enqueued_at=instant(float(info.headers.get(ENQUEUED, 0)) or None),
    )


def instant(seconds: float | None) -> datetime | None:
    from django.conf import settings

    if seconds is None:
        return None
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else aware.astimezone().replace(tzinfo=None)
