"""Veredus: tasks and messages on Redis that are never lost, never late, never out of order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veredus.app import App
    from veredus.client.call import Call
    from veredus.client.handle import Handle
    from veredus.client.notifier import Notifier
    from veredus.client.task import Task
    from veredus.errors import (
        ArchiveFull,
        AuthError,
        CommandRefused,
        ConfigError,
        ConnectionLost,
        DuplicateTask,
        EmbeddedError,
        GatewayError,
        GroupNotFound,
        LeaseLost,
        NotConfirmed,
        NotReady,
        OrderKeyNotHeld,
        OutboxFull,
        PayloadError,
        PayloadTooLarge,
        QueueClosed,
        QueueError,
        QueueFull,
        QueueNotEmpty,
        QueueNotFound,
        QueueUnserved,
        Refused,
        ResultError,
        ResultGone,
        Retry,
        RevokeTask,
        ScheduleNotFound,
        ServerFull,
        ServerNotFound,
        SkipRetry,
        StoreError,
        TaskCancelled,
        TaskError,
        TaskFailed,
        TaskIdConflict,
        TaskNotFound,
        TaskTimeout,
        Unauthorized,
        VeredusError,
        WorkerSilent,
        WorkerStopped,
        WrongState,
    )
    from veredus.handlers.context import Context, current
    from veredus.inspector.inspector import Inspector
    from veredus.inspector.search import Query
    from veredus.model.attempts import AttemptInfo
    from veredus.model.delivery import NotifyItem, PushResult, Spread, SyncHint
    from veredus.model.depends import Depends
    from veredus.model.job import Job
    from veredus.model.limits import Limit
    from veredus.model.redaction import Sensitive
    from veredus.model.retry import exponential
    from veredus.model.task_status import CancelOutcome, Progress, Status
    from veredus.router import Router
    from veredus.scheduler.entries import Entry
    from veredus.worker.worker import Worker

__version__ = "0.2.0"

# Where each public name lives; loaded on first use, so that importing the package costs next to nothing.
_HOMES = {
    "App": "app",
    "AttemptInfo": "model.attempts",
    "Call": "client.call",
    "CancelOutcome": "model.task_status",
    "Context": "handlers.context",
    "Depends": "model.depends",
    "Entry": "scheduler.entries",
    "Handle": "client.handle",
    "Inspector": "inspector.inspector",
    "Job": "model.job",
    "Limit": "model.limits",
    "Notifier": "client.notifier",
    "NotifyItem": "model.delivery",
    "Progress": "model.task_status",
    "PushResult": "model.delivery",
    "Query": "inspector.search",
    "Router": "router",
    "Sensitive": "model.redaction",
    "Spread": "model.delivery",
    "Status": "model.task_status",
    "SyncHint": "model.delivery",
    "Task": "client.task",
    "Worker": "worker.worker",
    "current": "handlers.context",
    "exponential": "model.retry",
    "ArchiveFull": "errors",
    "AuthError": "errors",
    "CommandRefused": "errors",
    "ConfigError": "errors",
    "ConnectionLost": "errors",
    "DuplicateTask": "errors",
    "EmbeddedError": "errors",
    "GroupNotFound": "errors",
    "GatewayError": "errors",
    "OrderKeyNotHeld": "errors",
    "LeaseLost": "errors",
    "NotConfirmed": "errors",
    "NotReady": "errors",
    "OutboxFull": "errors",
    "PayloadError": "errors",
    "PayloadTooLarge": "errors",
    "QueueClosed": "errors",
    "QueueError": "errors",
    "QueueFull": "errors",
    "QueueNotEmpty": "errors",
    "QueueNotFound": "errors",
    "QueueUnserved": "errors",
    "Refused": "errors",
    "ResultError": "errors",
    "ResultGone": "errors",
    "Retry": "errors",
    "RevokeTask": "errors",
    "ScheduleNotFound": "errors",
    "ServerFull": "errors",
    "ServerNotFound": "errors",
    "WorkerSilent": "errors",
    "SkipRetry": "errors",
    "StoreError": "errors",
    "TaskCancelled": "errors",
    "TaskError": "errors",
    "TaskFailed": "errors",
    "TaskIdConflict": "errors",
    "TaskNotFound": "errors",
    "TaskTimeout": "errors",
    "Unauthorized": "errors",
    "VeredusError": "errors",
    "WorkerStopped": "errors",
    "WrongState": "errors",
}

__all__ = [
    # the app and what it makes
    "App",
    "ArchiveFull",
    "AttemptInfo",
    # errors
    "AuthError",
    "Call",
    "CancelOutcome",
    "CommandRefused",
    "ConfigError",
    "ConnectionLost",
    # inside a handler
    "Context",
    "Depends",
    "DuplicateTask",
    "EmbeddedError",
    "Entry",
    "GatewayError",
    "GroupNotFound",
    "Handle",
    "Inspector",
    "Job",
    "LeaseLost",
    "Limit",
    "NotConfirmed",
    "NotReady",
    "Notifier",
    "NotifyItem",
    "OrderKeyNotHeld",
    "OutboxFull",
    "PayloadError",
    "PayloadTooLarge",
    "Progress",
    "PushResult",
    "Query",
    "QueueClosed",
    "QueueError",
    "QueueFull",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueUnserved",
    "Refused",
    "ResultError",
    "ResultGone",
    "Retry",
    "RevokeTask",
    "Router",
    "ScheduleNotFound",
    "Sensitive",
    "ServerFull",
    "ServerNotFound",
    "SkipRetry",
    "Spread",
    "Status",
    "StoreError",
    "SyncHint",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "TaskIdConflict",
    "TaskNotFound",
    "TaskTimeout",
    "Unauthorized",
    "VeredusError",
    "Worker",
    "WorkerSilent",
    "WorkerStopped",
    "WrongState",
    "current",
    "exponential",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'veredus' has no attribute {name!r}")
    value = getattr(import_module(f"veredus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
