"""What the doctor can find, and what each finding means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK, WARN, BAD = "ok", "warn", "bad"

# kind -> level, what is wrong, what a repair does. {task}, {key}, {detail}: of the finding.
KINDS: dict[str, tuple[str, str, str]] = {
    "wrong_type": (
        BAD,
        "the key {key} has a wrong type ({detail})",
        "rename it to ...:damaged:..., so that the queue works",
    ),
    "unregistered": (BAD, "the queue is used but not listed in asynq:queues", "list it"),
    "unlisted_group": (
        BAD,
        "{key} has tasks, but no list of groups or sets names it",
        "give its tasks to their groups",
    ),
    "stale_set": (WARN, "the aggregation set {key} was left behind", "give its tasks back to their groups"),
    "empty_group": (WARN, "the group {detail} is listed but has no tasks", "take it off the list"),
    "half_moved": (
        BAD,
        "task {task} is a copy from queue {detail}: somebody moved it and got no further",
        "let it out if the original is gone, else delete the copy",
    ),
    "stale_lock": (WARN, "the unique lock {key} is held by a task that is gone", "delete the lock"),
    "unlisted_lane": (BAD, "the lane of order key {detail} is not listed, so nobody looks after it", "list it"),
    "empty_lane": (WARN, "the order key {detail} is listed but has no tasks", "take it off the list"),
    "undecodable": (BAD, "the message of task {task} cannot be read: {detail}", "archive it, its bytes as payload"),
    "no_message": (BAD, "task {task} has no message; in {detail}", "remove what is left of it"),
    "dangling": (BAD, "{detail} has the id {task}, but there is no such task", "remove the id"),
    "two_places": (BAD, "task {task} is in {detail}", "keep the place that its state says"),
    "wrong_state": (BAD, "the state of task {task} is {detail}", "make its state that of its place"),
    "orphan": (
        BAD,
        "task {task} with the state {detail} is in no list",
        "put it where its state says, else to pending",
    ),
    "no_lease": (
        BAD,
        "task {task} is active, but nobody has a lease on it",
        "give it one that is over: it will be recovered",
    ),
    "lease_only": (WARN, "there is a lease on task {task}, which is not active", "remove the lease"),
    "stale_due": (WARN, "the index of due times has a stale entry for {task}", "remove the entry"),
    "lane_stray": (
        BAD,
        "the lane {detail} has the id {task}, which has ended or is elsewhere",
        "take it out of the lane",
    ),
    "lane_stopped": (BAD, "it is the turn of task {task} in lane {detail}, but it stays parked", "make it pending"),
    "parked_nowhere": (
        BAD,
        "task {task} is parked, but stands in no lane and waits for no limit ({detail})",
        "put it at the end of its lane, or make it pending",
    ),
    "stale_slot": (WARN, "task {task} does not run, but takes up room of limit {detail}", "free it"),
    "fraction": (BAD, "a score of task {task} is no whole number ({detail}): Go's tools fail on it", "round it up"),
}
ORDER = list(KINDS)
"""In which order to mend: first what hides other damage."""
LANE_KINDS = frozenset({"lane_stray", "lane_stopped", "parked_nowhere"})
TASK_KINDS = frozenset(ORDER[ORDER.index("no_message") :]) - LANE_KINDS - {"stale_slot"} | {"wrong_type"}
"""Those that one look at all places of a task finds and mends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is well, doubtful or broken."""

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
