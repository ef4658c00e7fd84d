"""`make bench-peers`: it says so where there is no Go, compares what it measured, and draws its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import picture
from benchmarks.peers.__main__ import NO_GO
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.durable import ratio
from rich.console import Console

ROOT = Path(__file__).parents[2]


def test_without_go_it_says_so_and_measures_the_rest(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--only", "go", "--rounds", "1", "--count", "2000", "--json"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert NO_GO in " ".join(done.stderr.split())
    figures = json.loads(done.stdout)
    assert figures == json.loads((tmp_path / "artifacts/peers.json").read_text())
    assert figures["asynq"] is None
    assert list(figures["drain"]) == ["Veredus"]
    assert figures["drain"]["Veredus"] > 0


def test_a_peer_that_is_not_known_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--only", "go,sidekiq"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert "--only sidekiq: expected some of go, rq," in done.stderr


def test_ratios_say_by_how_much_veredus_is_better() -> None:
    comparison = Comparison()
    for ours, theirs in ((60.0, 10.0), (50.0, 10.0), (10.0, 10.0)):
        comparison.add("drain", "rate", "tasks/s", ours, ours=True, more=True)
        comparison.add("drain", "rate", "tasks/s", theirs, ours=False, more=True)
    comparison.add("latency", "pick-up", "ms", 2.0, ours=True)
    comparison.add("latency", "pick-up", "ms", 500.0, ours=False)
    comparison.add("latency", "lateness", "ms", 2.0, ours=True)
    comparison.add("latency", "lateness", "ms", -300.0, ours=False)
    comparison.add("enqueue", "in one call", "tasks/s", 100.0, ours=True, more=True)
    assert [row.ratio() for row in comparison.rows] == [5.0, 250.0, None, None]
    rows = {row["name"]: row for row in comparison.as_list()}
    assert (rows["rate"]["veredus"], rows["rate"]["go"]) == (50.0, 10.0)
    assert rows["in one call"]["go"] is None
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(comparison.table("title", "Go Asynq"))
    shown = console.export_text()
    assert "5.00 x" in shown
    assert "250.00 x" in shown
    assert "none" in shown


def test_durable_steps_are_compared_round_by_round() -> None:
    """The machine was busy in the last round, for both."""
    assert ratio([20_000.0, 18_000.0, 2_000.0], [100.0, 90.0, 20.0]) == 200.0


def test_the_picture_takes_over_the_figures_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"transport": "tcp", "cores": 2, "drain": {"rq": 226.4, "Veredus": 57_703.2, "Go Asynq 0.26.0": 9_000.6}}
    (tmp_path / "peers.json").write_text(json.dumps(run))
    picture.take(tmp_path / "peers.json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures["bars"].items()) == [("Veredus", 57_703), ("Go Asynq 0.26.0", 9_001), ("rq", 226)]
    assert "loopback TCP, 2 shared cores" in figures["title"]
    monkeypatch.setattr(picture, "FIGURES", tmp_path / "figures.json")
    picture.draw(tmp_path / "bench.svg")
    assert "9,001 /s" in (tmp_path / "bench.svg").read_text()
