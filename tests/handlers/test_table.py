"""Every row of the table in every executor, with one process and under the supervisor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.handlers import work
from tests.handlers.conftest import Evidences
from tests.handlers.table import EXECUTORS, MODES, ROWS, Cell, Expected, Row, Text

PLACE = str(Path(work.__file__))
"""The file of whatever the handlers do."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row, executor: str, mode: str, evidences: Evidences) -> None:
    cell = Cell(row, executor)
    found = evidences("alone" if executor in row.alone else "together", mode)[cell.task_id]
    wrong = differences(cell, row.expects(executor, mode), found)
    assert not wrong, f"(expected, found): {wrong}\n{found['notes']}\n{found['ended']}\n{found['log']}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", ["together", "alone"])
def test_a_worker_that_had_all_of_this_ends_with_0(rows: str, mode: str, evidences: Evidences) -> None:
    for task_id, found in evidences(rows, mode).items():
        assert found["ended"] == "the worker ended with 0", (task_id, found["log"])


@pytest.mark.parametrize("mode", MODES)
def test_nothing_that_a_handler_does_is_an_error_of_the_worker(mode: str, evidences: Evidences) -> None:
    for found in evidences("together", mode).values():
        assert found["complaints"] == []


def differences(cell: Cell, expected: Expected, found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By name: what was expected, and what was found instead."""
    notes = [note["what"] for note in found["notes"]]
    wanted: dict[str, tuple[Any, Any]] = {
        "state": (expected.state, found["state"]),
        "runs": (expected.runs, notes.count("begun")),
        "processed": (expected.processed, found["processed"]),
        "failed": (expected.failed, found["failed"]),
        "error": (expected.error, found["error"]),
        "result": (expected.result, found["result"]),
        "follow-ups": (expected.follow_ups, found["follow_ups"]),
        "progress": (expected.progress, found["progress"] and tuple(found["progress"])),
    }
    wanted["attempts at the same time"] = ([], _overlaps(found["notes"]))
    if expected.raised:
        logged = [one["message"] + one.get("exception", "") for one in found["logs"] if "archived" in one["message"]]
        wanted["in the traceback"] = (True, PLACE in found["traceback"] or found["traceback"])
        wanted["in the log"] = (True, any(PLACE in text for text in logged) or logged)
    if expected.seen:
        own = {"id": cell.task_id, "queue": cell.queue, "type": cell.type}
        wanted["seen"] = (
            [{**own, **expected.seen}],
            [note["seen"] for note in found["notes"] if note["what"] == "seen"],
        )
    if expected.finished is not None:
        wanted["finished"] = (expected.finished, notes.count("finished"))
    if expected.state != "gone":
        wanted["retried"] = (expected.retried, found["retried"])
    said = [(one["level"], one["logger"], one["message"]) for one in found["logs"]]
    for level, logger, message in expected.logs:
        times = sum((level, logger) == one[:2] and _fits(message, one[2]) for one in said)
        if times != 1:
            wanted[f"{level} of {logger}, once"] = (message, said)
    return {name: pair for name, pair in wanted.items() if not _fits(*pair)}


def _overlaps(notes: list[dict[str, Any]]) -> list[int]:
    """Attempts that began before the one before had ended."""
    begun = {note["attempt"]: note["at"] for note in notes if note["what"] == "begun"}
    finished = {note["attempt"]: note["at"] for note in notes if note["what"] == "finished"}
    return [number + 1 for number, at in finished.items() if begun.get(number + 1, at) < at]


def _fits(expected: Text | Any, found: Any) -> bool:
    if isinstance(expected, re.Pattern):
        return isinstance(found, str) and expected.fullmatch(found) is not None
    return bool(expected == found)
