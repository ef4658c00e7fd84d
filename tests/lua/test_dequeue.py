"""dequeue: tasks handed out, each active, leased and owned; a repeated request gets the same batch."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key
from tests.support.queue import LEASE_END, LEASE_MS, NOW, Queue, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


def active_task(message: str, owner: str = "w:1") -> Key:
    fields = {"msg": message, "state": "active", "held": f"{owner}:{LEASE_END}"}
    return Key("hash", fields, "none")


async def test_a_batch_is_active_leased_and_owned(q: Queue) -> None:
    await q.enqueue(("a", b"A"), ("b", b"B\xff"), ("c", b"C"))
    before = await q.everything()
    ids, reply = await q.dequeue(2)
    assert ids == ["a", "b"]
    assert reply == [
        NOW,
        str(LEASE_END).encode(),
        1,
        [b"a", b"A", b"b", b"B\xff"],
        [],
        [],
        -1,
        1,
        [b"", b"", b""],
        [],
        [],
        [0, 0],
        0,
    ]
    assert differences(before, await q.everything()) == {
        q.key("pending"): Key("list", ["c"], "none"),
        q.key("active"): Key("list", ["b", "a"], "none"),
        q.key("lease"): Key("zset", {"a": str(LEASE_END), "b": str(LEASE_END)}, "none"),
        q.key("batch:w"): Key("string", "1", "minutes"),
        q.task("a"): active_task("A"),
        q.task("b"): active_task("B\udcff"),
    }


async def test_what_is_left_of_thousands_of_tasks_is_deleted_to_the_last(q: Queue) -> None:
    """Keys are deleted in portions, because Lua can pass on only so many arguments."""
    ids = [str(number) for number in range(2001)]
    await q.enqueue(*ids)
    async with q.client.pipeline(transaction=False) as pipe:
        for task_id in ids:
            pipe.hdel(q.task(task_id), "msg")
        await pipe.execute()
    taken, reply = await q.dequeue(3000)
    assert (taken, len(reply[4]) // 2) == ([], 2001)
    assert await q.client.keys(f"{q.prefix}*") == []


async def test_a_batch_of_plain_tasks_is_read_in_one_piece(q: Queue) -> None:
    await q.enqueue(*[str(n) for n in range(300)])
    await q.client.config_resetstat()
    ids, _ = await q.dequeue(300)
    calls = (await q.client.info("commandstats"))["cmdstat_lrange"]["calls"]
    assert (len(ids), calls) == (300, 1)


async def test_the_leases_of_a_batch_have_an_index_and_nothing_is_left_of_making_it(q: Queue) -> None:
    await q.enqueue(*[str(n) for n in range(30)])
    ids, _ = await q.dequeue(10)
    assert await q.client.object("ENCODING", q.key("lease")) == b"skiplist"
    assert await q.scores("lease") == dict.fromkeys(ids, LEASE_END)
    await q.client.config_resetstat()
    await q.dequeue(10, number=2)
    calls = await q.client.info("commandstats")
    assert calls["cmdstat_zadd"]["calls"] == 1, "it is made once"


async def test_how_long_each_task_of_a_batch_was_pending(q: Queue) -> None:
    await q.enqueue("a", "b", now=NOW - 3000)
    await q.enqueue("c", now=NOW - 20)
    await q.enqueue("d", "e", "f", now=NOW - 3000)
    await q.client.hdel(q.task("e"), "pending_since")
    await q.client.hset(q.task("f"), "pending_since", "later")
    _, reply = await q.dequeue(6)
    assert reply[11] == [3000, 3000, 20, 3000, -1, NOW]


async def test_first_in_first_out_over_several_calls(q: Queue) -> None:
    await q.enqueue(*"abcdefg")
    taken = [(await q.dequeue(3, number=number))[0] for number in (1, 2, 3, 4)]
    assert taken == [["a", "b", "c"], ["d", "e", "f"], ["g"], []]


async def test_an_empty_queue_gives_nothing_and_writes_nothing(q: Queue) -> None:
    before = await q.everything()
    ids, reply = await q.dequeue(5)
    assert (ids, reply[2]) == ([], 0)
    assert await q.everything() == before


async def test_the_lease_counts_from_the_servers_clock(q: Queue) -> None:
    await q.enqueue("a")
    seconds, _ = await q.client.time()
    _, reply = await q.dequeue(now=None)
    later, _ = await q.client.time()
    assert seconds + 12 <= int(reply[1]) <= later + 13
    assert seconds * 1000 <= reply[0] <= (later + 1) * 1000


async def test_a_paused_queue_gives_nothing(q: Queue) -> None:
    await q.enqueue("a")
    await q.client.set(q.key("paused"), "1")
    before = await q.everything()
    ids, reply = await q.dequeue()
    assert (ids, reply[2]) == ([], -1)
    assert await q.everything() == before


async def test_a_dangling_id_is_dropped_and_the_rest_handed_out(q: Queue) -> None:
    await q.enqueue("a", "b", "c")
    await q.client.delete(q.task("a"))
    await q.client.hdel(q.task("b"), "msg")
    before = await q.everything()
    ids, reply = await q.dequeue(3)
    assert ids == ["c"]
    assert reply[4] == [b"a", b"dangling", b"b", b"dangling"]
    assert differences(before, await q.everything()) == {
        q.key("pending"): None,
        q.key("active"): Key("list", ["c"], "none"),
        q.key("lease"): Key("zset", {"c": str(LEASE_END)}, "none"),
        q.key("batch:w"): Key("string", "1", "minutes"),
        q.task("b"): None,
        q.task("c"): active_task(""),
    }


async def test_dropped_ones_are_made_up_for_in_the_same_call(q: Queue) -> None:
    await q.enqueue(*"abcdef")
    for task_id in "acd":
        await q.client.delete(q.task(task_id))
    ids, _ = await q.dequeue(3)
    assert ids == ["b", "e", "f"]


async def test_a_task_key_of_a_wrong_type_is_dropped_and_left_as_it_is(q: Queue) -> None:
    await q.enqueue("a", "b")
    await q.client.delete(q.task("a"))
    await q.client.set(q.task("a"), "x")
    ids, reply = await q.dequeue(2)
    assert (ids, reply[4]) == (["b"], [b"a", b"wrongtype"])
    assert await q.client.get(q.task("a")) == b"x"
    assert await q.active() == ["b"]


async def test_an_id_twice_in_pending_runs_once(q: Queue) -> None:
    await q.enqueue("a", "b")
    await q.client.lpush(q.key("pending"), "a")
    ids, reply = await q.dequeue(3)
    assert (ids, reply[4]) == (["a", "b"], [b"a", b"duplicate"])
    assert await q.active() == ["b", "a"]


async def test_an_id_that_is_pending_and_active_is_not_handed_out_again(q: Queue) -> None:
    await q.activate("a")
    await q.client.lpush(q.key("pending"), "a")
    ids, reply = await q.dequeue(1, worker="x")
    assert (ids, reply[4]) == ([], [b"a", b"duplicate"])
    assert await q.fields("a") == {"msg": "", "state": "active", "held": f"w:1:{LEASE_END}"}
    assert await q.pending() == []


@pytest.mark.parametrize("settle", ["retry", "archive", "complete"])
async def test_an_id_that_is_pending_and_elsewhere_is_not_handed_out(q: Queue, settle: str) -> None:
    await q.activate("a")
    assert await getattr(q, settle)("a") == []
    await q.client.lpush(q.key("pending"), "a")
    before = await q.everything()
    ids, reply = await q.dequeue(1, worker="x")
    assert (ids, reply[4]) == ([], [b"a", b"duplicate"])
    assert differences(before, await q.everything()) == {
        q.key("pending"): None,
        q.key("batch:x"): Key("string", "1", "minutes"),
    }


async def test_a_state_that_its_container_belies_does_not_lose_the_task(q: Queue) -> None:
    await q.enqueue("a", "b", "c")
    await q.client.hset(q.task("a"), "state", "active")
    await q.client.hset(q.task("b"), "state", "retry")
    await q.client.hdel(q.task("c"), "state")
    ids, _ = await q.dequeue(3)
    assert ids == ["a", "b", "c"]


async def test_what_expired_is_deleted_with_its_lock(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, "+100"), ("b", b"", "", 0, "+101"))
    before = await q.everything()
    ids, reply = await q.dequeue(2, now=NOW + 100)
    assert (ids, reply[4]) == (["b"], [b"a", b"expired"])
    changed = differences(before, await q.everything())
    assert changed[LOCK] is None
    assert changed[q.task("a")] is None
    assert await q.active() == ["b"]


async def test_the_lock_of_another_task_survives_an_expired_one(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, "+100"))
    await q.client.set(LOCK, "other")
    await q.dequeue(1, now=NOW + 100)
    assert await q.client.get(LOCK) == b"other"


@pytest.mark.parametrize("name", ["pending", "active", "lease"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.enqueue("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.dequeue(2)
    assert await q.everything() == before


async def test_asked_again_it_hands_out_the_same_batch_with_a_new_lease(q: Queue) -> None:
    await q.enqueue(*"abcd")
    _, first = await q.dequeue(2)
    before = await q.everything()
    ids, again = await q.dequeue(2, again=1, now=NOW + 3000)
    assert ids == ["a", "b"]
    assert again[2] == first[2] == 2
    later = str(LEASE_END + 3)
    changed = differences(before, await q.everything())
    assert set(changed) == {q.key("lease"), q.task("a"), q.task("b")}
    assert changed[q.key("lease")] == Key("zset", {"a": later, "b": later}, "none")
    assert (await q.fields("a"))["held"] == f"w:1:{later}"
    assert dict(zip(again[3][::2], again[3][1::2], strict=True)) == {b"a": b"", b"b": b""}


async def test_asked_again_for_a_batch_that_never_was_it_hands_out_a_new_one(q: Queue) -> None:
    await q.enqueue("a")
    ids, _ = await q.dequeue(1, again=1)
    assert ids == ["a"]


async def test_a_first_request_that_arrives_after_its_repetition_leases_nothing_new(q: Queue) -> None:
    await q.enqueue(*"abcd")
    ids, _ = await q.dequeue(1, number=7, again=1)
    assert ids == ["a"]
    late, _ = await q.dequeue(1, number=7, again=0)
    assert late == ["a"]
    assert await q.active() == ["a"]


async def test_an_empty_repetition_also_shuts_out_the_first_request(q: Queue) -> None:
    assert (await q.dequeue(1, number=7, again=1))[0] == []
    await q.enqueue("a")
    assert (await q.dequeue(1, number=7, again=0))[0] == []
    assert (await q.dequeue(1, number=8))[0] == ["a"]


async def test_an_old_number_that_arrives_late_leases_nothing_new(q: Queue) -> None:
    await q.enqueue(*"abcd")
    await q.dequeue(1, number=1)
    await q.dequeue(1, number=2)
    await q.done(("a", "w:1"))
    before = await q.everything()
    ids, _ = await q.dequeue(2, number=1)
    assert ids == []
    assert await q.everything() == before


async def test_a_repetition_does_not_hand_out_what_was_settled_or_taken_over_meanwhile(q: Queue) -> None:
    await q.enqueue(*"abcd")
    await q.dequeue(4)
    await q.done("a")
    await q.retry("b")
    await q.client.zadd(q.key("lease"), {"c": LEASE_END + 30})
    ids, _ = await q.dequeue(4, again=1)
    assert ids == ["d"]


async def test_numbers_of_workers_are_their_own(q: Queue) -> None:
    await q.enqueue(*"ab")
    assert (await q.dequeue(1, worker="w", number=5))[0] == ["a"]
    assert (await q.dequeue(1, worker="x", number=1))[0] == ["b"]
    assert (await q.fields("b"))["held"] == f"x:1:{LEASE_END}"


async def test_a_repetition_of_a_paused_queue_still_gives_what_was_leased(q: Queue) -> None:
    await q.enqueue("a", "b")
    await q.dequeue(1)
    await q.client.set(q.key("paused"), "1")
    assert (await q.dequeue(1, again=1))[0] == ["a"]


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    await q.enqueue(*ids)
    taken, reply = await q.dequeue(5000, lease_ms=LEASE_MS)
    assert taken == ids
    assert reply[2] == 0
    assert await q.active() == ids[::-1]
    assert await q.scores("lease") == dict.fromkeys(ids, LEASE_END)
