"""Dequeue and settle through the store: numbered batches, lost replies, positions of what was lost."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.support.keyspace import check_invariant
from tests.support.proxy import proxy_before
from tests.support.queue import Queue
from tests.support.servers import RealServer
from veredus.errors import CommandRefused, ConnectionLost
from veredus.model.pools import FreeSlots
from veredus.model.settlement import Archive, Complete, Done, Requeue, Retry
from veredus.store.store import Store, connect
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.leases import Extension, Holding, Sweep
from veredus.store.tasks.work import Batch, DequeueRequest, Work


@pytest.fixture
async def work(store: Store) -> Work:
    await store.intake.add_many("q", [NewTask(task_id, task_id.upper().encode()) for task_id in "abcdef"])
    return Work(store.redis, "w", lease_ms=12_000)


async def test_a_batch_as_a_value(work: Work, store: Store) -> None:
    batch = await work.dequeue("q", 4)
    assert batch.rows == [("a", b"A"), ("b", b"B"), ("c", b"C"), ("d", b"D")]
    assert (batch.owner, batch.left, batch.dropped) == ("w:1", 2, [])
    assert 12_000 <= batch.lease_end * 1000 - batch.now_ms < 13_000
    again = await work.dequeue("q", 4)
    assert (again.owner, [row[0] for row in again.rows], again.left) == ("w:2", ["e", "f"], 0)


async def test_a_paused_queue_and_dropped_ids(work: Work, redis_client: Any) -> None:
    await redis_client.set("asynq:{q}:paused", "1")
    assert (await work.dequeue("q", 1)).left == -1
    await redis_client.delete("asynq:{q}:paused", "asynq:{q}:t:a")
    batch = await work.dequeue("q", 2)
    assert ([row[0] for row in batch.rows], batch.dropped) == (["b", "c"], [("a", "dangling")])


async def test_several_queues_are_asked_at_once_and_each_answers_for_itself(
    work: Work, store: Store, redis_client: Any
) -> None:
    await store.intake.add_many("other", [NewTask("o", b"O")])
    await redis_client.set("asynq:{broken}:pending", "no list")
    there, broken, other = await work.dequeue_each(
        [
            DequeueRequest("q", 2, FreeSlots(loop=2)),
            DequeueRequest("broken", 1, FreeSlots(loop=1)),
            DequeueRequest("other", 3, FreeSlots(loop=3)),
        ]
    )
    assert isinstance(there, Batch)
    assert isinstance(other, Batch)
    assert (there.rows, there.left) == ([("a", b"A"), ("b", b"B")], 4)
    assert (other.rows, other.left, other.owner) == ([("o", b"O")], 0, "w:1")
    assert isinstance(broken, CommandRefused)
    await redis_client.delete("asynq:{broken}:pending")
    await store.intake.add_many("broken", [NewTask("x", b"X")])
    again, more = await work.dequeue_each(
        [DequeueRequest("broken", 1, FreeSlots(loop=1)), DequeueRequest("q", 1, FreeSlots(loop=1))]
    )
    assert isinstance(again, Batch)
    assert isinstance(more, Batch)
    assert (again.rows, again.owner) == ([("x", b"X")], "w:1")  # the question that was not answered, once more
    assert (more.rows, more.owner) == ([("c", b"C")], "w:2")


async def test_every_way_out(work: Work, store: Store, redis_client: Any) -> None:
    owner = (await work.dequeue("q", 5)).owner
    stolen = "thief:1"
    assert await work.settle("q", [Done("a", owner), Done("b", stolen)]) == [1]
    assert await work.settle(
        "q", [Complete("b", owner, "", b"B2", 600, b"r"), Complete("x", owner, "", b"", 1, None)]
    ) == [1]
    assert await work.settle("q", [Retry("a", owner, b"", 0, True), Retry("c", owner, b"C2", 60_000, True)]) == [0]
    assert await work.settle("q", [Archive("d", owner, "", b"D2", b"raw")]) == []
    assert await work.settle("q", [Requeue("e", owner)]) == []
    q = Queue(store.redis, redis_client)
    assert await q.pending() == ["e", "f"]
    assert list(await q.scores("completed")) == ["b"]
    assert list(await q.scores("due")) == list(await q.scores("retry")) == ["c"]
    assert list(await q.scores("archived")) == ["d"]
    assert (await q.fields("d"))["original"] == "raw"
    assert (await q.fields("b"))["result"] == "r"
    assert await q.active() == []
    assert await check_invariant(redis_client) == []
    assert await redis_client.mget("asynq:{q}:processed", "asynq:{q}:failed") == [b"4", b"2"]


async def test_a_dequeue_whose_reply_was_lost_gives_the_same_batch_when_asked_again(
    server: RealServer, redis_client: Any, store: Store
) -> None:
    await store.intake.add_many("q", [NewTask(f"t{i}", b"") for i in range(6)])
    async with proxy_before(server.socket) as proxy:
        lossy = Store(connect(proxy.url))
        work = Work(lossy.redis, "w", lease_ms=12_000)
        assert len((await work.dequeue("q", 1)).rows) == 1
        proxy.lose_reply = 1
        with pytest.raises(ConnectionLost):
            await work.dequeue("q", 3)
        q = Queue(store.redis, redis_client)
        assert len(await q.active()) == 4
        batch = await work.dequeue("q", 3)
        assert sorted(row[0] for row in batch.rows) == ["t1", "t2", "t3"]
        assert len(await q.active()) == 4
        assert await work.settle("q", [Done(task_id, batch.owner) for task_id, _ in batch.rows]) == []
        assert [row[0] for row in (await work.dequeue("q", 3)).rows] == ["t4", "t5"]
        await lossy.close()
    assert await check_invariant(redis_client) == []


async def test_a_dequeue_whose_request_was_lost_is_asked_again(server: RealServer, store: Store) -> None:
    await store.intake.add_many("q", [NewTask(f"t{i}", b"") for i in range(4)])
    async with proxy_before(server.socket) as proxy:
        lossy = Store(connect(proxy.url))
        work = Work(lossy.redis, "w", lease_ms=12_000)
        await work.dequeue("q", 1)
        proxy.lose_request = 1
        with pytest.raises(ConnectionLost):
            await work.dequeue("q", 2)
        assert [row[0] for row in (await work.dequeue("q", 2)).rows] == ["t1", "t2"]
        assert [row[0] for row in (await work.dequeue("q", 2)).rows] == ["t3"]
        await lossy.close()


async def test_a_settlement_whose_reply_was_lost_is_reported_lost_when_repeated_and_counts_once(
    server: RealServer, redis_client: Any, store: Store
) -> None:
    await store.intake.add_many("q", [NewTask("a", b""), NewTask("b", b"")])
    async with proxy_before(server.socket) as proxy:
        lossy = Store(connect(proxy.url))
        work = Work(lossy.redis, "w", lease_ms=12_000)
        owner = (await work.dequeue("q", 2)).owner
        assert await work.settle("q", [Done("b", owner)]) == []
        proxy.lose_reply = 1
        with pytest.raises(ConnectionLost):
            await work.settle("q", [Done("a", owner)])
        assert await work.settle("q", [Done("a", owner)]) == [0]
        await lossy.close()
    assert await redis_client.get("asynq:{q}:processed") == b"2"


async def test_three_workers_share_a_queue_without_overlap(store: Store, url: str) -> None:
    await store.intake.add_many("q", [NewTask(f"t{i}", b"") for i in range(300)])
    stores = [Store(connect(url)) for _ in range(3)]

    async def drain(name: str, own: Store) -> list[str]:
        work, taken = Work(own.redis, name, lease_ms=12_000), []
        while batch := (await work.dequeue("q", 7)).rows:
            taken += [row[0] for row in batch]
        return taken

    taken = await asyncio.gather(*[drain(f"w{i}", own) for i, own in enumerate(stores)])
    for own in stores:
        await own.close()
    assert sorted(itertools.chain(*taken)) == sorted(f"t{i}" for i in range(300))


async def test_leases_by_queue(work: Work, store: Store, redis_client: Any) -> None:
    owner = (await work.dequeue("q", 2)).owner
    await redis_client.set("asynq:{bad}:lease", "x")
    lost = await store.leases.extend(
        {
            "q": [Holding("a", owner, 30_000), Holding("b", "thief:1", 30_000)],
            "bad": [Holding("a", owner, 30_000)],
        }
    )
    assert lost["q"] == Extension([Holding("b", "thief:1", 30_000)], [])
    assert not isinstance(lost["bad"], Extension)


async def test_sweeps_by_queue(work: Work, store: Store, redis_client: Any) -> None:
    await work.dequeue("q", 2)
    now = await store.server_time_ms()
    noted = await store.leases.recover(["q"], "r:1", since={}, claim_ms=5000)
    first = noted["q"]
    assert isinstance(first, Sweep)
    assert first.swept is False
    assert now <= first.now_ms <= await store.server_time_ms()
    found = await store.leases.recover(["q"], "r:1", since={}, claim_ms=5000, dead_worker="w:")
    second = found["q"]
    assert isinstance(second, Sweep)
    assert sorted((row.task_id, row.message, row.losses) for row in second.claimed) == [
        ("a", b"A", 1),
        ("b", b"B", 1),
    ]
    assert await work.settle("q", [Retry("a", "r:1", b"", 0, True)]) == []


async def test_expiry_by_queue(work: Work, store: Store, redis_client: Any) -> None:
    await redis_client.zadd("asynq:{q}:completed", {"x": 1, "y": 2})
    await redis_client.set("asynq:{bad}:completed", "x")
    good, bad = await store.retention.expire(["q", "bad"], 100)
    assert good == 2
    assert isinstance(bad, Exception)
