"""Bursts of plain def handlers and CPU handlers in one queue, with default slots: none times out, no process idles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.burst_tasks import cpu, plain
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.sizes import size
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys

pytestmark = VALKEY_ONLY

CPU_TASKS, CPU_SECONDS = size(24, 300), size(0.3, 1.0)
PLAIN_TASKS, PLAIN_SECONDS = size(70, 200), size(0.5, 4.0)
TIMEOUT = size(3, 10)
PATIENCE = size(60, 900)


@contextmanager
def _worker(url: str, file: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "veredus", "worker", "tests.handlers.burst_tasks:app", "--redis", url, *options]
    process = subprocess.Popen(command, env={**os.environ, "BURST_FILE": str(file)})
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _runs(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_burst_finishes_and_none_of_it_times_out(
    url: str, redis_client: Any, tmp_path: Path, processes: int
) -> None:
    look, file = Look(redis_client, "mixed"), tmp_path / "runs"
    total = CPU_TASKS + PLAIN_TASKS

    async def started() -> bool:
        return len(await app.inspector().servers()) == processes

    async def done() -> bool:
        return int(await redis_client.get(keys.processed("mixed")) or 0) >= total

    with _worker(url, file, "--processes", str(processes)):
        async with App(url) as app:
            await until(started, seconds=PATIENCE)
            await app.enqueue_many(
                [cpu.using(timeout=TIMEOUT).call(CPU_SECONDS) for _ in range(CPU_TASKS)]
                + [plain.using(timeout=TIMEOUT).call(PLAIN_SECONDS) for _ in range(PLAIN_TASKS)]
            )
            await until(done, seconds=PATIENCE)
    assert await look.counters() == (total, 0)
    runs = _runs(file)
    seconds = max(run["at"] for run in runs) - min(run["at"] for run in runs)
    print(f"\n{total} tasks, {processes} worker processes: the last began {seconds:.1f} s after the first")
    assert len(runs) == total == len({run["id"] for run in runs})
    assert len({run["pid"] for run in runs if run["kind"] == "plain"}) == processes
    if processes == 2:
        by_child: dict[int, float] = {}
        for run in reversed(runs):
            if run["kind"] == "cpu":
                by_child[run["pid"]] = run["at"]
        first, second = sorted(by_child.values())
        print(f"the second CPU process began {second - first:.2f} s after the first")
        assert second - first < CPU_TASKS * CPU_SECONDS, "one process did all the work"
