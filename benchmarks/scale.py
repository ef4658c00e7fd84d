"""How cost grows: with what is active, with what is pending, and in memory."""

from __future__ import annotations

import random

from benchmarks.enqueue import fill
from benchmarks.server import BenchServer
from veredus.model.settlement import Done
from veredus.store.store import connect
from veredus.store.tasks.work import Work


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


_AS_GO = """
redis.call('HSET', KEYS[1], 'msg', ARGV[1], 'state', 'pending', 'pending_since', ARGV[3])
redis.call('LPUSH', KEYS[2], ARGV[2])
"""


async def memory_per_task(server: BenchServer, count: int = 20_000) -> tuple[float, float]:
    """Bytes of Redis memory per pending task: ours, and the same task written as Go writes it."""
    await fill(server, count)
    ours = _memory(server) / count
    rows = [(key, server.client.hgetall(key)) for key in server.client.scan_iter("asynq:{bench}:t:*", count=1000)]
    server.flush()
    enqueue = server.client.register_script(_AS_GO)
    for key, fields in rows:
        enqueue([key, "asynq:{bench}:pending"], [fields[b"msg"], key.rpartition(b":")[2], fields[b"pending_since"]])
    return ours, _memory(server) / count


def _memory(server: BenchServer) -> float:
    """What the tasks and their list take up, as the server says of each key."""
    names = [*server.client.scan_iter("asynq:{bench}:t:*", count=1000), "asynq:{bench}:pending"]
    pipe = server.client.pipeline(transaction=False)
    for name in names:
        pipe.execute_command("MEMORY", "USAGE", name, "SAMPLES", 0)
    return float(sum(pipe.execute()))
