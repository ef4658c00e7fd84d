"""The record of a producer's calls: a repeated call stores nothing twice and returns the same codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.groups.support import GroupQueue
from tests.lua.test_replace import ended, replace
from tests.order.support import Bound
from tests.support.queue import Queue
from tests.support.servers import PRODUCTS, RealServer
from veredus.errors import CommandRefused
from veredus.store.store import Store, connect

RECORD = "asynq:{q}:sent:p:1"
LOCK = "asynq:{q}:unique:t:1"
WAYS = ["alone", "batch", "schedule", "group", "order"]


class EveryWay(Bound, GroupQueue):
    """All scripts that store tasks for a producer, called alike."""

    async def insert(self, way: str, *ids: str, call: int, lock: str = "") -> list[int]:
        if way == "alone":
            assert len(ids) == 1
            return await self.enqueue(*ids, call=call, now=None)
        if way == "batch":
            return await self.enqueue(*[(one, b"m", lock, 60) for one in ids], call=call)
        if way == "schedule":
            return await self.schedule(*[(one, "+60000", b"m", lock, 60) for one in ids], call=call)
        if way == "group":
            return await self.add(*[("g", one, b"m", lock, 60) for one in ids], call=call)
        return await self.line_up(*[(one, "o") for one in ids], lock=lock, ttl=60, call=call)

    async def without(self, *left_out: str) -> dict[str, Any]:
        space = await self.everything()
        return {name: key for name, key in space.items() if name not in left_out}

    async def everything_ends(self) -> None:
        """As if all tasks had been run and deleted."""
        await self.client.delete(*[name for name in await self.everything() if name not in (RECORD, LOCK)])


@pytest.fixture
def q(store: Store, redis_client: Any) -> EveryWay:
    return EveryWay(store.redis, redis_client)


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_sent_again_stores_nothing_although_its_task_has_ended(q: EveryWay, way: str) -> None:
    ids = ["a"] if way == "alone" else ["a", "b", "c"]
    assert await q.insert(way, *ids, call=7) == [1] * len(ids)
    assert await q.client.get(RECORD) == b"000000000007  a"
    assert 35 < await q.client.ttl(RECORD) <= 40
    before = await q.everything()
    assert await q.insert(way, *ids, call=7) == [1] * len(ids)
    assert await q.everything() == before
    await q.everything_ends()
    assert await q.insert(way, *ids, call=7) == [1] * len(ids)
    assert list(await q.everything()) == [RECORD]


@pytest.mark.parametrize("way", WAYS)
async def test_the_same_id_in_a_later_call_is_a_new_task(q: EveryWay, way: str) -> None:
    await q.insert(way, "a", call=7)
    await q.everything_ends()
    assert await q.insert(way, "a", call=8) == [1]
    assert q.task("a") in await q.everything()
    assert await q.client.get(RECORD) == b"000000000008  a"


@pytest.mark.parametrize("way", WAYS)
async def test_an_old_call_that_arrives_late_writes_nothing(q: EveryWay, way: str) -> None:
    await q.insert(way, "a", call=8)
    before = await q.everything()
    assert await q.insert(way, "b", call=7) == [-5]
    assert await q.everything() == before


@pytest.mark.parametrize("way", WAYS)
async def test_another_call_with_the_same_number_writes_nothing(q: EveryWay, way: str) -> None:
    """Two copies of one process count alike: neither may take the other's call for its own."""
    await q.insert(way, "a", call=7)
    before = await q.everything()
    assert await q.insert(way, "b", call=7) == [-5]
    assert await q.everything() == before


@pytest.mark.parametrize("way", WAYS[1:])
async def test_codes_other_than_stored_are_returned_again(q: EveryWay, way: str) -> None:
    await q.insert(way, "taken", call=1)
    assert await q.insert(way, "a", "taken", "b", call=2, lock=LOCK) == [1, 0, -1]
    assert await q.client.get(RECORD) == b"000000000002 1,0,-1 a"
    await q.everything_ends()
    await q.client.delete(LOCK)
    assert await q.insert(way, "a", "taken", "b", call=2, lock=LOCK) == [1, 0, -1]
    assert list(await q.everything()) == [RECORD]


async def test_one_task_alone_whose_id_is_taken_gets_the_same_answer_again(q: EveryWay) -> None:
    await q.insert("alone", "a", call=1)
    assert await q.insert("alone", "a", call=2) == [0]
    await q.everything_ends()
    assert await q.insert("alone", "a", call=2) == [0]
    assert list(await q.everything()) == [RECORD]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_a_closed_queue_refused_is_stored_when_it_comes_again(q: EveryWay, way: str) -> None:
    await q.insert(way, "first", call=6)
    await q.client.set(q.key("closed"), "1")
    assert await q.insert(way, "a", call=7) == [-4]
    assert await q.insert(way, "first", call=6) in ([1], [-5])
    await q.client.delete(q.key("closed"))
    assert await q.insert(way, "a", call=7) == [1]
    assert q.task("a") in await q.everything()


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_sent_again_is_recognised_although_the_queue_was_closed_meanwhile(q: EveryWay, way: str) -> None:
    await q.insert(way, "a", call=7)
    await q.client.set(q.key("closed"), "1")
    assert await q.insert(way, "a", call=7) == [1]


@pytest.mark.parametrize("known", [b"", b"000000000006  z"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_redis_refused_leaves_no_record(q: EveryWay, way: str, known: bytes) -> None:
    """Its error may get lost on the way: sent again, it must not count as stored."""
    place = {"schedule": "scheduled", "group": "groups"}.get(way, "pending")
    await q.client.set(q.key(place), "wrong")
    if known:
        await q.client.set(RECORD, known, ex=40)
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.insert(way, "a", call=7)
    assert await q.everything() == before
    await q.client.delete(q.key(place))
    assert await q.insert(way, "a", call=7) == [1]
    assert q.task("a") in await q.everything()


@pytest.mark.parametrize("product", PRODUCTS)
async def test_a_call_that_the_server_has_no_memory_for_leaves_no_record(
    new_server: Callable[..., RealServer], product: str
) -> None:
    server = new_server("--maxmemory", "1", product=product)
    store = Store(connect(server.url))
    with server.client() as client:
        q = EveryWay(store.redis, client)
        for way in WAYS:
            with pytest.raises(CommandRefused, match="OOM"):
                await q.insert(way, "a", call=7)
        assert client.keys("*") == []
    await store.close()


async def test_a_record_of_a_wrong_type_stops_a_call_before_the_first_write(q: EveryWay) -> None:
    await q.client.rpush(RECORD, "x")
    before = await q.everything()
    for way in WAYS:
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await q.insert(way, "a", call=7)
    assert await q.everything() == before


@pytest.mark.parametrize("task_id", ["a b", "7 1,0 x", "", "ü\n%d"])
async def test_any_task_id_is_told_from_another(q: EveryWay, task_id: str) -> None:
    for way in WAYS:
        await q.client.flushdb()
        assert await q.insert(way, task_id, call=7) == [1]
        assert await q.insert(way, task_id, call=7) == [1]
        assert await q.insert(way, task_id + "x", call=7) == [-5]


async def test_numbers_are_compared_as_numbers(q: EveryWay) -> None:
    for call in (9, 10, 99, 100, 10**11):
        assert await q.insert("alone", f"a{call}", call=call) == [1]
    assert await q.insert("alone", "late", call=10**11 - 1) == [-5]


@pytest.mark.parametrize("state", ["archived", "completed"])
async def test_a_replacement_sent_again_replaces_nothing(q: Queue, state: str) -> None:
    await ended(q, state)
    assert await replace(q, number="000000000007") == 1
    before = await q.everything()
    assert await replace(q, number="000000000007") == 1, "it waits"
    assert await q.everything() == before
    await q.client.delete(q.key("pending"), q.task("a"))
    before = await q.everything()
    assert await replace(q, number="000000000007") == 1, "it has ended"
    assert await q.everything() == before
    assert await replace(q, number="000000000006") == -5
    assert await q.everything() == before


async def test_a_replacement_that_was_refused_leaves_no_record(q: Queue) -> None:
    await ended(q, "archived")
    await q.client.set(q.key("pending"), "wrong")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await replace(q, number="000000000007")
    assert await q.client.exists(RECORD) == 0
    await q.client.delete(q.key("pending"))
    assert await replace(q, number="000000000007") == 1
    assert await q.pending() == ["a"]
