"""How cost grows: with what is active, with what is pending, and in memory."""

from __future__ import annotations

import random

from benchmarks.enqueue import fill
from benchmarks.server import BenchServer
from veredus.model.settlement import Done
from veredus.store.store import connect
from veredus.store.work import Work


async def settle_cost(server: BenchServer, active: int, *, shuffled: bool, count: int = 2_000) -> float:
    """Microseconds of Redis CPU to settle one task while so many are active."""
    total = max(active, count)
    await fill(server, active + count)
    redis = connect(server.url)
    work = Work(redis, "bench-worker", lease_ms=60_000)
    held: list[Done] = []
    while len(held) < active:
        batch = await work.dequeue("bench", min(500, active - len(held)))
        held += [Done(task_id, batch.owner) for task_id, _ in batch.rows]
    spent, settled = 0.0, 0
    while settled < total:
        if shuffled:
            random.shuffle(held)
        group, held = held[:50], held[50:]
        before = server.cpu_seconds()
        await work.settle("bench", group)
        spent += server.cpu_seconds() - before
        settled += len(group)
        batch = await work.dequeue("bench", 50)
        held += [Done(task_id, batch.owner) for task_id, _ in batch.rows]
        if not batch.rows and not held:
            break
    await redis.close()
    return spent / settled * 1e6


async def memory_per_task(server: BenchServer, count: int = 20_000) -> tuple[float, float]:
    """Bytes of Redis memory per pending task: ours, and the same task written as Go writes it."""
    await fill(server, 1_000)  # scripts and buffers are not the tasks'
    server.flush()
    before = server.client.info("memory")["used_memory_dataset"]
    await fill(server, count)
    ours = (server.client.info("memory")["used_memory_dataset"] - before) / count
    rows = [(key, server.client.hgetall(key)) for key in server.client.scan_iter("asynq:{bench}:t:*", count=1000)]
    server.flush()
    before = server.client.info("memory")["used_memory_dataset"]
    for first in range(0, len(rows), 1000):
        pipe = server.client.pipeline(transaction=False)
        for key, fields in rows[first : first + 1000]:
            pipe.hset(key, mapping={name: fields[name] for name in (b"msg", b"state", b"pending_since")})
            pipe.lpush("asynq:{bench}:pending", key.rpartition(b":")[2])
        pipe.execute()
    go = (server.client.info("memory")["used_memory_dataset"] - before) / count
    return ours, go
