"""aggregate: the new tasks come and the members go in one step, or nothing happens at all."""

from __future__ import annotations

import pytest

from tests.groups.support import SECOND, GroupQueue, member, seq
from tests.support.keyspace import PARKED, Key, breaches
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused

LOCK, OTHER = "asynq:{q}:unique:t:1", "asynq:{q}:unique:t:2"


async def staged(q: GroupQueue, *ids: str) -> None:
    await q.add(*[("g", task_id) for task_id in ids])
    await q.stage("g")


def pending(message: str, **more: str) -> Key:
    return Key("hash", {"msg": message, "state": "pending", "pending_since": f"{NOW}000000", **more}, "none")


async def test_the_set_and_its_members_become_one_task(q: GroupQueue) -> None:
    await staged(q, "a", "b")
    await q.enqueue("before")
    before = await q.everything()
    assert await q.aggregate("g", ["a", "b"], [("new", b"N")]) == (1, [1])
    assert differences(before, await q.everything()) == {
        q.set_key("g"): None,
        q.key("aggregation_sets"): None,
        q.task("a"): None,
        q.task("b"): None,
        q.key("pending"): Key("list", ["new", "before"], "none"),
        q.task("new"): pending("N"),
    }


async def test_several_tasks_stand_in_the_order_given(q: GroupQueue) -> None:
    await staged(q, "a")
    assert await q.aggregate("g", ["a"], ["n1", "n2", "n3"]) == (1, [1, 1, 1])
    assert await q.pending() == ["n1", "n2", "n3"]


async def test_no_task_at_all_drops_the_members(q: GroupQueue) -> None:
    await staged(q, "a", "b")
    assert await q.aggregate("g", ["a", "b"], []) == (1, [])
    assert await q.everything() == {}


async def test_locks_of_the_members_are_released_whoever_took_them(q: GroupQueue) -> None:
    await q.add(("g", "ours", b"", LOCK, 600))
    await q.add_like_go("g", "gos", lock=OTHER)
    await q.stage("g")
    assert await q.aggregate("g", [("ours", LOCK), ("gos", OTHER)], ["new"]) == (1, [1])
    assert await q.client.exists(LOCK, OTHER) == 0


async def test_a_lock_that_somebody_else_holds_by_now_stays(q: GroupQueue) -> None:
    await q.add(("g", "a", b"", LOCK, 600))
    await q.stage("g")
    await q.client.set(LOCK, "another")
    await q.aggregate("g", [("a", LOCK)], ["new"])
    assert await q.client.get(LOCK) == b"another"


async def test_a_second_time_nothing_happens(q: GroupQueue) -> None:
    """The reply of the first try was lost; the task may even have run meanwhile."""
    await staged(q, "a")
    await q.aggregate("g", ["a"], ["new"])
    await q.client.delete(q.task("new"), q.key("pending"))
    before = await q.everything()
    assert await q.aggregate("g", ["a"], ["new"]) == (0, [])
    assert await q.everything() == before


async def test_a_reclaimed_set_is_refused(q: GroupQueue) -> None:
    await staged(q, "a", "b")
    await q.reclaim(now=NOW + 121_000)
    before = await q.everything()
    assert await q.aggregate("g", ["a", "b"], ["new"], now=NOW + 121_000) == (0, [])
    assert await q.everything() == before


async def test_a_set_that_is_being_reclaimed_in_portions_is_refused(q: GroupQueue) -> None:
    await staged(q, "a", "b", "c")
    assert (await q.reclaim(limit=1, set_key=q.set_key("g")))[:2] == (1, 1)
    before = await q.everything()
    assert await q.aggregate("g", ["a", "b", "c"], ["new"]) == (0, [])
    assert await q.everything() == before


async def test_a_set_whose_time_is_over_but_that_nobody_reclaimed_is_still_ours(q: GroupQueue) -> None:
    await staged(q, "a")
    assert (await q.aggregate("g", ["a"], ["new"], now=NOW + 500_000))[0] == 1


async def test_a_set_that_go_reclaimed_is_refused(q: GroupQueue) -> None:
    await staged(q, "a")
    await q.client.zadd(q.key("g:g"), {"a": SECOND})
    await q.client.delete(q.set_key("g"))
    await q.client.zrem(q.key("aggregation_sets"), q.set_key("g"))
    before = await q.everything()
    assert await q.aggregate("g", ["a"], ["new"]) == (0, [])
    assert await q.everything() == before


async def test_members_that_nobody_has_seen_go_back(q: GroupQueue) -> None:
    await staged(q, "a", "b")
    assert (await q.aggregate("g", ["a"], ["new"]))[0] == 1
    assert await q.scores("g:g") == {"b": SECOND}
    assert await q.client.smembers(q.key("groups")) == {b"g"}
    assert await q.client.exists(q.key("aggregation_sets")) == 0


async def test_one_refused_task_refuses_all(q: GroupQueue) -> None:
    await q.enqueue("taken", ("holder", b"", LOCK, 600))
    await staged(q, "a", "b")
    before = await q.everything()
    tasks = ["fine", "taken", ("locked", b"", LOCK, 60), "fine", ("x", b"", OTHER, 60), ("y", b"", OTHER, 60)]
    assert await q.aggregate("g", ["a", "b"], tasks) == (-1, [1, 0, -1, 0, 1, -1])
    assert await q.everything() == before


async def test_a_task_may_take_over_the_id_and_the_lock_of_a_member(q: GroupQueue) -> None:
    await q.add(("g", "a", b"", LOCK, 600))
    await q.stage("g")
    assert await q.aggregate("g", [("a", LOCK)], [("a", b"N", LOCK, 60)]) == (1, [1])
    assert await q.client.get(LOCK) == b"a"
    assert (await q.everything())[q.task("a")] == pending("N", unique_key=LOCK)


async def test_unique_expiring_delayed_and_grouped_tasks(q: GroupQueue) -> None:
    await staged(q, "a")
    before = await q.everything()
    tasks = [
        ("unique", b"U", LOCK, 3000, "+1500"),
        ("late", b"L", OTHER, 1000, "", "+600000"),
        ("grouped", b"G", "", 0, "", "", "h"),
        ("both", b"B", "", 0, "", "+700000", "h"),
    ]
    async with q.wakeups() as heard:
        assert await q.aggregate("g", ["a"], tasks) == (1, [1, 1, 1, 1])
    assert heard == [str(NOW + 600_000)]
    assert differences(before, await q.everything()) == {
        q.set_key("g"): None,
        q.key("aggregation_sets"): None,
        q.task("a"): None,
        q.key("pending"): Key("list", ["unique"], "none"),
        q.task("unique"): pending("U", unique_key=LOCK, expires_at=str(NOW + 1500)),
        LOCK: Key("string", "unique", "minutes"),
        q.key("scheduled"): Key("zset", {"late": str(SECOND + 601), "both": str(SECOND + 701)}, "none"),
        q.key("due"): Key("zset", {"late": str(NOW + 600_000), "both": str(NOW + 700_000)}, "none"),
        q.task("both"): Key("hash", {"msg": "B", "state": "scheduled", "due_group": "h"}, "none"),
        q.task("late"): Key("hash", {"msg": "L", "state": "scheduled", "unique_key": OTHER}, "none"),
        OTHER: Key("string", "late", "minutes"),
        q.key("groups"): Key("set", {"h"}, "none"),
        q.key("g:h"): Key("zset", {"grouped": str(SECOND)}, "none"),
        q.task("grouped"): member("h", "G", 3),
    }
    assert 1590 < await q.client.ttl(OTHER) <= 1600
    assert seq(3) == (await q.fields("grouped"))["group_seq"]


@pytest.mark.parametrize("name", ["pending", "scheduled", "due", "groups", "g:h"])
async def test_a_key_of_a_wrong_type_stops_it_before_the_first_write(q: GroupQueue, name: str) -> None:
    await staged(q, "a")
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.aggregate("g", ["a"], ["new", ("grouped", b"", "", 0, "", "", "h")])
    assert await q.everything() == before


async def test_a_lock_time_that_redis_refuses_stops_it_before_the_first_write(q: GroupQueue) -> None:
    await staged(q, "a")
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.aggregate("g", ["a"], [("new", b"", LOCK, 0)])
    assert await q.everything() == before


async def test_many_thousands_of_members(q: GroupQueue) -> None:
    ids = [f"t{i}" for i in range(10_000)]
    for start in range(0, len(ids), 2500):
        await q.add(*[("g", task_id) for task_id in ids[start : start + 2500]])
    await q.stage("g")
    assert sorted((await q.read("g"))[1]) == sorted(ids)
    assert await q.aggregate("g", ids, ["new"]) == (1, [1])
    await q.client.sadd("asynq:queues", "q")
    assert breaches(await q.everything()) == []
    assert await q.client.dbsize() == 3


async def test_a_waiter_of_a_member_is_told(q: GroupQueue) -> None:
    await staged(q, "a")
    await q.client.hset(q.task("a"), "waited", "channel:1")
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("channel:1")
        assert await pubsub.get_message(timeout=10)
        await q.aggregate("g", ["a"], ["new"])
        heard = await pubsub.get_message(timeout=10)
    assert heard["data"].startswith(b"done ")
    assert heard["data"].endswith(q.task("a").encode())


async def test_a_lock_that_only_the_hash_of_a_member_names_is_released(q: GroupQueue) -> None:
    await q.add(("g", "a", b"", LOCK, 600))
    await q.stage("g")
    assert await q.aggregate("g", ["a"], ["new"]) == (1, [1])
    assert await q.client.exists(LOCK) == 0


async def test_tasks_with_an_order_key_take_their_places(q: GroupQueue) -> None:
    await staged(q, "a")
    bound = ["", 0, "", "", ""]
    tasks = [("n1", b"N", *bound, "k", 1, "l"), ("n2", b"N", *bound, "k", 0, ""), ("n3", b"N", *bound, "", 0, "l")]
    assert await q.aggregate("g", ["a"], tasks) == (1, [1, 1, 1])
    assert await q.pending() == ["n1", "n3"]
    assert await q.scores("lane:k") == {"n1": 1, "n2": 2}
    assert await q.scores("scheduled") == {"n2": int(PARKED)}
    wanted = [{"order_key": "k", "order_hold": "1", "limit_key": "l"}, {"order_key": "k"}, {"limit_key": "l"}]
    for task_id, fields in zip(("n1", "n2", "n3"), wanted, strict=True):
        found = await q.fields(task_id)
        assert {name: found[name] for name in ("order_key", "order_hold", "limit_key") if name in found} == fields
