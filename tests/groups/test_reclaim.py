"""reclaim: sets whose time is over go back to their groups, which are named again; nothing is ever stranded."""

from __future__ import annotations

import pytest

from tests.groups.support import SECOND, GroupQueue, member
from tests.support.keyspace import Key, breaches
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused
from veredus.store.tasks import groups

OVER = (SECOND + 121) * 1000
"""When the time of a set made at NOW is over."""


async def test_a_stale_set_goes_back_with_its_scores_and_its_group_is_named(q: GroupQueue) -> None:
    await q.add(("g:1:x", "a"))
    await q.add(("g:1:x", "b"), now=NOW + 1000)
    before = await q.everything()
    await q.stage("g:1:x", now=NOW + 1000)
    assert await q.reclaim(now=OVER + 999) == (0, 0, [])
    assert await q.reclaim(now=OVER + 1000) == (2, 0, [])
    assert await q.everything() == before


async def test_new_members_of_the_group_stay_behind_the_old(q: GroupQueue) -> None:
    await q.add(("g", "b"))
    await q.stage("g")
    await q.add(("g", "a"), now=NOW + 5000)
    await q.reclaim(now=OVER)
    assert await q.scores("g:g") == {"b": SECOND, "a": SECOND + 5}
    assert await q.client.exists(q.key("aggregation_sets")) == 0


async def test_a_named_set_goes_back_at_once_and_no_other(q: GroupQueue) -> None:
    await q.add(("g", "a"), ("h", "b"))
    await q.stage("g")
    await q.stage("h")
    assert await q.reclaim(set_key=q.set_key("g")) == (1, 0, [])
    assert await q.client.smembers(q.key("groups")) == {b"g"}
    assert await q.scores("aggregation_sets") == {q.set_key("h"): SECOND + 121}
    assert await q.reclaim(set_key=q.set_key("g")) == (0, 0, [])


async def test_a_set_goes_back_whole_however_many_portions_that_takes(
    q: GroupQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "RECLAIM_LIMIT", 2)
    await q.add(*[("g", f"a{i}") for i in range(5)])
    before = await q.everything()
    await q.stage("g")
    set_id = q.set_key("g").rpartition(":")[2]
    assert await groups.Groups(q.redis).give_back(q.name, "g", set_id) == 5
    assert await q.everything() == before


async def test_in_portions(q: GroupQueue) -> None:
    await q.add(*[("g", f"a{i}") for i in range(5)], *[("h", f"b{i}") for i in range(4)])
    before = await q.everything()
    await q.stage("g")
    await q.stage("h")
    steps = []
    while True:
        moved, more, _ = await q.reclaim(limit=2, now=OVER)
        steps.append(moved)
        assert breaches({**await q.everything(), "asynq:queues": Key("set", {"q"}, "none")}) == []
        if not more:
            break
    assert (sum(steps), max(steps)) == (9, 2)
    assert await q.everything() == before


async def test_a_set_that_go_made_goes_back_and_its_group_is_named(q: GroupQueue) -> None:
    """Asynq's own reclaim would leave the group out of the names until somebody joins it."""
    await q.add_like_go("user:1", "a")
    before = await q.everything()
    name = q.set_key("user:1", "75bf7014-b0cb-4bb1-aa40-608afbc41212")
    await q.client.rename(q.key("g:user:1"), name)
    await q.client.srem(q.key("groups"), "user:1")
    await q.client.zadd(q.key("aggregation_sets"), {name: SECOND - 1})
    assert await q.reclaim() == (1, 0, [])
    assert await q.everything() == before


async def test_a_set_without_members_is_only_struck_off(q: GroupQueue) -> None:
    await q.client.zadd(q.key("aggregation_sets"), {q.set_key("g"): SECOND})
    assert await q.reclaim() == (0, 0, [])
    assert await q.everything() == {}


async def test_what_cannot_go_back_is_kept_reported_and_holds_up_nobody(q: GroupQueue) -> None:
    await q.add(("g", "a"), ("bad", "b"))
    await q.stage("g")
    await q.stage("bad")
    await q.client.set(q.key("g:bad"), "x")
    await q.client.zadd(q.key("aggregation_sets"), {"nonsense": 0})
    before = await q.everything()
    moved, more, damaged = await q.reclaim(now=OVER)
    assert (moved, more) == (1, 0)
    assert damaged == ["nonsense", "no group in its name", q.set_key("bad"), "wrongtype"]
    later = str(OVER // 1000 + 120)
    assert differences(before, await q.everything()) == {
        q.set_key("g"): None,
        q.key("g:g"): Key("zset", {"a": str(SECOND)}, "none"),
        q.key("groups"): Key("set", {"g"}, "none"),
        q.key("aggregation_sets"): Key("zset", {q.set_key("bad"): later, "nonsense": later}, "none"),
    }
    assert (await q.everything())[q.task("b")] == member("bad", place=2)


@pytest.mark.parametrize("name", ["groups", "aggregation_sets"])
async def test_a_key_of_a_wrong_type_stops_it_before_the_first_write(q: GroupQueue, name: str) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.reclaim(now=OVER)
    assert await q.everything() == before


async def test_of_very_many_sets_a_hundred_at_once(q: GroupQueue) -> None:
    for n in range(130):
        await q.client.zadd(q.set_key(f"g{n}"), {f"t{n}": SECOND})
        await q.client.zadd(q.key("aggregation_sets"), {q.set_key(f"g{n}"): SECOND})
    assert await q.reclaim() == (100, 1, [])
    assert await q.reclaim() == (30, 0, [])
