"""What a durable task has done so far and what it waits for, for people and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veredus.model.durable import (
    BEGAN,
    EVENT,
    FAILED,
    GATHER,
    KEPT,
    SLEEP,
    STEP,
    FanOutRecord,
    StepRecord,
    Wait,
    is_outcome,
    shown_name,
)
from veredus.model.info import instant_text

EXCERPT = 200
"""Characters of a result that are shown."""
_KINDS = {STEP: "step", SLEEP: "sleep", EVENT: "event", GATHER: "children"}


@dataclass(frozen=True, slots=True)
class ChildLink:
    """One child of a fan-out."""

    queue: str
    id: str
    outcome: str
    """done, failed, cancelled, refused, unknown, or waiting while it has none."""
    detail: str = ""
    """An excerpt of its result, or its error."""

    def as_dict(self) -> dict[str, Any]:
        return {"queue": self.queue, "id": self.id, "outcome": self.outcome, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step, wait or fan-out."""

    kind: str
    """step, sleep, event or children."""
    name: str
    outcome: str
    """done, failed, timed out, or waiting."""
    detail: str = ""
    """An excerpt of the result, the error, when a sleep ends, or how many children have ended."""
    began_ms: int = 0
    """When it began, in Unix ms; 0 if unknown."""
    seconds: float | None = None
    """How long a step ran or a wait lasted; None while it waits."""
    attempt: int = 0
    """The attempt in which a step ran; 0 for waits."""
    size: int = 0
    """How many children it has."""
    children: tuple[ChildLink, ...] = ()
    """The first of them."""

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"kind": self.kind, "name": self.name, "outcome": self.outcome, "detail": self.detail}
        shown |= {"began": instant_text(self.began_ms * 1_000_000), "seconds": self.seconds, "attempt": self.attempt}
        return shown | {"size": self.size, "children": [child.as_dict() for child in self.children]}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run of a durable task."""

    mark: str
    steps: tuple[StepInfo, ...]
    """In the order in which they began."""
    waiting: str = ""
    """What it waits for; empty while it does not wait."""
    began_ms: int = 0
    """When it began, in Unix ms."""

    def as_dict(self) -> dict[str, Any]:
        began = instant_text(self.began_ms * 1_000_000)
        return {
            "mark": self.mark,
            "began": began,
            "waiting": self.waiting,
            "steps": [one.as_dict() for one in self.steps],
        }


def read_waiting(text: str) -> Wait | None:
    """The field `waiting` of a task, as `lua/include/waits.lua` writes it."""
    parts = text.split(" ", 3)
    return Wait(parts[0], int(parts[1]), parts[3]) if len(parts) == 4 and parts[1].isdigit() else None


def waiting_since(text: str) -> int:
    """When the wait in this field began, in Unix ms; 0 if it is damaged."""
    parts = text.split(" ", 3)
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else 0


def waiting_text(wait: Wait, counted: tuple[int, int] | None = None) -> str:
    """`event approved:7 until 2030-01-01T00:00:00Z`, `children pages, 12 of 100 have ended`."""
    ends = f" until {instant_text(wait.ends * 1_000_000)}" if wait.ends else ""
    return f"{wait.kind} {shown_name(wait.field)}{ended_text(counted)}{ends}"


def ended_text(counted: tuple[int, int] | None) -> str:
    """How many children a fan-out has, and how many of them have ended."""
    return "" if counted is None else f", {min(counted):,} of {counted[1]:,} have ended"


def run_info(
    mark: str,
    fields: Mapping[str, bytes],
    waiting: str,
    ended: Mapping[str, int],
    children: Mapping[str, tuple[ChildLink, ...]],
) -> RunInfo:
    """`ended` and `children`: of each fan-out, how many children have an outcome, and the first of them."""
    steps: list[tuple[int, StepInfo]] = []
    for field, value in fields.items():
        kind = field[:2]
        if kind == STEP:
            kept = StepRecord.unpack(value)
            steps.append((kept.began_us, _step(field, kept)))
        elif kind in _KINDS:
            began, came = _span(fields.get(BEGAN + field, b""))
            outcome, detail = _outcome(kind, value, ended.get(field[2:], 0))
            if kind == SLEEP:
                came = int(value)
            size = FanOutRecord.unpack(value).size if kind == GATHER else 0
            seconds = (came - began) / 1000 if began and came and outcome != "waiting" else None
            name, links = shown_name(field), children.get(field[2:], ())
            info = StepInfo(_KINDS[kind], name, outcome, detail, began, seconds, 0, size, links)
            steps.append((began * 1000 + 999, info))  # only its millisecond is known: steps of that one came before it
    wait = read_waiting(waiting)
    if wait is not None:  # a sleep is over as soon as its task no longer waits for it
        steps = [(at, one if one.name != shown_name(wait.field) else _waits(one)) for at, one in steps]
    counted = None
    if wait is not None and wait.kind == "children" and (record := fields.get(GATHER + wait.field[2:])):
        counted = ended.get(wait.field[2:], 0), FanOutRecord.unpack(record).size
    steps.sort(key=lambda one: one[0])
    began_ms = _span(fields.get(BEGAN, b""))[0]
    ordered = tuple(one for _, one in steps)
    return RunInfo(mark, ordered, waiting_text(wait, counted) if wait is not None else "", began_ms)


def child_link(queue: str, task_id: str, outcome: bytes) -> ChildLink:
    """A child, from the beginning of its outcome."""
    if not is_outcome(outcome):
        return ChildLink(queue, task_id, "waiting")
    if outcome[:1] == KEPT:
        return ChildLink(queue, task_id, "done", _excerpt(outcome[2:]))
    try:
        kind, error = json.loads(outcome[1:])
    except ValueError:  # only the beginning of a long error
        return ChildLink(queue, task_id, "failed", _excerpt(outcome[1:]))
    return ChildLink(queue, task_id, kind, error)


def _step(field: str, record: StepRecord) -> StepInfo:
    outcome = "failed" if record.is_failure else "done"
    detail = ": ".join(part for part in record.failure if part) if record.is_failure else _excerpt(record.data[1:])
    seconds = record.took_us / 1e6
    return StepInfo("step", shown_name(field), outcome, detail, record.began_us // 1000, seconds, record.attempt)


def _waits(one: StepInfo) -> StepInfo:
    if one.kind != "sleep":
        return one
    return StepInfo(one.kind, one.name, "waiting", one.detail, one.began_ms)


def _span(value: bytes) -> tuple[int, int]:
    """When a wait began and when its outcome came; 0 if unknown."""
    parts = [*value.split(b" "), b"", b""]
    began, came = [int(part) if part.isdigit() else 0 for part in parts[:2]]
    return began, came


def _outcome(kind: str, value: bytes, ended: int) -> tuple[str, str]:
    if kind == GATHER:
        size = FanOutRecord.unpack(value).size
        return ("done" if ended >= size else "waiting"), ended_text((ended, size))[2:]
    if kind == SLEEP:
        return "done", f"ends {instant_text(int(value) * 1_000_000)}"
    if not is_outcome(value):
        return "waiting", f"until {instant_text(int(value) * 1_000_000)}" if int(value) else ""
    return ("timed out", "") if value[:1] == FAILED else ("done", _excerpt(value[1:]))


def _excerpt(data: bytes) -> str:
    text = data[: 4 * EXCERPT].decode("utf-8", "replace")
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}... ({len(data):,} bytes)"
