"""Tasks as the API returns them, and the actions that each state allows."""

from __future__ import annotations

from typing import Any

from veredus.inspector.inspector import ARCHIVABLE, DELETABLE, RUNNABLE
from veredus.model.info import SECOND, QueueInfo, TaskInfo, content, instant_text
from veredus.model.lifecycle import State

EXCERPT = 240
"""Bytes of a payload in a list."""
WHOLE = 1024 * 1024
"""Bytes of a payload on a task's own page."""

_WAITING = ("run", "reschedule", "edit", "move", "archive", "cancel", "delete")
ACTIONS: dict[str, tuple[str, ...]] = {
    "active": ("cancel", "requeue"),
    "pending": _WAITING,
    "scheduled": _WAITING,
    "retry": _WAITING,
    "archived": ("requeue", "reschedule", "edit", "move", "delete"),
    "completed": ("requeue", "move", "archive", "delete"),
    "aggregating": ("run", "move", "archive", "cancel", "delete"),
}
"""What a state allows for single tasks, in the order of the buttons. `run` makes a pending task the next to run."""
_BULK = {"cancel": (State.ACTIVE,), "run": RUNNABLE, "archive": ARCHIVABLE, "delete": DELETABLE}
BULK_ACTIONS = {str(state): [verb for verb, states in _BULK.items() if state in states] for state in State}
"""What a state allows for all its tasks at once."""


def states_of(info: QueueInfo) -> dict[str, int]:
    return {str(state): getattr(info, str(state)) for state in State}


def row_of(task: TaskInfo) -> dict[str, Any]:
    """One row of a list."""
    return task.as_dict() | {
        "payload": shortened(task.payload, EXCERPT),
        "result": shortened(task.result, EXCERPT),
        "last_err": task.last_error[:EXCERPT],
    }


def task_of(task: TaskInfo, more: dict[str, Any]) -> dict[str, Any]:
    """Everything about one task."""
    ends = task.score if task.state == "completed" else 0
    return (
        task.as_dict()
        | {"payload": shortened(task.payload, WHOLE), "result": shortened(task.result, WHOLE)}
        | {"traceback": task.traceback}
        | {"kept_until": instant_text(ends * SECOND), "actions": _actions(task)}
        | more
    )


def _actions(task: TaskInfo) -> list[str]:
    """An edit of a redacted payload would store the redacted one."""
    return [action for action in ACTIONS[task.state] if not (action == "edit" and task.is_redacted)]


def shortened(data: bytes, most: int) -> dict[str, Any] | None:
    """Like `content`, with the size. Only the first `most` bytes are included."""
    if len(data) > most:
        begun = content(data[:most].decode("utf-8", "ignore").encode() if _is_text(data) else data[:most])
        return {**(begun or {}), "size": len(data), "truncated": True}
    whole = content(data)
    return None if whole is None else {**whole, "size": len(data), "truncated": False}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
