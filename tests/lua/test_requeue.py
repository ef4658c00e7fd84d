"""requeue: tasks given back unrun, to the front of pending."""

from __future__ import annotations

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from veredus.errors import CommandRefused


async def test_a_batch_is_next_to_run_in_the_order_given(q: Queue) -> None:
    await q.activate("a", "b", "c")
    await q.enqueue("later")
    before = await q.everything()
    assert await q.requeue("a", "c", now=NOW + 700) == []
    after = await q.everything()
    given_back = Key("hash", {"msg": "", "state": "pending", "pending_since": f"{NOW + 700}000000"}, "none")
    assert differences(before, after) == {
        q.key("active"): Key("list", ["b"], "none"),
        q.key("lease"): Key("zset", {"b": after[q.task("b")].value["held"].rpartition(":")[2]}, "none"),
        q.key("pending"): Key("list", ["later", "c", "a"], "none"),
        q.task("a"): given_back,
        q.task("c"): given_back,
    }
    assert (await q.dequeue(3, number=2))[0] == ["a", "c", "later"]


async def test_nothing_is_counted(q: Queue) -> None:
    await q.activate("a")
    await q.requeue("a")
    assert not [name for name in await q.everything() if "processed" in name or "failed" in name]


@FENCES
async def test_what_is_not_the_workers_own_stays_untouched_and_is_reported(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    assert await q.requeue(("a", owner)) == [1]
    assert await q.everything() == before


@FENCES
async def test_the_rest_of_the_batch_is_given_back(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    await q.activate("b", "c", owner="z:1")
    assert await q.requeue(("b", "z:1"), ("a", owner), ("c", "z:1"), ("nobody", "z:1")) == [2, 4]
    assert await q.pending() == ["b", "c"]


async def test_an_id_twice_is_given_back_once(q: Queue) -> None:
    await q.activate("a")
    assert await q.requeue("a", "a") == [1]
    assert await q.pending() == ["a"]


@pytest.mark.parametrize("name", ["active", "lease", "pending"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.activate("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.requeue("a", "b")
    assert await q.everything() == before


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    await q.activate(*ids)
    assert await q.requeue(*ids) == []
    assert await q.pending() == ids
