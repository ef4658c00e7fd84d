"""The Go side of `make bench-peers` does what its Python twin does, so that the two can be compared."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("go")


async def test_both_sides_are_measured_in_every_row(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "benchmarks.peers", "--only", "go", "--rounds", "1", "--count", "2000", "--json"]
    command += ["--measure", "enqueue,pick-up", "--transport", "unix"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["asynq"] == "0.26.0"
    assert set(figures["drain"]) == {"Veredus", "Go Asynq 0.26.0"}
    missing = {row["name"] for row in figures["rows"] if row["go"] is None or row["veredus"] is None}
    assert missing == {"in one call", "in one call: client CPU per task"}, "the release has no batches"
    groups = {row["group"] for row in figures["rows"]}
    assert groups == {"drain", "enqueue", "latency"}
