"""What a fleet costs: many idle workers on one queue, and one worker on thousands of queues."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency import wait_for_lines
from benchmarks.server import BenchServer, process_cpu
from benchmarks.tasks import hold, stamp
from benchmarks.workers import worker


@dataclass(frozen=True)
class Singles:
    """Single tasks, each sent to workers that are all idle."""

    redis_us: float
    """Redis CPU per task."""
    scripts: float
    """Calls of scripts per task."""
    pick_up: list[float]
    """Milliseconds from enqueue to handler, sorted."""


@contextmanager
def idle_workers(number: int, queues: Sequence[str], stamps: Path, server: BenchServer) -> Iterator[int]:
    """So many workers in one process, each with connections of its own; yields the process id once all serve."""
    arguments = [sys.executable, "-m", "benchmarks.fleet", server.url, str(number), *queues]
    if len(queues) > 100:
        arguments[5:] = [f"@{len(queues)}"]
    process = subprocess.Popen(
        arguments, env={**os.environ, "BENCH_STAMPS": str(stamps)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", "the workers did not start"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


async def single_tasks(server: BenchServer, workers: int, count: int = 200) -> Singles:
    server.flush()
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        path = Path(folder) / "stamps"
        path.touch()
        with idle_workers(workers, ["bench"], path, server):
            await stamp.enqueue(time.time())
            await wait_for_lines(path, 1)
            await asyncio.sleep(2.0)
            idle, began = server.cpu_seconds(), time.monotonic()
            await asyncio.sleep(2.0)
            per_second = (server.cpu_seconds() - idle) / (time.monotonic() - began)
            cpu, calls, began = server.cpu_seconds(), server.script_calls(), time.monotonic()
            for number in range(count):
                await stamp.enqueue(time.time())
                await wait_for_lines(path, number + 2)
            seconds = time.monotonic() - began
            spent, scripts = server.cpu_seconds() - cpu - per_second * seconds, server.script_calls() - calls
        pick_up = sorted(float(line) * 1000 for line in path.read_text().split()[1:])
    return Singles(spent / count * 1e6, scripts / count, pick_up)


@dataclass(frozen=True)
class ManyQueues:
    """One worker that serves thousands of queues."""

    connections: int
    redis_percent: float
    """Of a core, while idle."""
    worker_percent: float
    pick_up: list[float]
    plain_push: list[float]
    """Milliseconds until a task starts that a plain LPUSH put there, sorted."""


async def many_queues(server: BenchServer, number: int = 5_000, count: int = 200, seconds: float = 10.0) -> ManyQueues:
    from benchmarks.latency import push_like_go

    server.flush()
    queues = [f"bench{place}" for place in range(number)]
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        path = Path(folder) / "stamps"
        path.touch()
        before = len(server.client.client_list())
        with idle_workers(1, queues, path, server) as pid:
            await asyncio.sleep(20.0)
            connections = len(server.client.client_list()) - before
            redis, worker = server.cpu_seconds(), process_cpu(pid)
            await asyncio.sleep(seconds)
            redis_percent = (server.cpu_seconds() - redis) / seconds * 100
            worker_percent = (process_cpu(pid) - worker) / seconds * 100
            for place in range(count):
                await stamp.using(queue=queues[place * 7 % number]).enqueue(time.time())
                await wait_for_lines(path, place + 1)
            for place in range(10):
                push_like_go(server, queues[place * 11 % number], f"go-{place}")
                await wait_for_lines(path, count + place + 1)
        values = [float(line) * 1000 for line in path.read_text().split()]
    return ManyQueues(connections, redis_percent, worker_percent, sorted(values[:count]), sorted(values[count:]))


async def beats_of_large_tasks(server: BenchServer, seconds: float, number: int = 100, size: int = 1_000_000) -> float:
    """Bytes per second that a worker sends while it runs so many tasks with payloads of this size."""
    server.flush()
    for _ in range(number):
        await hold.enqueue("x" * size)
    with worker(server, "--shutdown-timeout", "0.1"):
        while server.client.llen("asynq:{bench}:active") < number:
            await asyncio.sleep(0.05)
        await asyncio.sleep(5.0)
        before, began = _received(server), time.monotonic()
        await asyncio.sleep(seconds)
        return (_received(server) - before) / (time.monotonic() - began)


def _received(server: BenchServer) -> int:
    return int(server.client.info("stats")["total_net_input_bytes"])


async def _serve(url: str, number: int, queues: Sequence[str]) -> None:
    import logging
    from contextlib import AsyncExitStack

    from benchmarks.tasks import stamp as task
    from veredus import App
    from veredus.worker.config import WorkerConfig
    from veredus.worker.worker import Worker

    logging.getLogger("veredus").setLevel(logging.ERROR)
    async with AsyncExitStack() as stack:
        for _ in range(number):
            app = App(url)
            app.task(name="stamp", queue="bench")(task.function)
            await stack.enter_async_context(app)
            await stack.enter_async_context(Worker(app, WorkerConfig.make(queues=queues)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    import uvloop

    url, number, *queues = sys.argv[1:]
    if queues[0].startswith("@"):
        queues = [f"bench{place}" for place in range(int(queues[0][1:]))]
    uvloop.run(_serve(url, int(number), queues))


if __name__ == "__main__":
    main()
