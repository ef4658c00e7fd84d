"""Who is idle, and who is woken: whoever puts a task into pending wakes the worker that has been idle longest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.queue import NOW, Queue
from veredus.store.tasks.work import IDLE, WAKE


@asynccontextmanager
async def listening(client: Any, *channels: str) -> AsyncIterator[list[str]]:
    """Workers that listen: which of them was told of queue q. The list is full once the block has ended."""
    told: list[str] = []
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(*channels, "END")
        for _ in range(len(channels) + 1):
            assert await pubsub.get_message(timeout=10)
        yield told
        await client.publish("END", "")
        async for message in pubsub.listen():
            if message["channel"] == b"END":
                break
            assert message["data"] == b"asynq:{q}:"
            told.append(message["channel"].decode())


async def be_idle(q: Queue, *channels: str) -> None:
    for place, channel in enumerate(channels):
        assert await q.redis.run(IDLE, q.keys("pending"), [q.key(""), channel, NOW + place]) == 0


async def test_a_dequeue_that_finds_less_than_it_wants_enters_the_worker_as_idle(q: Queue) -> None:
    await q.enqueue("a")
    ids, reply = await q.dequeue(2, channel="w1")
    assert (ids, reply[-1], await q.scores("idle")) == (["a"], 1, {"w1": NOW})
    assert 3590 < await q.client.ttl(q.key("idle")) <= 3600
    _, reply = await q.dequeue(2, number=2, channel="w2", now=NOW + 1)
    assert (reply[-1], await q.scores("idle")) == (1, {"w1": NOW, "w2": NOW + 1})


async def test_a_full_batch_and_a_worker_without_a_channel_are_not_entered(q: Queue) -> None:
    await q.enqueue("a")
    assert (await q.dequeue(1, channel="w1"))[1][-1] == 0
    assert (await q.dequeue(1, number=2))[1][-1] == 0
    await q.enqueue("b")
    await q.client.set(q.key("paused"), 1)
    assert (await q.dequeue(2, number=3, channel="w1"))[1][-1] == 0
    assert not await q.client.exists(q.key("idle"))


async def test_one_task_wakes_one_worker_the_one_that_was_idle_longest(q: Queue) -> None:
    await be_idle(q, "w1", "w2", "w3")
    async with listening(q.client, "w1", "w2", "w3") as told:
        await q.enqueue("a")
        await q.enqueue("b", "c")
        await q.enqueue(("d", b"", "lock", 60))
    assert told == ["w1", "w2", "w3"]
    assert not await q.client.exists(q.key("idle"))


async def test_without_given_times_as_producers_call_it(q: Queue) -> None:
    await be_idle(q, "w1", "w2")
    async with listening(q.client, "w1", "w2") as told:
        await q.enqueue("a", now=None)
        assert await q.enqueue("a", now=None) == [0]
        await q.enqueue("b", call=1, now=None)
    assert told == ["w1", "w2"]


async def test_a_worker_that_has_gone_is_passed_over(q: Queue) -> None:
    await be_idle(q, *[f"gone{number}" for number in range(50)], "w1", "w2")
    async with listening(q.client, "w1", "w2") as told:
        await q.enqueue("a")
    assert (told, await q.scores("idle")) == (["w1"], {"w2": NOW + 51})


async def test_a_dequeue_that_leaves_tasks_wakes_the_next_worker_and_one_that_takes_all_does_not(q: Queue) -> None:
    await be_idle(q, "w1", "w2")
    await q.client.lpush(q.key("pending"), "a", "b", "c")
    for task_id in "abc":
        await q.client.hset(q.task(task_id), mapping={"msg": task_id, "state": "pending"})
    async with listening(q.client, "w1", "w2") as told:
        await q.dequeue(1)
        await q.dequeue(2, number=2)
    assert told == ["w1"]


async def test_tasks_that_are_passed_over_wake_a_worker_that_may_know_them(q: Queue) -> None:
    await be_idle(q, "w1", "w2")
    async with listening(q.client, "w1", "w2") as told:
        await q.enqueue(("a", b"\n\x05other"))
        taken, _ = await q.dequeue(1, startable="\x01mine\x001")
    assert (taken, told) == ([], ["w1", "w2"])


async def test_a_worker_that_cannot_take_what_it_was_told_of_passes_it_on(q: Queue) -> None:
    await be_idle(q, "w1")
    async with listening(q.client, "w1") as told:
        assert await q.redis.run(WAKE, q.keys("pending"), [q.key("")]) == 0
        assert told == []
        await q.client.lpush(q.key("pending"), "a")
        assert await q.redis.run(WAKE, q.keys("pending"), [q.key("")]) == 1
        await q.client.delete(q.key("pending"))
    assert told == ["w1"]


async def test_nobody_becomes_idle_while_tasks_are_pending(q: Queue) -> None:
    await q.enqueue("a", "b")
    assert await q.redis.run(IDLE, q.keys("pending"), [q.key(""), "w1"]) == 2
    assert not await q.client.exists(q.key("idle"))


async def test_tasks_that_are_given_back_wake_a_worker(q: Queue) -> None:
    await q.activate("a")
    await be_idle(q, "w1", "w2")
    async with listening(q.client, "w1", "w2") as told:
        await q.requeue(("a", "other:1"))
        await q.requeue("a")
    assert told == ["w1"]


async def test_a_damaged_list_of_idle_workers_stops_nobody(q: Queue) -> None:
    await q.client.set(q.key("idle"), "text")
    await q.enqueue("a")
    await q.enqueue("b", now=None)
    assert (await q.dequeue(1))[0] == ["a"]
    ids, reply = await q.dequeue(2, number=2, channel="w1")
    assert (ids, reply[-1]) == (["b"], 1)
