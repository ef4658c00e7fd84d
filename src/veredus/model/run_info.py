"""What a durable task has done so far and what it waits for, for people and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veredus.model.durable import EVENT, FAILED, GATHER, SLEEP, STEP, FanOutRecord, Wait, is_outcome, shown_name
from veredus.model.info import instant_text

EXCERPT = 200
"""Characters of a result that are shown."""
_KINDS = {STEP: "step", SLEEP: "sleep", EVENT: "event", GATHER: "children"}


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


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run of a durable task."""

    mark: str
    steps: tuple[StepInfo, ...]
    waiting: str = ""
    """What it waits for; empty while it does not wait."""

    def as_dict(self) -> dict[str, Any]:
        steps = [
            {"kind": one.kind, "name": one.name, "outcome": one.outcome, "detail": one.detail} for one in self.steps
        ]
        return {"mark": self.mark, "waiting": self.waiting, "steps": steps}


def read_waiting(text: str) -> Wait | None:
    """The field `waiting` of a task, as `lua/include/waits.lua` writes it."""
    parts = text.split(" ", 3)
    return Wait(parts[0], int(parts[1]), parts[3]) if len(parts) == 4 and parts[1].isdigit() else None


def waiting_text(wait: Wait) -> str:
    """`event approved:7 until 2030-01-01T00:00:00Z`."""
    ends = f" until {instant_text(wait.ends * 1_000_000)}" if wait.ends else ""
    return f"{wait.kind} {shown_name(wait.field)}{ends}"


def run_info(mark: str, fields: Mapping[str, bytes], waiting: str, ended: Mapping[str, int]) -> RunInfo:
    """`ended`: of each fan-out, how many children have an outcome."""
    steps = []
    for field, value in fields.items():
        kind = _KINDS.get(field[:2])
        if kind is not None:
            steps.append(StepInfo(kind, shown_name(field), *_outcome(field, value, ended.get(field[2:], 0))))
    wait = read_waiting(waiting)
    return RunInfo(mark, tuple(steps), waiting_text(wait) if wait is not None else "")


def _outcome(field: str, value: bytes, ended: int) -> tuple[str, str]:
    kind = field[:2]
    if kind == GATHER:
        record = FanOutRecord.unpack(value)
        ended = ended if ended < record.size else record.size
        return ("done" if ended == record.size else "waiting"), f"{ended:,} of {record.size:,} have ended"
    if kind == SLEEP:
        return "waiting", f"ends {instant_text(int(value) * 1_000_000)}"
    if kind == EVENT:
        if not is_outcome(value):
            return "waiting", f"until {instant_text(int(value) * 1_000_000)}" if int(value) else ""
        return ("timed out", "") if value[:1] == FAILED else ("done", _excerpt(value[1:]))
    if value[:1] == FAILED:
        return "failed", ": ".join(part for part in json.loads(value[1:]) if part)
    return "done", _excerpt(value[2:])


def _excerpt(data: bytes) -> str:
    text = data[: 4 * EXCERPT].decode("utf-8", "replace")
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}... ({len(data):,} bytes)"
