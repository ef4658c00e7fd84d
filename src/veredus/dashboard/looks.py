"""Tasks as the pages show them: the inspector's own fields, long bytes shortened, and what can be done with each."""

from __future__ import annotations

from typing import Any

from veredus.model.info import SECOND, QueueInfo, TaskInfo, content, instant_text
from veredus.model.lifecycle import State

EXCERPT = 240
"""Bytes of a payload in a list."""
WHOLE = 1024 * 1024
"""Bytes of a payload on a task's own page."""

_WAITING = ("archive", "delete", "cancel", "edit", "reschedule", "move")
ACTIONS: dict[str, tuple[str, ...]] = {
    "active": ("cancel", "requeue"),
    "pending": ("run", *_WAITING),
    "scheduled": ("run", *_WAITING),
    "retry": ("run", *_WAITING),
    "archived": ("requeue", "delete", "edit", "reschedule", "move"),
    "completed": ("requeue", "archive", "delete", "move"),
    "aggregating": ("run", "archive", "delete", "cancel", "move"),
}
"""What a state allows. `run` of a pending task brings it to the front of the line."""


def states_of(info: QueueInfo) -> dict[str, int]:
    return {str(state): getattr(info, str(state)) for state in State}


def row_of(task: TaskInfo) -> dict[str, Any]:
    """One line of a list."""
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
        | {"kept_until": instant_text(ends * SECOND), "actions": list(ACTIONS[task.state])}
        | more
    )


def shortened(data: bytes, most: int) -> dict[str, Any] | None:
    """As `content`, with the size; of more than `most` bytes only the beginning."""
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
