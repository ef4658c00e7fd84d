"""The invariant check finds what is planted, and nothing in a sound keyspace."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.keyspace import Key, check_invariant, snapshot
from tests.support.queue import NOW, Queue
from tests.support.servers import VALKEY_ONLY
from veredus.store.store import Store

pytestmark = VALKEY_ONLY


@pytest.fixture
async def q(store: Store, redis_client: Any) -> Queue:
    """One task in every place where a task can be."""
    q = Queue(store.redis, redis_client)
    client = redis_client
    await client.sadd("asynq:queues", "q")
    await q.activate("active", "retry", "archived", "completed")
    await q.retry("retry")
    await q.archive("archived")
    await q.complete("completed")
    await q.enqueue("pending")
    await q.schedule(("scheduled", "+5000"))
    for task_id, place in (("waiting", "g:g1"), ("staged", "g:g1:set1")):
        await client.hset(q.task(task_id), mapping={"msg": "", "state": "aggregating", "group": "g1"})
        await client.zadd(q.key(place), {task_id: NOW // 1000})
    await client.sadd(q.key("groups"), "g1")
    await client.zadd(q.key("aggregation_sets"), {q.key("g:g1:set1"): NOW // 1000})
    return q


async def test_a_sound_keyspace_has_no_breach(q: Queue) -> None:
    assert await check_invariant(q.client) == []


async def test_a_stale_index_entry_is_tolerated(q: Queue) -> None:
    await q.client.zadd(q.key("due"), {"ghost": 1, "pending": 2})
    assert await check_invariant(q.client) == []


async def test_an_empty_server_has_no_breach(redis_client: Any) -> None:
    assert await check_invariant(redis_client) == []


PLANTS: list[tuple[str, Callable[[Any, Queue], Any]]] = [
    ("pending is in", lambda c, q: c.lpush(q.key("pending"), "pending")),
    ("scheduled is in", lambda c, q: c.zadd(q.key("retry"), {"scheduled": 5})),
    ("archived is in", lambda c, q: c.zadd(q.key("completed"), {"archived": 5})),
    ("waiting is in", lambda c, q: c.lpush(q.key("pending"), "waiting")),
    ("waiting is in", lambda c, q: c.zadd(q.key("g:g1:set1"), {"waiting": 5})),
    ("ghost is in {'pending': 1} and has no hash", lambda c, q: c.lpush(q.key("pending"), "ghost")),
    ("staged is in {'g:g1:set1': 1} and has no hash", lambda c, q: c.delete(q.task("staged"))),
    ("completed has no msg", lambda c, q: c.hdel(q.task("completed"), "msg")),
    ("retry has state 'pending'", lambda c, q: c.hset(q.task("retry"), "state", "pending")),
    ("waiting has state 'retry'", lambda c, q: c.hset(q.task("waiting"), "state", "retry")),
    ("active has state ''", lambda c, q: c.hdel(q.task("active"), "state")),
    ("pending is in no container", lambda c, q: c.delete(q.key("pending"))),
    ("active is active without a lease", lambda c, q: c.zrem(q.key("lease"), "active")),
    ("active has a lease but is not active", lambda c, q: c.delete(q.key("active"))),
    ("lease is a string, not a zset", lambda c, q: c.set(q.key("lease"), "x")),
    ("scheduled has scheduled with the score 5.5", lambda c, q: c.zadd(q.key("scheduled"), {"scheduled": 5.5})),
    ("due has scheduled with the score 5.5", lambda c, q: c.zadd(q.key("due"), {"scheduled": 5.5})),
    ("lease has active with the score 5.5", lambda c, q: c.zadd(q.key("lease"), {"active": 5.5})),
    ("used but not in asynq:queues", lambda c, q: c.delete("asynq:queues")),
    ("the group g1 has members but is not in groups", lambda c, q: c.delete(q.key("groups"))),
    ("the group g2 is in groups but has no members", lambda c, q: c.sadd(q.key("groups"), "g2")),
]


@pytest.mark.parametrize(("breach", "plant"), PLANTS, ids=[f"{i}-{text}" for i, (text, _) in enumerate(PLANTS)])
async def test_a_planted_breach_is_found(q: Queue, breach: str, plant: Callable[[Any, Queue], Any]) -> None:
    await plant(q.client, q)
    assert [text for text in await check_invariant(q.client) if text.startswith(f"q: {breach}")]


async def test_a_hash_of_a_wrong_type_is_found(q: Queue) -> None:
    await q.client.delete(q.task("pending"))
    await q.client.set(q.task("pending"), "x")
    assert await check_invariant(q.client) == ["q: the hash of pending is a string"]


async def test_it_holds_in_every_sample_under_load(q: Queue) -> None:
    stop, settled = False, 0

    async def churn() -> None:
        nonlocal settled
        for number in itertools.count(2, 2):
            if stop:
                return
            await q.enqueue(*[f"{number}-{i}" for i in range(20)])
            taken, _ = await q.dequeue(20, number=number)
            await q.retry(*[(task_id, f"w:{number}", b"", 0, 1) for task_id in taken])
            await q.forward(now=NOW + 1)
            taken, _ = await q.dequeue(20, number=number + 1)
            assert await q.done(*[(task_id, f"w:{number + 1}") for task_id in taken]) == []
            settled += len(taken)

    task = asyncio.create_task(churn())
    samples = 0
    while (samples < 40 or settled < 100) and not task.done():
        assert await check_invariant(q.client) == []
        samples += 1
    stop = True
    await task


async def test_a_snapshot_has_every_type_with_its_ttl(redis_client: Any) -> None:
    await redis_client.set("s", b"\xff", ex=30)
    await redis_client.rpush("l", "b", "a")
    await redis_client.sadd("e", "x")
    await redis_client.zadd("z", {"m": 1.5, "n": 1_794_780_955_123})
    await redis_client.hset("h", "f", "v")
    await redis_client.expire("h", 90_000)
    assert await snapshot(redis_client) == {
        "e": Key("set", {"x"}, "none"),
        "h": Key("hash", {"f": "v"}, "days"),
        "l": Key("list", ["b", "a"], "none"),
        "s": Key("string", "\udcff", "seconds"),
        "z": Key("zset", {"m": "1.5", "n": "1794780955123"}, "none"),
    }
