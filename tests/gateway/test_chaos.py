"""Every client's journal is contiguous, every response comes once, nothing promised is lost, whatever is killed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.chaos import Plan, check, storm
from tests.support.servers import RealServer
from tests.support.sizes import FULL

SMALL = Plan(
    clients=8,
    producers=4,
    pushes=3000,
    requests=120,
    gateway_kill=1.5,
    worker_kill=2.5,
    cut=0.2,
    deaf=1.0,
    pause=1.0,
    patience=70,
)
LARGE = Plan(
    clients=50,
    producers=4,
    pushes=100_000,
    requests=5000,
    gateway_kill=3.0,
    worker_kill=5.0,
    cut=0.3,
    deaf=2.0,
    pause=0.4,
    patience=1200,
)


@pytest.mark.timeout(1500 if FULL else 110)
async def test_the_storm(new_server: Callable[..., RealServer], tmp_path: Path) -> None:
    plan = LARGE if FULL else SMALL
    seed = int(os.environ.get("VEREDUS_TEST_SEED") or random.randrange(2**32))
    print(f"seed {seed} (again: VEREDUS_TEST_SEED={seed})", flush=True)
    journals, figures = await storm(plan, new_server(), tmp_path, random.Random(seed))
    print(figures, flush=True)
    for journal in journals:
        check(journal, plan.requests // plan.clients)
    pushes = sum(len(journal.promised) for journal in journals)
    print(f"{pushes} pushes promised and delivered, {sum(len(one.items) for one in journals)} messages in all")
    assert pushes >= plan.pushes
    assert figures.killed_gateways
    assert figures.killed_workers
    assert figures.cuts
