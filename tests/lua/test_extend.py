"""extend: leases of running tasks are prolonged, an unclaimed expired one comes back to life."""

from __future__ import annotations

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import LEASE_END, LEASE_MS, NOW, Queue, differences
from veredus.errors import CommandRefused


async def test_a_batch_is_prolonged_each_by_its_own_time(q: Queue) -> None:
    await q.activate("a", "b", "c")
    before = await q.everything()
    assert await q.extend(("a", "w:1", 12_000), ("b", "w:1", 3_500), now=NOW + 4000) == []
    assert differences(before, await q.everything()) == {
        q.key("lease"): Key("zset", {"a": "4000000017", "b": "4000000008", "c": str(LEASE_END)}, "none"),
        q.task("a"): Key("hash", {"msg": "", "state": "active", "held": "w:1:4000000017"}, "none"),
        q.task("b"): Key("hash", {"msg": "", "state": "active", "held": "w:1:4000000008"}, "none"),
    }


async def test_a_prolonged_lease_can_be_settled(q: Queue) -> None:
    await q.activate("a")
    await q.extend("a", now=NOW + 4000)
    assert await q.done("a", now=NOW + 5000) == []


@FENCES
async def test_what_is_not_the_workers_own_stays_untouched_and_is_reported(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    assert await q.extend(("a", owner), now=NOW + 20_000) == [1]
    assert await q.everything() == before


@FENCES
async def test_the_rest_of_the_batch_is_prolonged(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    await q.activate("b", owner="z:1")
    assert await q.extend(("a", owner), ("b", "z:1"), ("nobody", "z:1"), now=NOW + 4000) == [1, 3]
    assert (await q.scores("lease"))["b"] == LEASE_END + 4


async def test_an_expired_lease_that_nobody_claimed_comes_back_to_life(q: Queue) -> None:
    await q.activate("a")
    late = NOW + LEASE_MS + 60_000
    assert await q.extend("a", now=late) == []
    assert await q.recover(now=late) == (True, [], [])
    assert await q.done("a", now=late) == []


async def test_a_claimed_lease_does_not(q: Queue) -> None:
    await q.activate("a")
    late = NOW + LEASE_MS + 1000
    assert len((await q.recover(now=late))[1]) == 1
    before = await q.everything()
    assert await q.extend("a", now=late + 1) == [1]
    assert await q.everything() == before


async def test_lease_of_a_wrong_type_stops_it_before_the_first_write(q: Queue) -> None:
    await q.activate("a")
    await q.client.delete(q.key("lease"))
    await q.client.set(q.key("lease"), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.extend("a")
    assert await q.everything() == before


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    await q.activate(*ids)
    assert await q.extend(*ids, now=NOW + 4000) == []
    assert set((await q.scores("lease")).values()) == {LEASE_END + 4}
