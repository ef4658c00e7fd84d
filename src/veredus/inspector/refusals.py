"""The codes of the inspecting scripts, as errors that say what to do."""

from __future__ import annotations

from veredus.errors import DuplicateTask, TaskIdConflict, VeredusError, WrongState

RUNNING = "it is running; cancel it first"
MISPLACED = "it is not where its state says, or is just being aggregated; if that stays so, let the doctor mend it"
PARKED = "it waits for its turn, behind other tasks with its order key or for a limit"
CHANGED = "it was changed by somebody else meanwhile; try again"

_PROBLEMS: dict[str, dict[int, str]] = {
    "run": {-1: "it is already running", -2: "it is already pending", -3: MISPLACED, -7: PARKED},
    "archive": {-1: "it is already archived", -2: RUNNING, -3: MISPLACED},
    "delete": {-1: RUNNING, -3: MISPLACED},
    "reschedule": {-1: RUNNING, -3: MISPLACED},
    "edit": {-1: "only a pending, scheduled, retry or archived task can be edited", -5: CHANGED},
    "move": {-1: RUNNING, -3: MISPLACED, -5: CHANGED},
}


def refusal(verb: str, code: int, queue: str, task_id: str, target: str = "") -> VeredusError:
    """The error for a code below 1; 0 (no such task) is not for here."""
    if code == -2 and verb in ("edit", "move"):
        return DuplicateTask(
            f"another task of queue {target or queue!r} holds the unique lock that {task_id!r} would get"
        )
    if code == -6:
        return TaskIdConflict(task_id, target)
    return WrongState(task_id, queue, f"cannot {verb} it: {_PROBLEMS[verb].get(code, f'code {code}')}")
