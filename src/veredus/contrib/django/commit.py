"""Enqueues a task after the transaction commits, so that the worker finds its rows."""

from __future__ import annotations

from typing import Any, ParamSpec

from django.db import transaction

from veredus.client.task import Task

P = ParamSpec("P")


def enqueue_on_commit(task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """`enqueue_on_commit(welcome, user.id)` enqueues after the commit, not after a rollback, and at once outside of a
    transaction. Arguments are encoded now, so that errors in them are raised here."""
    _on_commit(None, task, args, kwargs)


def enqueue_on_commit_of(database: str, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Like `enqueue_on_commit`, for a database other than the default."""
    _on_commit(database, task, args, kwargs)


def _on_commit(database: str | None, task: Task[..., Any, Any], args: Any, kwargs: Any) -> None:
    call = task.call(*args, **kwargs)
    transaction.on_commit(lambda: task.send_sync(call), using=database)
