"""Turns the return codes of inspector scripts into errors that say what to do."""

from __future__ import annotations

from veredus.errors import DuplicateTask, TaskIdConflict, VeredusError, WrongState

RUNNING = "it is running; cancel it first"
MISPLACED = (
    "it is not in the list of its state, or is being aggregated; if that persists, run `veredus doctor --repair`"
)
WAITING = "it waits for its turn, behind other tasks with its order key or for a limit"
BOUND = (
    "it is a durable task that waits for something or has children; with from_start=True (--from-start) it forgets "
    "what it has done"
)
CHANGED = "another client changed it at the same time; try again"

_PROBLEMS: dict[str, dict[int, str]] = {
    "run": {-1: "it is already running", -2: "it is already pending", -3: MISPLACED, -7: WAITING},
    "archive": {-1: "it is already archived", -2: RUNNING, -3: MISPLACED},
    "delete": {-1: RUNNING, -3: MISPLACED},
    "reschedule": {-1: RUNNING, -3: MISPLACED},
    "edit": {-1: "only a pending, scheduled, retry or archived task can be edited", -5: CHANGED, -8: BOUND},
    "move": {-1: RUNNING, -3: MISPLACED, -5: CHANGED, -8: BOUND},
}


def refusal(verb: str, code: int, queue: str, task_id: str, target: str = "") -> VeredusError:
    """The error for a negative code. Callers handle 0 (no such task)."""
    if code == -2 and verb in ("edit", "move"):
        return DuplicateTask(
            f"another task of queue {target or queue!r} holds the unique lock that {task_id!r} would get"
        )
    if code == -6:
        return TaskIdConflict(task_id, target)
    return WrongState(task_id, queue, f"cannot {verb} it: {_PROBLEMS[verb].get(code, f'code {code}')}")
