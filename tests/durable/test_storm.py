"""Workers are killed while they run durable tasks: each ends once, with the right result; no kept step runs again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.durable import storm_tasks
from tests.support.processes import end
from tests.support.servers import VALKEY_ONLY
from tests.support.sizes import FULL
from veredus import App

pytestmark = [VALKEY_ONLY, pytest.mark.timeout(900)]
RUNS, WORKERS, BETWEEN = (2000, 4, 2.0) if FULL else (60, 2, 1.0)
STEPS, CHILDREN = 5, 10


class Fleet:
    def __init__(self, url: str, effects: Path) -> None:
        self._environment = {**os.environ, "STORM_URL": url, "STORM_EFFECTS": str(effects)}
        self._workers = [self._start() for _ in range(WORKERS)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.durable.storm_tasks"]
        return subprocess.Popen(command, env=self._environment, start_new_session=True)

    def kill_one(self) -> None:
        victim = self._workers.pop(0)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.kills += 1
        self._workers.append(self._start())

    def close(self) -> None:
        for worker in self._workers:
            end(worker)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def fleet(url: str, effects: Path) -> Iterator[Fleet]:
    fleet = Fleet(url, effects)
    yield fleet
    fleet.close()


async def test_killed_workers_lose_and_repeat_nothing(app: App, url: str, fleet: Fleet, effects: Path) -> None:
    calls = [
        app.call(storm_tasks.storm.name, {"run": run, "steps": STEPS, "children": CHILDREN}, **_options())
        for run in range(RUNS)
    ]
    handles = await app.enqueue_many(calls)
    results = asyncio.gather(*[handle.result() for handle in handles])
    for run in range(RUNS):
        await app.emit(f"storm:{run}", run)
    while not results.done():
        await asyncio.wait([results], timeout=BETWEEN)
        if not results.done() and (FULL or fleet.kills < 3):
            fleet.kill_one()
    assert await results == [[sum(range(STEPS)), sum(range(CHILDREN)), run] for run in range(RUNS)]
    _check(effects.read_text().splitlines(), fleet.kills)
    async with app.inspector() as inspector:
        assert await inspector.doctor.diagnose(server=False) == []


def _options() -> dict[str, Any]:
    return {"max_retry": 100, "retention": 3600}


def _check(lines: list[str], kills: int) -> None:
    """A step that was running on a killed worker ran once more for each kill, and always with the same key."""
    steps = Counter(line.rpartition(" ")[0] for line in lines if line.startswith("step "))
    assert len(steps) == RUNS * STEPS
    assert len({line for line in lines if line.startswith("step ")}) == RUNS * STEPS
    repeated = sum(count - 1 for count in steps.values())
    assert repeated <= kills * 50, f"{repeated} steps were repeated after {kills} kills"
    children = Counter(line.rpartition(" ")[0] for line in lines if line.startswith("child "))
    assert len(children) == RUNS * CHILDREN
    assert len({line for line in lines if line.startswith("child ")}) == RUNS * CHILDREN
