"""A reject means that nothing happened and nothing will, whatever stands still, vanishes or dies."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.outages import Plan, check, read_runs, storm, summary
from tests.support.servers import RealServer
from tests.support.sizes import FULL

SMALL = Plan(
    clients=6,
    lasts=6.0,
    pause=1.0,
    pause_every=2.5,
    hole=2.0,
    hole_every=0.8,
    server_hole_every=3.0,
    deadline=8.0,
    kill_every=2.0,
    closed=0.5,
    closed_every=1.5,
    patience=110,
)
LARGE = Plan(
    clients=16,
    lasts=float(os.environ.get("VEREDUS_TEST_STORM") or 300),
    pause=9.0,
    pause_every=25.0,
    hole=40.0,
    hole_every=4.0,
    server_hole_every=30.0,
    deadline=100.0,
    kill_every=9.0,
    closed=0.5,
    closed_every=7.0,
    patience=240,
)


@pytest.mark.timeout(700 if FULL else 150)
async def test_what_clients_were_told_in_a_storm_of_outages_holds(
    new_server: Callable[..., RealServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("VEREDUS_TEST_SEED") or random.randrange(2**32))
    print(f"seed {seed} (again: VEREDUS_TEST_SEED={seed})", flush=True)
    runs = tmp_path / "runs"
    runs.touch()
    monkeypatch.setenv("VEREDUS_TEST_RUNS", str(runs))
    found = await storm(LARGE if FULL else SMALL, new_server(), tmp_path, random.Random(seed))
    read_runs(found, runs)
    print(summary(found), flush=True)
    wrong = check(found)
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
    assert any(asked.rejects for asker in found.askers for asked in asker.asked.values())
