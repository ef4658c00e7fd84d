"""Veredus: tasks and messages on Redis that are never lost, never late, never out of order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veredus.app import App
    from veredus.client.calls import Call
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
        LaneNotHeld,
        LeaseLost,
        NotConfirmed,
        NotReady,
        OutboxFull,
        PayloadError,
        PayloadTooLarge,
        QueueClosed,
        QueueError,
        QueueNotEmpty,
        QueueNotFound,
        QueueUnserved,
        Refused,
        ResultError,
        ResultGone,
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
        WorkerStopped,
        WrongState,
    )
    from veredus.inspector.inspector import Inspector
    from veredus.inspector.search import Query
    from veredus.model.delivery import NotifyItem, PushResult, Spread, SyncHint
    from veredus.model.depends import Depends
    from veredus.model.ending import CancelOutcome, Progress, Status
    from veredus.model.job import Job
    from veredus.model.limits import Limit
    from veredus.model.retry import exponential
    from veredus.scheduler.entries import Entry
    from veredus.worker.context import Context, current
    from veredus.worker.worker import Worker

__version__ = "0.1.0"

# Where each public name lives; loaded on first use, so that importing the package costs next to nothing.
_HOMES = {
    "App": "app",
    "Call": "client.calls",
    "CancelOutcome": "model.ending",
    "Context": "worker.context",
    "Depends": "model.depends",
    "Entry": "scheduler.entries",
    "Handle": "client.handle",
    "Inspector": "inspector.inspector",
    "Job": "model.job",
    "Limit": "model.limits",
    "Notifier": "client.notifier",
    "NotifyItem": "model.delivery",
    "Progress": "model.ending",
    "PushResult": "model.delivery",
    "Query": "inspector.search",
    "Spread": "model.delivery",
    "Status": "model.ending",
    "SyncHint": "model.delivery",
    "Task": "client.task",
    "Worker": "worker.worker",
    "current": "worker.context",
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
    "LaneNotHeld": "errors",
    "LeaseLost": "errors",
    "NotConfirmed": "errors",
    "NotReady": "errors",
    "OutboxFull": "errors",
    "PayloadError": "errors",
    "PayloadTooLarge": "errors",
    "QueueClosed": "errors",
    "QueueError": "errors",
    "QueueNotEmpty": "errors",
    "QueueNotFound": "errors",
    "QueueUnserved": "errors",
    "Refused": "errors",
    "ResultError": "errors",
    "ResultGone": "errors",
    "RevokeTask": "errors",
    "ScheduleNotFound": "errors",
    "ServerFull": "errors",
    "ServerNotFound": "errors",
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
    "LaneNotHeld",
    "LeaseLost",
    "Limit",
    "NotConfirmed",
    "NotReady",
    "Notifier",
    "NotifyItem",
    "OutboxFull",
    "PayloadError",
    "PayloadTooLarge",
    "Progress",
    "PushResult",
    "Query",
    "QueueClosed",
    "QueueError",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueUnserved",
    "Refused",
    "ResultError",
    "ResultGone",
    "RevokeTask",
    "ScheduleNotFound",
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
