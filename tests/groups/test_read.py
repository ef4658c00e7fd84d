"""read and archive: the members of a set in the order of their arrival, without what is no task or cannot be read."""

from __future__ import annotations

import pytest

from tests.groups.support import SECOND, SET, GroupQueue, seq
from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


async def test_members_come_by_second_then_by_arrival(q: GroupQueue) -> None:
    await q.add(("g", "z"), ("g", "m"))
    await q.add(("g", "a"), now=NOW + 1)
    await q.add(("g", "0"), now=NOW + 2000)
    await q.add_like_go("g", "y", at=SECOND - 1)
    await q.stage("g", now=NOW + 2000)
    before = await q.everything()
    assert await q.read("g") == (1, ["y", "z", "m", "a", "0"], [])
    assert await q.everything() == before


async def test_a_set_that_is_not_there_has_no_members(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.reclaim(set_key=q.set_key("g"))
    assert await q.read("g") == (0, [], [])


async def test_what_is_no_task_is_taken_out_and_reported(q: GroupQueue) -> None:
    await q.add(*[("g", name) for name in ("gone", "empty", "bad", "elsewhere", "good")])
    await q.stage("g")
    await q.client.delete(q.task("gone"), q.task("bad"))
    await q.client.set(q.task("bad"), "x")
    await q.client.hdel(q.task("empty"), "msg")
    await q.client.hset(q.task("elsewhere"), "state", "pending")
    exists, ids, dropped = await q.read("g")
    assert (exists, ids) == (1, ["good"])
    reasons = dict(zip(dropped[::2], dropped[1::2], strict=True))
    assert reasons == {"gone": "dangling", "empty": "dangling", "bad": "wrongtype", "elsewhere": "duplicate"}
    assert await q.scores(f"g:g:{SET}") == {"good": SECOND}
    assert await q.client.exists(q.task("empty")) == 0
    assert await q.client.get(q.task("bad")) == b"x"
    assert (await q.fields("elsewhere"))["state"] == "pending"


async def test_expired_members_are_deleted_with_their_lock(q: GroupQueue) -> None:
    await q.add(("g", "old", b"", LOCK, 600, "+1000"), ("g", "new", b"", "", 0, "+5000"))
    await q.stage("g")
    assert await q.read("g", now=NOW + 999) == (1, ["old", "new"], [])
    assert await q.read("g", now=NOW + 1000) == (1, ["new"], ["old", "expired"])
    assert await q.client.exists(q.task("old"), LOCK) == 0


async def test_a_set_without_any_member_left_is_gone(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.client.delete(q.task("a"))
    assert await q.read("g") == (1, [], ["a", "dangling"])
    assert await q.everything() == {}


async def test_unreadable_members_are_archived_and_the_rest_stays(q: GroupQueue) -> None:
    await q.add(("g", "a", b"A", LOCK, 600), ("g", "b", b"B"), ("g", "c", b"C"))
    await q.stage("g")
    before = await q.everything()
    assert await q.archive_members("g", ("a", "", b"stand-in", b"A"), ("b", "", b"with reason")) == 2
    fields = {"msg": "stand-in", "state": "archived", "group": "g", "group_seq": seq(), "unique_key": LOCK}
    assert differences(before, await q.everything()) == {
        q.set_key("g"): Key("zset", {"c": str(SECOND)}, "none"),
        q.key("archived"): Key("zset", {"a": str(SECOND), "b": str(SECOND)}, "none"),
        q.task("a"): Key("hash", {**fields, "original": "A"}, "none"),
        q.task("b"): Key(
            "hash", {"msg": "with reason", "state": "archived", "group": "g", "group_seq": seq(2)}, "none"
        ),
        LOCK: None,
        q.key("processed"): Key("string", "2", "none"),
        q.key("failed"): Key("string", "2", "none"),
        q.key(f"processed:{DAY}"): Key("string", "2", "days"),
        q.key(f"failed:{DAY}"): Key("string", "2", "days"),
    }


async def test_members_for_another_attempt_are_due_again_with_their_locks_and_the_rest_stays(q: GroupQueue) -> None:
    await q.add(("g", "a", b"A", LOCK, 20), ("g", "b", b"B"), ("g", "c", b"C"))
    await q.stage("g")
    before = await q.everything()
    assert await q.retry_members("g", ("a", "", b"A2", 1500), ("b", "", b"B2", 3000), "gone") == 2
    assert differences(before, await q.everything()) == {
        q.set_key("g"): Key("zset", {"c": str(SECOND)}, "none"),
        q.key("retry"): Key("zset", {"a": str(SECOND + 2), "b": str(SECOND + 4)}, "none"),
        q.key("due"): Key("zset", {"a": str(NOW + 1500), "b": str(NOW + 3000)}, "none"),
        q.task("a"): Key("hash", {"msg": "A2", "state": "retry", "due_group": "g", "unique_key": LOCK}, "none"),
        q.task("b"): Key("hash", {"msg": "B2", "state": "retry", "due_group": "g"}, "none"),
        LOCK: Key("string", "a", "minutes"),
        q.key("processed"): Key("string", "2", "none"),
        q.key("failed"): Key("string", "2", "none"),
        q.key(f"processed:{DAY}"): Key("string", "2", "days"),
        q.key(f"failed:{DAY}"): Key("string", "2", "days"),
    }
    assert 60 < await q.client.ttl(LOCK) <= 62
    assert await q.retry_members("g", "c") == 1
    assert await q.client.exists(q.set_key("g"), q.key("aggregation_sets")) == 0
    before = await q.everything()
    assert await q.retry_members("g", "c") == 0
    assert await q.everything() == before


@pytest.mark.parametrize("damaged", ["retry", "due", "aggregation_sets"])
async def test_a_key_of_a_wrong_type_stops_a_retry_before_the_first_write(q: GroupQueue, damaged: str) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.client.delete(q.key(damaged))
    await q.client.set(q.key(damaged), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.retry_members("g", "a")
    assert await q.everything() == before


async def test_the_lock_that_only_the_message_names_is_released_too(q: GroupQueue) -> None:
    await q.add_like_go("g", "a", lock=LOCK)
    await q.stage("g")
    assert await q.archive_members("g", ("a", LOCK)) == 1
    assert await q.client.exists(LOCK) == 0


async def test_the_lock_that_only_the_message_names_is_kept_for_another_attempt(q: GroupQueue) -> None:
    await q.add_like_go("g", "a", lock=LOCK)
    await q.stage("g")
    await q.client.expire(LOCK, 5)
    assert await q.retry_members("g", ("a", LOCK, b"new", 10_000)) == 1
    assert 60 < await q.client.ttl(LOCK) <= 70


async def test_the_last_one_archived_ends_the_set(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.archive_members("g", "a")
    assert await q.client.exists(q.set_key("g"), q.key("aggregation_sets")) == 0


async def test_nothing_is_archived_of_a_set_that_went_back(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.reclaim(set_key=q.set_key("g"))
    before = await q.everything()
    assert await q.archive_members("g", "a") == 0
    assert await q.everything() == before


async def test_an_archive_of_a_wrong_type_stops_it_before_the_first_write(q: GroupQueue) -> None:
    await q.add(("g", "a"))
    await q.stage("g")
    await q.client.set(q.key("archived"), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.archive_members("g", "a")
    assert await q.everything() == before


@pytest.mark.parametrize("verb", ["archived", "expired"])
async def test_a_waiter_of_a_member_that_is_not_aggregated_is_told(q: GroupQueue, verb: str) -> None:
    await q.add(("g", "a", b"", "", 0, "+1000" if verb == "expired" else ""))
    await q.stage("g")
    await q.client.hset(q.task("a"), "waited", "channel:1")
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("channel:1")
        assert await pubsub.get_message(timeout=10)
        if verb == "archived":
            assert await q.archive_members("g", "a") == 1
        else:
            assert await q.read("g", now=NOW + 1000) == (1, [], ["a", "expired"])
        heard = await pubsub.get_message(timeout=10)
    assert heard["data"].startswith(f"{verb} ".encode())
    assert "waited" not in await q.fields("a")
