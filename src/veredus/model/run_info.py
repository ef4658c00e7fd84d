"""What a durable task has done so far and what it waits for, for people and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veredus.errors import DamagedRun
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
    natural,
    read_failure,
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
    return Wait(parts[0], natural(parts[1]), parts[3]) if len(parts) == 4 and parts[1].isdigit() else None


def waiting_since(text: str) -> int:
    """When the wait in this field began, in Unix ms; 0 if it is damaged."""
    parts = text.split(" ", 3)
    return natural(parts[2]) if len(parts) == 4 else 0


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
        if kind not in _KINDS:
            continue
        span, links = _span(fields.get(BEGAN + field, b"")), children.get(field[2:], ())
        try:
            steps.append(_step(field, value) if kind == STEP else _wait(field, value, span, ended, links))
        except DamagedRun as exc:
            steps.append((span[0] * 1000, StepInfo(_KINDS[kind], shown_name(field), "damaged", str(exc), span[0])))
    wait = read_waiting(waiting)
    if wait is not None:  # a sleep is over as soon as its task no longer waits for it
        steps = [
            (at, _waits(one) if (one.kind, one.name) == (wait.kind, shown_name(wait.field)) else one)
            for at, one in steps
        ]
    counted = None
    if wait is not None and wait.kind == "children":
        sizes = [one.size for _, one in steps if one.kind == "children" and one.name == shown_name(wait.field)]
        counted = (ended.get(wait.field[2:], 0), sizes[0]) if any(sizes) else None
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
        kind, error = read_failure(outcome[1:])
    except DamagedRun:  # only the beginning of a long error
        return ChildLink(queue, task_id, "failed", _excerpt(outcome[1:]))
    return ChildLink(queue, task_id, kind, error)


def _step(field: str, value: bytes) -> tuple[int, StepInfo]:
    """With the microsecond at which it began."""
    record = StepRecord.unpack(value)
    outcome = "failed" if record.is_failure else "done"
    detail = ": ".join(part for part in record.failure if part) if record.is_failure else _excerpt(record.data[1:])
    seconds = record.took_us / 1e6
    began_ms = record.began_us // 1000
    return record.began_us, StepInfo("step", shown_name(field), outcome, detail, began_ms, seconds, record.attempt)


def _wait(
    field: str, value: bytes, span: tuple[int, int], ended: Mapping[str, int], links: tuple[ChildLink, ...]
) -> tuple[int, StepInfo]:
    """A wait or a fan-out. Only its millisecond is known: steps of that one came before it."""
    kind, (began, came) = field[:2], span
    outcome, detail = _outcome(kind, value, ended.get(field[2:], 0))
    if kind == SLEEP:
        came = natural(value)
    size = FanOutRecord.unpack(value).size if kind == GATHER else 0
    seconds = max(0, came - began) / 1000 if began and came and outcome != "waiting" else None
    info = StepInfo(_KINDS[kind], shown_name(field), outcome, detail, began, seconds, 0, size, links)
    return began * 1000 + 999, info


def _waits(one: StepInfo) -> StepInfo:
    if one.kind != "sleep":
        return one
    return StepInfo(one.kind, one.name, "waiting", one.detail, one.began_ms)


def _span(value: bytes) -> tuple[int, int]:
    """When a wait began and when its outcome came; 0 if unknown."""
    parts = [*value.split(b" "), b"", b""]
    began, came = map(natural, parts[:2])
    return began, came


def _outcome(kind: str, value: bytes, ended: int) -> tuple[str, str]:
    if kind == GATHER:
        size = FanOutRecord.unpack(value).size
        return ("done" if ended >= size else "waiting"), ended_text((ended, size))[2:]
    if kind == SLEEP:
        return "done", f"ends {instant_text(natural(value) * 1_000_000)}"
    if not is_outcome(value):
        ends = instant_text(natural(value) * 1_000_000)
        return "waiting", f"until {ends}" if ends else ""
    return ("timed out", "") if value[:1] == FAILED else ("done", _excerpt(value[1:]))


def _excerpt(data: bytes) -> str:
    text = data[: 4 * EXCERPT].decode("utf-8", "replace")
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}... ({len(data):,} bytes)"
