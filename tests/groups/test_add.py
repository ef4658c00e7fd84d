"""add: new tasks into their groups; and schedule and forward, by which delayed ones get there."""

from __future__ import annotations

import time

import pytest

from tests.groups.support import SECOND, GroupQueue, member, seq
from tests.interop.go_peer import GoPeer
from tests.support.keyspace import Key
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


async def test_a_batch_goes_to_its_groups_with_a_sequence(q: GroupQueue) -> None:
    before = await q.everything()
    assert await q.add(("g:1", "a", b"A"), ("h", "b", b"\xff"), ("g:1", "c", b"C")) == [1, 1, 1]
    assert differences(before, await q.everything()) == {
        q.key("groups"): Key("set", {"g:1", "h"}, "none"),
        q.key("g:g:1"): Key("zset", {"a": str(SECOND), "c": str(SECOND)}, "none"),
        q.key("g:h"): Key("zset", {"b": str(SECOND)}, "none"),
        q.task("a"): member("g:1", "A", 1),
        q.task("b"): member("h", "\udcff", 2),
        q.task("c"): member("g:1", "C", 3),
    }


async def test_the_score_is_the_servers_second(q: GroupQueue) -> None:
    before, _ = await q.client.time()
    await q.add(("g", "a"), now=None)
    after, _ = await q.client.time()
    assert before <= (await q.scores("g:g"))["a"] <= after
    since = int((await q.fields("a"))["group_seq"].partition("-")[0])
    assert before * 10**9 <= since < (after + 1) * 10**9


async def test_an_id_that_exists_is_refused_and_leaks_no_lock(q: GroupQueue) -> None:
    await q.enqueue("a")
    before = await q.everything()
    assert await q.add(("g", "a", b"", LOCK, 60)) == [0]
    assert await q.everything() == before


async def test_an_id_twice_in_a_batch_is_stored_once(q: GroupQueue) -> None:
    assert await q.add(("g", "a", b"1"), ("h", "a", b"2")) == [1, 0]
    assert await q.scores("g:g") == {"a": SECOND}
    assert await q.client.exists(q.key("g:h")) == 0


async def test_the_lock_is_taken_and_named_in_the_hash(q: GroupQueue) -> None:
    before = await q.everything()
    assert await q.add(("g", "a", b"A", LOCK, 3000), ("g", "b", b"B", LOCK, 3000)) == [1, -1]
    assert differences(before, await q.everything()) == {
        q.key("groups"): Key("set", {"g"}, "none"),
        q.key("g:g"): Key("zset", {"a": str(SECOND)}, "none"),
        q.task("a"): member("g", "A", unique_key=LOCK),
        LOCK: Key("string", "a", "minutes"),
    }
    assert 2990 < await q.client.ttl(LOCK) <= 3000


@pytest.mark.parametrize(("expires", "stored"), [("+1500", NOW + 1500), (str(NOW + 7), NOW + 7)])
async def test_expires_is_stored_as_an_absolute_instant(q: GroupQueue, expires: str, stored: int) -> None:
    await q.add(("g", "a", b"", "", 0, expires))
    assert (await q.fields("a"))["expires_at"] == str(stored)


@pytest.mark.parametrize("bad_ttl", [0, -1, "x", "", 1.5])
async def test_a_lock_time_that_redis_refuses_strands_nobody(q: GroupQueue, bad_ttl: object) -> None:
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.add(("g", "a"), ("g", "b", b"", LOCK, bad_ttl))
    assert await q.everything() == before


@pytest.mark.parametrize("name", ["groups", "g:h"])
async def test_a_key_of_a_wrong_type_stops_it_before_the_first_write(q: GroupQueue, name: str) -> None:
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.add(("g", "a", b"", LOCK, 60), ("h", "b"))
    assert await q.everything() == before


async def test_five_thousand_in_one_call(q: GroupQueue) -> None:
    assert await q.add(*[(f"g{i % 7}", f"t{i}") for i in range(5000)]) == [1] * 5000
    assert sum([await q.client.zcard(q.key(f"g:g{n}")) for n in range(7)]) == 5000


async def test_schedule_keeps_the_group_in_a_field_that_go_does_not_read(q: GroupQueue) -> None:
    before = await q.everything()
    assert await q.schedule(("a", "+250", b"A", "", 0, "", "g:1"), ("b", "+250", b"B")) == [1, 1]
    found = differences(before, await q.everything())
    assert found[q.task("a")] == Key("hash", {"msg": "A", "state": "scheduled", "due_group": "g:1"}, "none")
    assert found[q.task("b")] == Key("hash", {"msg": "B", "state": "scheduled"}, "none")
    assert q.key("groups") not in found


async def test_when_due_it_joins_its_group_behind_those_already_there(q: GroupQueue) -> None:
    await q.add(("g", "z1"), now=NOW + 250)
    await q.schedule(("y", "+300", b"", "", 0, "", "g"), ("x", "+400", b"", "", 0, "", "g"))
    moved, due, _, dropped = await q.forward(now=NOW + 500)
    assert (moved, due, dropped) == (2, -1, [])
    assert (await q.fields("y"))["group_seq"] == seq(1, NOW + 500)
    await q.stage("g", now=NOW + 700)
    assert (await q.read("g"))[1] == ["z1", "y", "x"]


async def test_one_that_joins_its_group_is_like_any_other_member(q: GroupQueue) -> None:
    await q.schedule(("a", "+250", b"A", "", 0, "", "g"))
    await q.forward(now=NOW + 250)
    fields = {"msg": "A", "state": "aggregating", "group": "g", "group_seq": seq(1, NOW + 250)}
    assert await q.fields("a") == fields


async def test_one_that_an_older_version_scheduled_joins_its_group_too(q: GroupQueue) -> None:
    await q.schedule(("a", "+250", b"A"))
    await q.client.hset(q.task("a"), "group", "g")
    await q.forward(now=NOW + 250)
    assert await q.scores("g:g") == {"a": NOW // 1000}
    assert await q.client.smembers(q.key("groups")) == {b"g"}


async def test_a_member_that_go_ran_alone_and_that_fails_is_not_lost_when_go_forwards_it(q: GroupQueue) -> None:
    """Go's inspector leaves the field `group`, by which Go's forwarder would hide it in a group that is not listed."""
    await q.add(("g", "a", b"A"))
    await q.client.zrem(q.key("g:g"), "a")
    await q.client.srem(q.key("groups"), "g")
    await q.client.hset(q.task("a"), "state", "pending")
    await q.client.lpush(q.key("pending"), "a")
    assert (await q.dequeue(now=NOW))[0] == ["a"]
    assert await q.retry("a", now=NOW) == []
    go = GoPeer(q.client, "q")
    go.skew = NOW / 1000 + 60 - time.time()
    assert await go.forward() == 1
    assert await q.pending() == ["a"]


async def test_one_that_go_forwarded_runs_alone_and_joins_its_group_if_it_fails(q: GroupQueue) -> None:
    """As any member that was run alone. A Go forwarder lets it run alone again."""
    await q.schedule(("a", "+250", b"A", "", 0, "", "g"))
    go = GoPeer(q.client, "q")
    go.skew = NOW / 1000 + 1 - time.time()
    assert await go.forward() == 1
    assert await q.pending() == ["a"]
    assert (await q.dequeue(now=NOW + 1000))[0] == ["a"]
    assert await q.retry("a", now=NOW + 1000) == []
    await q.forward(now=NOW + 60_000)
    assert await q.scores("g:g") == {"a": NOW // 1000 + 60}
    assert await q.client.smembers(q.key("groups")) == {b"g"}


async def test_a_member_that_was_run_alone_and_failed_returns_to_its_group(q: GroupQueue) -> None:
    """As in Asynq: the inspector may run a member by itself; its hash keeps the group."""
    await q.add(("g", "a", b"A"))
    await q.client.zrem(q.key("g:g"), "a")
    await q.client.srem(q.key("groups"), "g")
    await q.client.hset(q.task("a"), "state", "pending")
    await q.client.lpush(q.key("pending"), "a")
    assert (await q.dequeue())[0] == ["a"]
    assert await q.retry("a") == []
    assert (await q.forward(now=NOW + 5000))[0] == 1
    assert await q.client.smembers(q.key("groups")) == {b"g"}
    assert await q.scores("g:g") == {"a": (NOW + 5000) // 1000}
    assert (await q.fields("a"))["state"] == "aggregating"
