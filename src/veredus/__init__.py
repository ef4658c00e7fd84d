"""Veredus: tasks and messages on Redis that are never lost, never late, never out of order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veredus.app import App
    from veredus.client.calls import Call
    from veredus.client.handle import Handle
    from veredus.client.task import Task
    from veredus.errors import (
        AuthError,
        CommandRefused,
        ConfigError,
        ConnectionLost,
        DuplicateTask,
        EmbeddedError,
        LeaseLost,
        NotReady,
        PayloadError,
        PayloadTooLarge,
        ResultGone,
        RevokeTask,
        SkipRetry,
        StoreError,
        TaskError,
        TaskFailed,
        TaskIdConflict,
        TaskTimeout,
        VeredusError,
        WorkerStopped,
    )
    from veredus.model.depends import Depends
    from veredus.model.job import Job
    from veredus.model.retry import exponential
    from veredus.worker.context import Context, current
    from veredus.worker.worker import Worker

__version__ = "0.1.0"

# Where each public name lives; loaded on first use, so that importing the package costs next to nothing.
_HOMES = {
    "App": "app",
    "Call": "client.calls",
    "Context": "worker.context",
    "Depends": "model.depends",
    "Handle": "client.handle",
    "Job": "model.job",
    "Task": "client.task",
    "Worker": "worker.worker",
    "current": "worker.context",
    "exponential": "model.retry",
    "AuthError": "errors",
    "CommandRefused": "errors",
    "ConfigError": "errors",
    "ConnectionLost": "errors",
    "DuplicateTask": "errors",
    "EmbeddedError": "errors",
    "LeaseLost": "errors",
    "NotReady": "errors",
    "PayloadError": "errors",
    "PayloadTooLarge": "errors",
    "ResultGone": "errors",
    "RevokeTask": "errors",
    "SkipRetry": "errors",
    "StoreError": "errors",
    "TaskError": "errors",
    "TaskFailed": "errors",
    "TaskIdConflict": "errors",
    "TaskTimeout": "errors",
    "VeredusError": "errors",
    "WorkerStopped": "errors",
}

__all__ = [
    # the app and what it makes
    "App",
    # errors
    "AuthError",
    "Call",
    "CommandRefused",
    "ConfigError",
    "ConnectionLost",
    # inside a handler
    "Context",
    "Depends",
    "DuplicateTask",
    "EmbeddedError",
    "Handle",
    "Job",
    "LeaseLost",
    "NotReady",
    "PayloadError",
    "PayloadTooLarge",
    "ResultGone",
    "RevokeTask",
    "SkipRetry",
    "StoreError",
    "Task",
    "TaskError",
    "TaskFailed",
    "TaskIdConflict",
    "TaskTimeout",
    "VeredusError",
    "Worker",
    "WorkerStopped",
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
