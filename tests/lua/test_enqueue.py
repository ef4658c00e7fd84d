"""enqueue: new tasks at the back of pending."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


def task(message: str, **more: str) -> Key:
    return Key("hash", {"msg": message, "state": "pending", "pending_since": f"{NOW}000000", **more}, "none")


async def test_a_batch_is_stored_whole_and_in_order(q: Queue) -> None:
    before = await q.everything()
    assert await q.enqueue(("a", b"A"), ("b", b"\xff\x00"), ("c", b"C")) == [1, 1, 1]
    assert differences(before, await q.everything()) == {
        q.key("pending"): Key("list", ["c", "b", "a"], "none"),
        q.task("a"): task("A"),
        q.task("b"): task("\udcff\x00"),
        q.task("c"): task("C"),
    }


async def test_later_batches_stand_behind_earlier_ones(q: Queue) -> None:
    await q.enqueue("a", "b")
    await q.enqueue("c")
    assert await q.pending() == ["a", "b", "c"]


async def test_pending_since_is_the_servers_clock_in_nanoseconds(q: Queue) -> None:
    seconds, micros = await q.client.time()
    await q.enqueue("a", now=None)
    later_seconds, later_micros = await q.client.time()
    since = int((await q.fields("a"))["pending_since"])
    assert (seconds * 10**6 + micros) * 1000 <= since <= (later_seconds * 10**6 + later_micros) * 1000


async def test_an_id_that_exists_is_refused_and_changes_nothing(q: Queue) -> None:
    await q.enqueue(("a", b"first"))
    before = await q.everything()
    assert await q.enqueue(("a", b"second")) == [0]
    assert await q.everything() == before


async def test_an_id_twice_in_a_batch_is_stored_once(q: Queue) -> None:
    assert await q.enqueue(("a", b"1"), ("a", b"2"), ("b", b"3")) == [1, 0, 1]
    assert await q.pending() == ["a", "b"]
    assert (await q.fields("a"))["msg"] == "1"


async def test_a_task_key_of_a_wrong_type_counts_as_taken(q: Queue) -> None:
    await q.client.set(q.task("a"), "x")
    before = await q.everything()
    assert await q.enqueue(("a", b"1")) == [0]
    assert await q.everything() == before


async def test_the_unique_lock_is_taken_with_its_ttl(q: Queue) -> None:
    before = await q.everything()
    assert await q.enqueue(("a", b"A", LOCK, 3000, "")) == [1]
    assert differences(before, await q.everything()) == {
        q.key("pending"): Key("list", ["a"], "none"),
        q.task("a"): task("A", unique_key=LOCK),
        LOCK: Key("string", "a", "minutes"),
    }
    assert 2990 < await q.client.ttl(LOCK) <= 3000


async def test_a_held_lock_refuses_the_task_and_nothing_else_of_the_batch(q: Queue) -> None:
    await q.enqueue(("a", b"A", LOCK, 3000, ""))
    before = await q.everything()
    assert await q.enqueue(("b", b"B", LOCK, 50, ""), ("c", b"C")) == [-1, 1]
    assert differences(before, await q.everything()) == {
        q.key("pending"): Key("list", ["c", "a"], "none"),
        q.task("c"): task("C"),
    }


async def test_the_same_lock_twice_in_a_batch_goes_to_the_first(q: Queue) -> None:
    assert await q.enqueue(("a", b"", LOCK, 60, ""), ("b", b"", LOCK, 60, "")) == [1, -1]
    assert await q.client.get(LOCK) == b"a"


async def test_an_id_conflict_leaks_no_lock(q: Queue) -> None:
    await q.enqueue("a")
    before = await q.everything()
    assert await q.enqueue(("a", b"", LOCK, 60, "")) == [0]
    assert await q.everything() == before


async def test_a_lock_of_a_wrong_type_refuses_only_its_task(q: Queue) -> None:
    await q.client.rpush(LOCK, "x")
    assert await q.enqueue(("a", b"", LOCK, 60, ""), "b") == [-1, 1]
    assert await q.pending() == ["b"]


@pytest.mark.parametrize(("expires", "stored"), [("+1500", NOW + 1500), (str(NOW + 7), NOW + 7)])
async def test_expires_is_stored_as_an_absolute_instant(q: Queue, expires: str, stored: int) -> None:
    await q.enqueue(("a", b"", "", 0, expires), "b")
    assert (await q.fields("a"))["expires_at"] == str(stored)
    assert "expires_at" not in await q.fields("b")


async def test_the_shortest_lock_lives_a_second(q: Queue) -> None:
    assert await q.enqueue(("a", b"", LOCK, 1)) == [1]
    assert await q.client.pttl(LOCK) <= 1000


@pytest.mark.parametrize("bad_ttl", [0, -1, 1.5, 10**12, "x", ""])
async def test_a_lock_time_that_redis_refuses_strands_nobody_of_the_batch(q: Queue, bad_ttl: object) -> None:
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.enqueue("a", ("b", b"", LOCK, bad_ttl, ""))
    assert await q.everything() == before


async def test_pending_of_a_wrong_type_stops_it_before_the_first_write(q: Queue) -> None:
    await q.client.set(q.key("pending"), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.enqueue(("a", b"", LOCK, 60, ""), "b")
    assert await q.everything() == before


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    assert await q.enqueue(*ids) == [1] * 5000
    assert await q.pending() == ids


@VALKEY_ONLY
async def test_nanoseconds_have_all_their_digits_early_in_a_second_too(q: Queue) -> None:
    """Where the microseconds begin with a zero."""

    async def early() -> bool:
        _, before = await q.client.time()
        await q.enqueue("alone", now=None)
        await q.enqueue("first", "second", now=None)
        _, after = await q.client.time()
        hit = bool(before <= after < 100_000)
        if not hit:
            await q.client.flushall()
        return hit

    await until(early, what="a call in the first tenth of a second")
    seconds, _ = await q.client.time()
    for task_id in ("alone", "first"):
        assert abs(int((await q.fields(task_id))["pending_since"]) / 1e9 - seconds) < 60
