"""The demo: what its handlers wrote down is counted once, and it ends with 0 only if nothing was lost."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from veredus.demo import show
from veredus.demo.gateway import CLIENTS, LETTERS, Delivered
from veredus.demo.journal import VARIABLE, Journal, note
from veredus.demo.show import Show

WHOLE = Delivered(2 * CLIENTS * (LETTERS + 3), 0, 0, 2 * CLIENTS, 4, 1.0)


def test_the_journal_counts_a_number_once_and_waits_for_the_rest_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "journal"))
    journal = Journal(tmp_path / "journal")
    for number in (1, 2, 2):
        note("work", number=number)
    with (tmp_path / "journal").open("a") as file:
        file.write('{"kind": "work", ')
        file.flush()
        journal.read()
        assert (journal.count("work"), journal.count("flaky")) == (2, 0)
        file.write('"number": 3}\n')
    journal.read()
    assert journal.count("work") == 3


@pytest.mark.parametrize(
    ("missing", "delivered", "code"),
    [
        ("", WHOLE, 0),
        ("work", WHOLE, 1),
        ("on_time", WHOLE, 1),
        ("flaky", WHOLE, 1),
        ("", None, 1),
        ("", WHOLE._replace(missing=1), 1),
        ("", WHOLE._replace(disorder=1), 1),
        ("", WHOLE._replace(answers=WHOLE.answers - 1), 1),
        ("", WHOLE._replace(messages=WHOLE.messages + 1), 1),
    ],
)
def test_the_demo_ends_with_0_only_if_nothing_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, delivered: Delivered | None, code: int
) -> None:
    sizes = {"work": 30, "on_time": 20, "flaky": 10, "long_job": 1}
    monkeypatch.setattr(show, "TASKS", 30)
    monkeypatch.setattr(show, "DELAYED", 20)
    monkeypatch.setattr(show, "FLAKY", 10)
    rows = [
        {"kind": kind, "number": number, "late": 0.002}
        for kind, size in sizes.items()
        for number in range(size - (kind == missing))
    ]
    rows += [{"kind": "flaky_attempt", "number": number} for number in range(25)]
    rows += [{"kind": "long_job_started", "number": 0}] * 2
    (tmp_path / "journal").write_text("".join(json.dumps(row) + "\n" for row in rows))
    journal = Journal(tmp_path / "journal")
    journal.read()
    shown = StringIO()
    played = Show(Console(file=shown, width=100), journal, "a server")
    played._delivered = delivered
    assert played._table() == code
    table = dict(line.strip("│ ").split("│") for line in shown.getvalue().splitlines() if line.count("│") == 3)
    found = {name.strip(): value.strip() for name, value in table.items()}
    assert found["lost"] == ("1" if missing else "0")
    assert found["retried after a failure"] == "15"
