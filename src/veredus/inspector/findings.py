"""The kinds of damage that the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK, WARN, BAD = "ok", "warn", "bad"

# kind -> level, problem, what a repair does. {task}, {key} and {detail} come from the finding.
KINDS: dict[str, tuple[str, str, str]] = {
    "wrong_type": (
        BAD,
        "the key {key} has a wrong type ({detail})",
        "rename it to ...:damaged:..., so that the queue works",
    ),
    "unregistered": (BAD, "the queue is used but not listed in asynq:queues", "list it"),
    "unlisted_group": (
        BAD,
        "{key} has tasks but is not listed as a group or a set",
        "move its tasks to their groups",
    ),
    "stale_set": (WARN, "the aggregation set {key} was abandoned", "return its tasks to their groups"),
    "empty_group": (WARN, "the group {detail} is listed but has no tasks", "remove it from the list"),
    "half_moved": (
        BAD,
        "task {task} is a copy from queue {detail}: a move was interrupted",
        "finish the move if the original is gone, else delete the copy",
    ),
    "stale_lock": (WARN, "the unique lock {key} belongs to a task that no longer exists", "delete the lock"),
    "unlisted_order_key": (
        BAD,
        "the order key {detail} has tasks but is not listed, so no worker looks after it",
        "list it",
    ),
    "empty_order_key": (WARN, "the order key {detail} is listed but has no tasks", "remove it from the list"),
    "undecodable": (BAD, "the message of task {task} cannot be read: {detail}", "archive it with its bytes as payload"),
    "no_message": (BAD, "task {task} has no message; in {detail}", "remove the rest of it"),
    "dangling": (BAD, "{detail} has the id {task}, but there is no such task", "remove the id"),
    "two_places": (BAD, "task {task} is in {detail}", "keep only the place that matches its state"),
    "wrong_state": (BAD, "the state of task {task} is {detail}", "set its state to match its place"),
    "orphan": (
        BAD,
        "task {task} with the state {detail} is in no list",
        "put it into the list of its state, or into pending",
    ),
    "no_lease": (
        BAD,
        "task {task} is active but has no lease",
        "add an expired lease, so that a worker recovers it",
    ),
    "lease_only": (WARN, "task {task} has a lease but is not active", "remove the lease"),
    "stale_due": (WARN, "the index of due times has a stale entry for {task}", "remove the entry"),
    "order_stray": (
        BAD,
        "order key {detail} lists task {task}, which has ended or moved",
        "remove the entry",
    ),
    "order_stopped": (
        BAD,
        "it is the turn of task {task} with order key {detail}, but it still waits",
        "make it pending",
    ),
    "waiting_nowhere": (
        BAD,
        "task {task} waits, but no order key and no limit holds it ({detail})",
        "put it behind the other tasks with its order key, or make it pending",
    ),
    "stale_slot": (WARN, "task {task} does not run but uses a slot of limit {detail}", "free the slot"),
    "fraction": (
        BAD,
        "a score of task {task} is not a whole number ({detail}), which breaks Go's tools",
        "round it up",
    ),
}
ORDER = list(KINDS)
"""The order of repairs: damage that hides other damage comes first."""
ORDER_KINDS = frozenset({"order_stray", "order_stopped", "waiting_nowhere"})
TASK_KINDS = frozenset(ORDER[ORDER.index("no_message") :]) - ORDER_KINDS - {"stale_slot"} | {"wrong_type"}
"""Kinds that `Checkups.repair` finds and repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of the doctor: fine, doubtful or broken."""

    kind: str
    level: str
    """ok, warn or bad."""
    text: str
    advice: str = ""
    queue: str = ""
    task_id: str = ""
    key: str = ""
    group: str = ""
    detail: str = ""

    @property
    def repairable(self) -> bool:
        return self.kind in KINDS

    def as_dict(self) -> dict[str, Any]:
        names = "kind level text advice queue task_id key detail repairable"
        return {name: getattr(self, name) for name in names.split()}


def damage(kind: str, queue: str, *, task_id: str = "", key: str = "", group: str = "", detail: str = "") -> Finding:
    level, text, advice = KINDS[kind]
    shown = text.format(task=repr(task_id), key=key, detail=detail or "nothing")
    return Finding(
        kind=kind,
        level=level,
        text=f"queue {queue!r}: {shown}",
        advice=advice,
        queue=queue,
        task_id=task_id,
        key=key,
        group=group,
        detail=detail,
    )
