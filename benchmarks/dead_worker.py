"""How soon the task of a worker that is killed with -9 starts elsewhere, with default settings and no supervisor."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.latency import wait_for_lines
from benchmarks.server import BenchServer
from benchmarks.tasks import hang

WORKERS = 3
SETTLE = 15.0
"""Seconds for which the first workers run before the first kill."""


async def kills(server: BenchServer, count: int = 20) -> list[float]:
    """Seconds from the kill to the start elsewhere, sorted."""
    server.flush()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        path = Path(folder) / "stamps"
        path.touch()
        workers = [_worker(server, path) for _ in range(WORKERS)]
        try:
            await asyncio.sleep(SETTLE)
            for number in range(count):
                await hang.enqueue(time.time())
                await wait_for_lines(path, 2 * number + 1)
                # Whenever between two heartbeats, and once the newest worker has been seen.
                await asyncio.sleep(3.0 + number % 5)
                victim = next(one for one in workers if one.pid == _holder(server))
                killed_at = time.time()
                victim.kill()
                victim.wait()
                workers.remove(victim)
                await wait_for_lines(path, 2 * number + 2)
                seconds.append(float(path.read_text().split()[-1]) - killed_at)
                workers.append(_worker(server, path))
        finally:
            for one in workers:
                one.terminate()
            for one in workers:
                one.wait(30)
    return sorted(seconds)


def _worker(server: BenchServer, stamps: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "veredus", "worker", "benchmarks.tasks:app", "--redis", server.url]
    return subprocess.Popen(
        [*command, "--log-level", "error"],
        env={**os.environ, "BENCH_STAMPS": str(stamps)},
        stdout=subprocess.DEVNULL,
    )


def _holder(server: BenchServer) -> int:
    """The process that runs a task, from the workers' records."""
    ((task_id, _),) = server.client.zrange("asynq:{bench}:lease", 0, -1, withscores=True)
    held = server.client.hget(f"asynq:{{bench}}:t:{task_id.decode()}", "held")
    owner = held.decode().partition(":")[0]
    for name in server.client.zrange("asynq:servers", 0, -1):
        _, pid, worker_id = name.decode().removeprefix("asynq:servers:{").removesuffix("}").rsplit(":", 2)
        if worker_id.startswith(owner):
            return int(pid)
    raise AssertionError(f"no worker is {owner}")
