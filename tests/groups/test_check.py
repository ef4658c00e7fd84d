"""check: ripe groups, and only those, move their oldest members into a set of their own."""

from __future__ import annotations

import pytest

from tests.groups.support import MINUTE, SECOND, SET, GroupQueue
from tests.support.keyspace import Key, breaches
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused

DEADLINE = str((NOW + 120_000) // 1000 + 1)


async def test_not_ripe_says_when_it_will_be(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.add(("g", "b"), now=NOW + 5000)
    before = await q.everything()
    assert await q.check("g", now=NOW + 5000) == [(0, (SECOND + 5 + 60) * 1000)]
    assert await q.check(("g", SET, 0, 30_000, MINUTE), now=NOW + 5000) == [(0, (SECOND + 30) * 1000)]
    assert await q.check(("g", SET, 3, 0, MINUTE), now=NOW + 5000) == [(0, (SECOND + 65) * 1000)]
    assert await q.everything() == before


async def test_by_grace_all_members_move(q: GroupQueue) -> None:
    await q.add(("g:1", "a"))
    await q.add(("g:1", "b"), now=NOW + 5000)
    before = await q.everything()
    now = (SECOND + 65) * 1000
    assert await q.check("g:1", now=now - 1) == [(0, now)]
    assert await q.check("g:1", now=now) == [(1, -1)]
    assert differences(before, await q.everything()) == {
        q.key("g:g:1"): None,
        q.key("groups"): None,
        q.set_key("g:1"): Key("zset", {"a": str(SECOND), "b": str(SECOND + 5)}, "none"),
        q.key("aggregation_sets"): Key("zset", {q.set_key("g:1"): str(SECOND + 65 + 120)}, "none"),
    }


async def test_by_the_age_of_the_oldest(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.add(("g", "b"), now=NOW + 29_000)
    probe = ("g", SET, 0, 30_000, MINUTE)
    assert await q.check(probe, now=(SECOND + 30) * 1000 - 1) == [(0, (SECOND + 30) * 1000)]
    assert await q.check(probe, now=(SECOND + 30) * 1000) == [(1, -1)]
    assert set(await q.scores(f"g:g:{SET}")) == {"a", "b"}


async def test_the_clock_was_set_back(q: GroupQueue) -> None:
    """A group does not wait for as long as the clock went back; a client's clock may be ahead by a minute."""
    await q.add(("g", "a"))
    await q.add(("g", "b"), now=NOW + 600_000)
    assert await q.check("g") == [(1, -1)]
    assert set(await q.scores(f"g:g:{SET}")) == {"a", "b"}
    await q.add(("h", "c"), now=NOW + 59_000)
    assert await q.check("h") == [(0, (SECOND + 59 + 60) * 1000)]


@pytest.mark.parametrize("score", ["inf", "1e300", "9223372036854775807"])
async def test_a_member_that_joined_at_no_time_holds_up_no_group(q: GroupQueue, score: str) -> None:
    await q.add(("g", "a"), ("g", "b"))
    await q.client.zadd(q.key("g:g"), {"b": score})
    assert await q.check("g") == [(1, -1)]


async def test_by_size_the_rest_stays_and_is_named(q: GroupQueue) -> None:
    await q.add(*[("g", f"t{i}") for i in range(5)])
    before = await q.everything()
    assert await q.check(("g", SET, 2, 0, MINUTE)) == [(1, NOW)]
    assert differences(before, await q.everything()) == {
        q.key("g:g"): Key("zset", dict.fromkeys(["t2", "t3", "t4"], str(SECOND)), "none"),
        q.set_key("g"): Key("zset", dict.fromkeys(["t0", "t1"], str(SECOND)), "none"),
        q.key("aggregation_sets"): Key("zset", {q.set_key("g"): DEADLINE}, "none"),
    }
    assert await q.check(("g", "second", 2, 0, MINUTE)) == [(1, (SECOND + 60) * 1000)]
    assert await q.check(("g", "third", 2, 0, MINUTE)) == [(0, (SECOND + 60) * 1000)]
    assert await q.client.smembers(q.key("groups")) == {b"g"}


@pytest.mark.parametrize("size", [2, 3])
async def test_a_group_that_was_emptied_by_size_is_no_longer_named(q: GroupQueue, size: int) -> None:
    await q.add(*[("g", f"t{i}") for i in range(size)])
    await q.check(("g", SET, size, 0, MINUTE))
    assert await q.client.exists(q.key("groups")) == 0


async def test_a_cut_through_a_second_goes_by_arrival(q: GroupQueue) -> None:
    """The ids are in the opposite order: ranks would give the last ones first."""
    for i in range(9):
        await q.add(("g", f"t{9 - i}"), now=NOW + i)
    await q.add(("g", "t0"), now=NOW + 1000)
    await q.check(("g", "one", 4, 0, MINUTE))
    await q.check(("g", "two", 4, 0, MINUTE))
    assert (await q.read("g", "one"))[1] == ["t9", "t8", "t7", "t6"]
    assert (await q.read("g", "two"))[1] == ["t5", "t4", "t3", "t2"]
    assert set(await q.scores("g:g")) == {"t1", "t0"}


async def test_go_members_of_the_same_second_follow_by_id(q: GroupQueue) -> None:
    await q.add_like_go("g", "a2")
    await q.add_like_go("g", "a1")
    await q.add(("g", "z"), ("g", "y"))
    await q.check(("g", SET, 3, 0, MINUTE))
    assert (await q.read("g"))[1] == ["z", "y", "a1"]


async def test_without_a_size_a_set_is_bounded_all_the_same(q: GroupQueue) -> None:
    await q.add(*[("g", f"t{i}") for i in range(5)])
    now = NOW + 2 * MINUTE
    assert await q.check("g", most=3, now=now) == [(1, (SECOND + 60) * 1000)]
    assert await q.client.zcard(q.set_key("g")) == 3
    assert await q.check(("g", "rest", 0, 0, MINUTE), most=3, now=now) == [(1, -1)]


async def test_never_more_sets_than_the_limit(q: GroupQueue) -> None:
    await q.add(*[(f"g{i}", f"t{i}") for i in range(4)])
    probes = [(f"g{i}", f"s{i}", 0, 0, 1000) for i in range(4)]
    answers = await q.check(*probes, limit=2, now=NOW + 1000)
    assert [code for code, _ in answers] == [1, 1, 2, 2]
    assert await q.client.smembers(q.key("groups")) == {b"g2", b"g3"}
    assert await q.client.zcard(q.key("aggregation_sets")) == 2


async def test_asked_again_it_gives_the_same_set(q: GroupQueue) -> None:
    """The reply of the first try was lost."""
    await q.add(("g", "a"), ("g", "b"), ("g", "c"))
    assert await q.check(("g", SET, 2, 0, MINUTE)) == [(1, (SECOND + 60) * 1000)]
    before = await q.everything()
    assert await q.check(("g", SET, 1, 0, MINUTE)) == [(1, NOW)]
    assert await q.everything() == before


async def test_a_name_without_members_is_removed(q: GroupQueue) -> None:
    await q.client.sadd(q.key("groups"), "empty", "g")
    await q.add(("g", "a"))
    assert await q.check("empty", ("g", SET, 0, 0, MINUTE)) == [(-1, -1), (0, (SECOND + 60) * 1000)]
    assert await q.client.smembers(q.key("groups")) == {b"g"}


async def test_a_damaged_group_holds_up_nobody(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.client.sadd(q.key("groups"), "bad")
    await q.client.set(q.key("g:bad"), "x")
    assert await q.check("bad", ("g", SET, 0, 0, 1000), now=NOW + 1000) == [(-2, -1), (1, -1)]
    assert await q.client.get(q.key("g:bad")) == b"x"


@pytest.mark.parametrize("name", ["groups", "aggregation_sets"])
async def test_a_shared_key_of_a_wrong_type_stops_it_before_the_first_write(q: GroupQueue, name: str) -> None:
    await q.add(("g", "a"))
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.check(("g", SET, 1, 0, MINUTE))
    assert await q.everything() == before


async def test_many_thousands_in_one_set(q: GroupQueue) -> None:
    for start in range(0, 12_000, 3000):
        await q.add(*[("g", f"t{i:05}") for i in range(start, start + 3000)], now=NOW + start)
    await q.client.sadd("asynq:queues", "q")
    assert (await q.check(("g", SET, 11_000, 0, MINUTE), now=NOW + 12_000))[0][0] == 1
    assert await q.client.zcard(q.set_key("g")) == 11_000
    assert breaches(await q.everything()) == []


async def test_the_servers_clock_decides(q: GroupQueue) -> None:
    await q.add(("g", "a"), now=None)
    (code, due), (now, _) = (await q.check(("g", SET, 0, 0, 1000), now=None))[0], await q.client.time()
    assert (code, due // 1000 - now in (0, 1)) == (0, True) or code == 1


async def test_a_set_that_is_asked_for_again_counts_as_one_of_those_made(q: GroupQueue) -> None:
    await q.add(("g", "a"), ("h", "b"))
    await q.stage("g")
    ripe = [(group, SET, 0, 0, 0) for group in ("g", "h")]
    assert [code for code, _ in await q.check(*ripe, limit=1)] == [1, 2]
    assert [code for code, _ in await q.check(*ripe, limit=2)] == [1, 1]


async def test_a_cut_through_a_second_with_very_many_members(q: GroupQueue) -> None:
    """More than are looked at otherwise: as many as it needs."""
    await q.add(*[("g", f"t{n:04}") for n in range(2200)])
    assert (await q.check(("g", SET, 2100, 0, MINUTE)))[0][0] == 1
    assert sorted(await q.scores(f"g:g:{SET}")) == [f"t{n:04}" for n in range(2100)]
