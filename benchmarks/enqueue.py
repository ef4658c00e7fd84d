"""How fast tasks come in: one at a time, from 50 coroutines, in one call, and from synchronous code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.server import BenchServer
from benchmarks.tasks import app, noop

PAYLOAD = "x" * 87  # with its JSON around it: 100 bytes


async def one_at_a_time(count: int) -> float:
    await noop.enqueue(PAYLOAD)
    began = time.perf_counter()
    for _ in range(count):
        await noop.enqueue(PAYLOAD)
    return count / (time.perf_counter() - began)


async def from_coroutines(count: int, coroutines: int = 50) -> float:
    async def producer() -> None:
        for _ in range(count // coroutines):
            await noop.enqueue(PAYLOAD)

    began = time.perf_counter()
    await asyncio.gather(*[producer() for _ in range(coroutines)])
    return count / (time.perf_counter() - began)


async def of_any_type(count: int) -> float:
    """By name, without a declaration; each call with its options."""
    began = time.perf_counter()
    await app.enqueue_many(app.call("other", {"data": PAYLOAD}, queue="bench") for _ in range(count))
    return count / (time.perf_counter() - began)


async def in_one_call(count: int) -> float:
    began = time.perf_counter()
    await app.enqueue_many(noop.call(PAYLOAD) for _ in range(count))
    return count / (time.perf_counter() - began)


def synchronously(count: int) -> float:
    noop.enqueue_sync(PAYLOAD)
    began = time.perf_counter()
    for _ in range(count):
        noop.enqueue_sync(PAYLOAD)
    return count / (time.perf_counter() - began)


async def from_a_thread(count: int) -> float:
    return await asyncio.to_thread(synchronously, count)


async def fill(server: BenchServer, count: int, *, queues: Sequence[str] = ("bench",), payload: str = PAYLOAD) -> None:
    """So many tasks in all, as many in each queue."""
    server.flush()
    for queue in queues:
        task, wanted = noop.using(queue=queue), count // len(queues)
        for first in range(0, wanted, 50_000):
            await app.enqueue_many(task.call(payload) for _ in range(min(50_000, wanted - first)))
