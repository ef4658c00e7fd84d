"""Durable handlers: steps, wake-ups, sleeps, fan-outs, and what tasks that wait cost."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.latency import wait_for_lines
from benchmarks.server import BenchServer, process_cpu
from benchmarks.tasks import app, fan_out, naps, noop, steps, waits
from benchmarks.workers import worker
from veredus.wire import keys

CONCURRENT = 50


@dataclass(frozen=True)
class Steps:
    rate: float
    """Per second and worker process."""
    worker_us: float
    redis_us: float


async def step_rate(server: BenchServer, each: int) -> Steps:
    """Fifty tasks at once, each with so many steps that do nothing, one after the other."""
    async with _stamping(server) as (path, pid):
        cpu, redis = process_cpu(pid), server.cpu_seconds()
        await app.enqueue_many(steps.call(each) for _ in range(CONCURRENT))
        await wait_for_lines(path, 2 * CONCURRENT)
        times = sorted(map(float, path.read_text().split()))
        cpu, redis = process_cpu(pid) - cpu, server.cpu_seconds() - redis
    total = CONCURRENT * each
    return Steps(total / (times[-1] - times[0]), cpu / total * 1e6, redis / total * 1e6)


async def wake_ups(server: BenchServer, count: int = 200) -> list[float]:
    """Milliseconds from `emit` until the handler has what it waited for; sorted."""
    async with _stamping(server) as (path, _):
        await app.enqueue_many(waits.call(number) for number in range(count))
        await _all_wait(server, count)
        for number in range(count):
            await app.emit(f"bench:{number}", time.time())
            await asyncio.sleep(0.01)
        await wait_for_lines(path, count)
        return _sorted_ms(path)


async def sleeps(server: BenchServer, count: int = 200) -> list[float]:
    """Milliseconds by which handlers go on after the ends of their sleeps; sorted."""
    async with _stamping(server) as (path, _):
        await app.enqueue_many(naps.call(random.uniform(0.5, 3.0)) for _ in range(count))
        await wait_for_lines(path, count)
        return _sorted_ms(path)


@dataclass(frozen=True)
class FanOut:
    seconds: float
    redis_us: float
    """Redis CPU per child."""
    slowest: float
    """Milliseconds of the slowest command."""


async def gathered(server: BenchServer, count: int) -> FanOut:
    """A parent with so many children that do nothing, from `enqueue` to its result."""
    server.flush()
    with worker(server, "-q", "bench"):
        await (await noop.using(retention=60).enqueue("")).result(timeout=60)
        _watch(server)
        cpu, began = server.cpu_seconds(), time.perf_counter()
        handle = await fan_out.enqueue(count)
        assert await handle.result(timeout=600) == count
        seconds, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu
        return FanOut(seconds, cpu / count * 1e6, _slowest(server))


async def alone(server: BenchServer, count: int, retention: int = 0) -> FanOut:
    """The same tasks without a parent, from the first `enqueue` to the last end. Children keep their results for a
    day, because their parent reads them; with a `retention`, these do so too."""
    server.flush()
    with worker(server, "-q", "bench"):
        await (await noop.using(retention=60).enqueue("")).result(timeout=60)
        _watch(server)
        cpu, began = server.cpu_seconds(), time.perf_counter()
        task = noop.using(retention=retention) if retention else noop
        await app.enqueue_many(task.call("") for _ in range(count))
        while int(server.client.get(keys.processed("bench")) or 0) < count + 1:
            await asyncio.sleep(0.002)
        seconds, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu
        return FanOut(seconds, cpu / count * 1e6, _slowest(server))


async def kept(server: BenchServer, count: int) -> FanOut:
    """The same tasks without a parent, with kept results."""
    return await alone(server, count, retention=86400)


@dataclass(frozen=True)
class Waiting:
    """Many tasks that wait for events, each with two steps of 50 bytes."""

    each: float
    """Bytes of Redis memory."""
    worker_percent: float
    """Of a core, of one idle worker on their queue."""
    redis_percent: float


async def many_waiting(server: BenchServer, count: int, settle: float, seconds: float = 20.0) -> Waiting:
    """`settle` seconds after the last of them began to wait: looks are frequent at first."""
    server.flush()
    with worker(server, "-q", "bench") as process:
        before = _memory(server)
        for first in range(0, count, 10_000):
            await app.enqueue_many(waits.call(number, "x" * 47) for number in range(first, min(first + 10_000, count)))
        await _all_wait(server, count)
        await asyncio.sleep(settle)
        cpu, redis = process_cpu(process.pid), server.cpu_seconds()
        await asyncio.sleep(seconds)
        cpu, redis = process_cpu(process.pid) - cpu, server.cpu_seconds() - redis
        each = (_memory(server) - before) / count
    return Waiting(each, cpu / seconds * 100, redis / seconds * 100)


@asynccontextmanager
async def _stamping(server: BenchServer) -> AsyncIterator[tuple[Path, int]]:
    """A worker for fifty tasks at once that is up; the file in which its tasks note times, and its process."""
    server.flush()
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        path = Path(folder) / "stamps"
        path.touch()
        with worker(server, "-q", "bench", "--concurrency", str(CONCURRENT), BENCH_STAMPS=str(path)) as process:
            await (await noop.using(retention=60).enqueue("")).result(timeout=60)
            yield path, process.pid


async def _all_wait(server: BenchServer, count: int) -> None:
    while server.client.zcard(keys.waits("bench")) < count:
        await asyncio.sleep(0.05)


def _sorted_ms(path: Path) -> list[float]:
    return sorted(float(line) * 1000 for line in path.read_text().split())


def _watch(server: BenchServer) -> None:
    server.client.config_set("slowlog-log-slower-than", 500)
    server.client.config_set("slowlog-max-len", 10_000)
    server.client.slowlog_reset()


def _slowest(server: BenchServer) -> float:
    entries: Any = server.client.slowlog_get(10_000)
    return max((entry["duration"] for entry in entries), default=0) / 1000


def _memory(server: BenchServer) -> int:
    return int(server.client.info("memory")["used_memory"])
