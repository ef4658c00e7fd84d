"""Two versions measured in turns: what is compared, and which way is better."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import turns
from benchmarks.turns import compared, source_of

ROW = ("drain", "one process", "/s")


@pytest.mark.parametrize(
    ("before", "after", "unit", "ratio"),
    [
        ([100.0, 1.0, 110.0], [50.0, 55.0, 1000.0], "/s", 0.55),
        ([10.0, 12.0, 11.0], [22.0, 20.0, 99.0], "us", 0.5),
        ([2.0], [1.0], "ms", 2.0),
        ([0.0], [0.0], "%", 1.0),
    ],
)
def test_the_medians_are_compared_and_below_one_is_worse(
    before: list[float], after: list[float], unit: str, ratio: float
) -> None:
    assert compared(before, after, unit) == pytest.approx(ratio)


def test_the_source_comes_from_the_history(tmp_path: Path) -> None:
    assert (source_of("HEAD", tmp_path) / "veredus" / "__init__.py").is_file()


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no commit 'nonsense'"):
        source_of("nonsense", tmp_path)


def test_a_part_that_does_not_exist_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "drain,nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no part is called nonsense; there are enqueue, latency" in done.stderr


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which version was measured, in order. The one from the history does half of the tasks per second."""
    sides: list[str] = []

    def source_of(commit: str, folder: Path) -> Path:
        assert commit == "HEAD~1"
        return folder

    def measure(source: Path, benchmarks: Path, options: list[str]) -> dict[turns.Row, float]:
        assert benchmarks == turns.ROOT
        assert options == ["--quick", "--only", "drain"]
        side = "after" if source == turns.ROOT / "src" else "before"
        sides.append(side)
        return {ROW: (200.0 if side == "after" else 100.0) + len(sides)}

    monkeypatch.setattr(turns, "source_of", source_of)
    monkeypatch.setattr(turns, "measure", measure)
    return sides


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["turns", "HEAD~1", "--only", "drain", *arguments])
    turns.main()


def test_every_second_turn_has_the_other_order(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--turns", "3")
    assert measured == ["before", "after", "after", "before", "before", "after"]
    table = capsys.readouterr().out
    assert "3 turns, medians" in table
    assert "1.95" in table, "203 / 104, the medians of both"


def test_the_figures_of_every_turn_as_json(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--turns", "2", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "group": "drain", "name": "one process", "unit": "/s", "before": [101.0, 104.0], "after": [202.0, 203.0]
    }  # fmt: skip
