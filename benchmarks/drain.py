"""How fast tasks are run: a queue filled before, drained by worker processes, timed between 10 % and 90 %."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.enqueue import PAYLOAD, fill
from benchmarks.server import BenchServer, process_cpu
from benchmarks.tasks import noop
from benchmarks.workers import worker
from veredus import App


@dataclass(frozen=True)
class Drain:
    rate: float
    worker_us: float
    redis_us: float
    redis_load: float


async def drain(
    server: BenchServer,
    count: int,
    processes: int = 1,
    *,
    queues: Sequence[str] = ("bench",),
    payload: str = PAYLOAD,
    **environment: str,
) -> Drain:
    """`environment` is the workers'."""
    await fill(server, count, queues=queues, payload=payload)
    options = ("--queues", ",".join(queues))
    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(worker(server, *options, **environment)).pid for _ in range(processes)]
        began, start = await _reach(server, int(count * 0.1), queues)
        cpu, redis_cpu = sum(map(process_cpu, pids)), server.cpu_seconds()
        ended, stop = await _reach(server, int(count * 0.9), queues)
        cpu, redis_cpu = sum(map(process_cpu, pids)) - cpu, server.cpu_seconds() - redis_cpu
    done, seconds = stop - start, ended - began
    return Drain(done / seconds, cpu / done * 1e6, redis_cpu / done * 1e6, redis_cpu / seconds)


async def drain_apart(servers: Sequence[BenchServer], count: int) -> Drain:
    """As many tasks on each of several servers, with a worker for each; the rate of all together."""
    for server in servers:
        server.flush()
        app = App(server.url)
        task = app.task(name="noop", queue="bench")(noop.function)
        async with app:
            await app.enqueue_many(task.call(PAYLOAD) for _ in range(count))

    def spent() -> tuple[float, float]:
        return sum(map(process_cpu, pids)), sum(server.cpu_seconds() for server in servers)

    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(worker(server)).pid for server in servers]
        for server in servers:
            await _reach(server, int(count * 0.1))
        began, start, (cpu, redis_cpu) = time.perf_counter(), _done(servers), spent()
        while (stop := _done(servers)) < count * len(servers) * 0.7:  # while every one of them still has work
            await asyncio.sleep(0.01)
        ended, (cpu_after, redis_after) = time.perf_counter(), spent()
    done, seconds = stop - start, ended - began
    redis_cpu, cpu = redis_after - redis_cpu, cpu_after - cpu
    return Drain(done / seconds, cpu / done * 1e6, redis_cpu / done * 1e6, redis_cpu / seconds / len(servers))


def _done(servers: Sequence[BenchServer]) -> int:
    return sum(int(server.client.get("asynq:{bench}:processed") or 0) for server in servers)


async def drain_deep(server: BenchServer, count: int, window: int, windows: int) -> list[float]:
    """Tasks per second in windows one after another, while most of the queue is still pending."""
    await fill(server, count)
    rates = []
    with worker(server):
        began, start = await _reach(server, window // 4)
        for number in range(1, windows + 1):
            ended, stop = await _reach(server, window // 4 + window * number)
            rates.append((stop - start) / (ended - began))
            began, start = ended, stop
    return rates


async def _reach(server: BenchServer, wanted: int, queues: Sequence[str] = ("bench",)) -> tuple[float, int]:
    counters = [f"asynq:{{{queue}}}:processed" for queue in queues]
    while True:
        done = sum(int(number or 0) for number in server.client.mget(counters))
        if done >= wanted:
            return time.perf_counter(), done
        await asyncio.sleep(0.01)
