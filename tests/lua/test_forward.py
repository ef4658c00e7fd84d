"""forward: what is due goes to pending, to the millisecond, in the order of the due times."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key, breaches
from tests.support.queue import NOW, Queue, differences
from veredus.errors import CommandRefused
from veredus.store.tasks.delays import ForwardReply, _forwarded

SECOND = NOW // 1000


async def put_retry(q: Queue, *rows: tuple[str, int]) -> None:
    """Tasks in retry, due so many milliseconds after NOW."""
    await q.activate(*[task_id for task_id, _ in rows])
    assert await q.retry(*[(task_id, "w:1", b"", delay, 1) for task_id, delay in rows]) == []


async def put_go(q: Queue, name: str, task_id: str, second: int, **fields: str) -> None:
    """What a Go producer or worker does: the hash, and the shared set by whole seconds."""
    await q.client.hset(q.task(task_id), mapping={"msg": "", "state": name, **fields})
    await q.client.zadd(q.key(name), {task_id: second})


async def test_exactly_what_is_due_moves(q: Queue) -> None:
    await q.schedule(("a", "+250"), ("b", "+251"))
    before = await q.everything()
    assert await q.forward(now=NOW + 249) == (0, NOW + 250, NOW + 249, [])
    assert await q.everything() == before
    assert await q.forward(now=NOW + 250) == (1, NOW + 251, NOW + 250, [])
    assert differences(before, await q.everything()) == {
        q.key("scheduled"): Key("zset", {"b": "4000000001"}, "none"),
        q.key("due"): Key("zset", {"b": str(NOW + 251)}, "none"),
        q.key("pending"): Key("list", ["a"], "none"),
        q.task("a"): Key("hash", {"msg": "", "state": "pending", "pending_since": f"{NOW + 250}000000"}, "none"),
    }
    assert await q.forward(now=NOW + 251) == (1, -1, NOW + 251, [])
    assert not {q.key("scheduled"), q.key("due")} & (await q.everything()).keys()


async def test_the_index_may_be_later_than_a_second_that_has_begun(q: Queue) -> None:
    await q.schedule(("a", str((SECOND + 1) * 1000)))
    assert (await q.forward(now=SECOND * 1000 + 999))[0] == 0
    assert (await q.forward(now=SECOND * 1000 + 1000))[0] == 1


async def test_nothing_waits(q: Queue) -> None:
    assert await q.forward() == (0, -1, NOW, [])
    assert await q.everything() == {}


async def test_a_retry_moves_as_a_scheduled_task_does(q: Queue) -> None:
    await put_retry(q, ("a", 100))
    assert await q.forward(now=NOW + 99) == (0, NOW + 100, NOW + 99, [])
    assert await q.forward(now=NOW + 100) == (1, -1, NOW + 100, [])
    assert await q.fields("a") == {"msg": "", "state": "pending", "pending_since": f"{NOW + 100}000000"}
    assert await q.scores("retry") == {}


async def test_the_order_is_that_of_the_due_times_over_both_sets(q: Queue) -> None:
    await put_retry(q, ("r1", 10), ("r3", 30))
    await q.schedule(("s2", "+20"), ("s4", "+40"), ("s0", "+5"))
    await put_go(q, "scheduled", "go-past", SECOND - 1)
    await put_go(q, "retry", "go-now", SECOND)
    assert (await q.forward(now=NOW + 50))[0] == 7
    assert await q.pending() == ["go-past", "go-now", "s0", "r1", "s2", "r3", "s4"]


async def test_go_entries_move_by_whole_seconds(q: Queue) -> None:
    await put_go(q, "scheduled", "s", SECOND + 1)
    await put_go(q, "retry", "r", SECOND + 1)
    assert await q.forward(now=SECOND * 1000 + 999) == (0, SECOND * 1000 + 1000, SECOND * 1000 + 999, [])
    assert (await q.forward(now=SECOND * 1000 + 1000))[0] == 2
    assert await q.pending() == ["r", "s"]


async def test_an_index_entry_of_a_task_that_go_retried_is_dropped_and_does_not_run_it_early(q: Queue) -> None:
    await q.schedule(("a", "+100"))
    await q.client.zrem(q.key("scheduled"), "a")
    await put_go(q, "retry", "a", SECOND + 60)
    assert await q.forward(now=NOW + 200) == (0, (SECOND + 60) * 1000, NOW + 200, [])
    assert await q.scores("due") == {}
    assert await q.scores("retry") == {"a": SECOND + 60}
    assert await q.forward(now=(SECOND + 60) * 1000) == (1, -1, (SECOND + 60) * 1000, [])


async def test_an_index_entry_of_a_task_that_is_long_gone_is_dropped(q: Queue) -> None:
    await q.client.zadd(q.key("due"), {"ghost": NOW - 1})
    assert await q.forward() == (0, -1, NOW, [])
    assert await q.everything() == {}


async def test_a_stale_entry_of_the_future_waits_for_its_time(q: Queue) -> None:
    await q.client.zadd(q.key("due"), {"ghost": NOW + 1})
    assert await q.forward() == (0, NOW + 1, NOW, [])
    assert await q.forward(now=NOW + 1) == (0, -1, NOW + 1, [])


async def test_a_task_whose_index_entry_was_lost_still_moves(q: Queue) -> None:
    await q.schedule(("a", "+100"))
    await q.client.delete(q.key("due"))
    assert (await q.forward(now=(SECOND + 1) * 1000 - 1))[0] == 0
    assert (await q.forward(now=(SECOND + 1) * 1000))[0] == 1


async def test_a_task_of_a_group_joins_it(q: Queue) -> None:
    await put_go(q, "scheduled", "a", SECOND, group="g:1")
    await put_go(q, "retry", "b", SECOND, group="")
    before = await q.everything()
    assert (await q.forward())[0] == 2
    assert differences(before, await q.everything()) == {
        q.key("scheduled"): None,
        q.key("retry"): None,
        q.key("g:g:1"): Key("zset", {"a": str(SECOND)}, "none"),
        q.key("groups"): Key("set", {"g:1"}, "none"),
        q.key("pending"): Key("list", ["b"], "none"),
        q.task("a"): Key(
            "hash",
            {"msg": "", "state": "aggregating", "group": "g:1", "group_seq": f"{NOW}000000-000001"},
            "none",
        ),
        q.task("b"): Key("hash", {"msg": "", "state": "pending", "group": "", "pending_since": f"{NOW}000000"}, "none"),
    }


async def test_dangling_ids_are_dropped_and_the_rest_moves(q: Queue) -> None:
    await q.schedule(("gone", "+10"), ("empty", "+20"), ("bad", "+30"), ("good", "+40"))
    await q.client.delete(q.task("gone"), q.task("bad"))
    await q.client.hdel(q.task("empty"), "msg")
    await q.client.set(q.task("bad"), "x")
    moved, due, _, dropped = await q.forward(now=NOW + 50)
    assert (moved, due) == (1, -1)
    assert dropped == ["gone", "dangling", "empty", "dangling", "bad", "wrongtype"]
    left = await q.everything()
    assert set(left) == {q.key("pending"), q.task("good"), q.task("bad")}
    assert left[q.task("bad")] == Key("string", "x", "none")


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_in_portions_the_order_is_the_same(q: Queue, limit: int) -> None:
    """Within a second the shared sets are in the order of the ids: only the index knows better."""
    await q.schedule(("z", "+10"), ("y", "+20"), ("x", "+30"), ("w", "+2040"), ("v", "+2050"))
    await put_retry(q, ("u", 15), ("t", 2045))
    await put_go(q, "scheduled", "go1", SECOND - 5)
    await put_go(q, "retry", "go2", SECOND - 4)
    await q.client.zadd(q.key("due"), {"ghost1": NOW - 9000, "ghost2": NOW - 8000, "ghost3": NOW + 21})
    now, calls = NOW + 5000, 0
    while True:
        before = len(await q.pending())
        moved, due, _, dropped = await q.forward(limit=limit, now=now)
        assert moved <= limit
        assert len(await q.pending()) == before + moved
        assert dropped == []
        calls += 1
        assert calls < 20
        if due == -1:
            break
        assert due <= now
    assert await q.pending() == ["go1", "go2", "z", "u", "y", "x", "w", "t", "v"]
    assert await q.scores("due") == {}


async def test_stale_entries_let_nothing_overtake(q: Queue) -> None:
    """The page of the index has only stale ones, and that of the shared set has the later of two in one second."""
    await q.schedule(("z-first", "+100"), ("a-second", "+500"))
    await q.client.zadd(q.key("due"), {"ghost": NOW - 1})
    assert (await q.forward(limit=1, now=NOW + 5000))[0] == 0
    assert (await q.forward(limit=1, now=NOW + 5000))[0] == 1
    assert (await q.forward(limit=1, now=NOW + 5000))[0] == 1
    assert await q.pending() == ["z-first", "a-second"]


async def test_the_limit_bounds_what_go_put_into_both_sets(q: Queue) -> None:
    for number in range(4):
        await put_go(q, "scheduled", f"s{number}", SECOND - 10 + 2 * number)
        await put_go(q, "retry", f"r{number}", SECOND - 9 + 2 * number)
    assert [(await q.forward(limit=3))[0] for _ in range(4)] == [3, 3, 2, 0]
    assert await q.pending() == ["s0", "r0", "s1", "r1", "s2", "r2", "s3", "r3"]


async def test_an_id_in_both_sets_runs_once(q: Queue) -> None:
    await put_go(q, "scheduled", "a", SECOND)
    await put_go(q, "retry", "a", SECOND)
    await q.forward()
    await q.forward()
    assert set(await q.pending()) == {"a"}
    assert (await q.dequeue(5))[0] == ["a"]


async def test_the_next_due_is_the_earliest_over_all(q: Queue) -> None:
    await q.schedule(("a", "+90000"))
    assert (await q.forward())[1] == NOW + 90_000
    await put_retry(q, ("b", 70_000))
    assert (await q.forward())[1] == NOW + 70_000
    await put_go(q, "scheduled", "c", SECOND + 50)
    assert (await q.forward())[1] == (SECOND + 50) * 1000
    await put_go(q, "retry", "d", SECOND + 40)
    assert (await q.forward())[1] == (SECOND + 40) * 1000


@pytest.mark.parametrize("name", ["pending", "groups", "due"])
async def test_a_key_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.schedule(("a", "+10"), ("b", "+20"))
    await q.client.delete(q.key(name))
    await q.client.hset(q.key(name), "x", "y")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.forward(now=NOW + 5000)
    assert await q.everything() == before


async def test_a_task_whose_group_is_damaged_runs_on_its_own_and_holds_up_nobody(q: Queue) -> None:
    await q.schedule(("a", "+10"))
    await put_go(q, "scheduled", "b", SECOND, group="g")
    await q.client.set(q.key("g:g"), "x")
    moved, _, _, dropped = await q.forward(now=NOW + 5000)
    assert (moved, dropped) == (2, [])
    assert sorted(await q.pending()) == ["a", "b"]


@pytest.mark.parametrize(("damaged", "sound"), [("scheduled", "retry"), ("retry", "scheduled")])
async def test_one_damaged_set_does_not_hold_up_the_other(q: Queue, damaged: str, sound: str) -> None:
    await q.client.set(q.key(damaged), "x")
    await put_go(q, sound, "a", SECOND)
    assert await q.forward() == (1, -1, NOW, [])
    assert await q.pending() == ["a"]


async def test_many_thousands_in_one_call(q: Queue) -> None:
    await q.schedule(*[(f"t{i}", f"+{i}") for i in range(9000)])
    await q.client.sadd("asynq:queues", "q")
    assert (await q.forward(limit=9000, now=NOW + 9000))[0] == 9000
    assert await q.pending() == [f"t{i}" for i in range(9000)]
    assert breaches(await q.everything()) == []


async def test_the_servers_clock_decides_without_a_given_time(q: Queue) -> None:
    seconds, _ = await q.client.time()
    await q.schedule(("past", f"{seconds}000"), ("future", "+60000"), now=None)
    moved, due, now, _ = await q.forward(now=None)
    assert moved == 1
    assert 59_000 < due - now <= 60_001


async def test_it_tells_the_microseconds_that_its_milliseconds_leave_out(q: Queue) -> None:
    await q.forward()
    assert q.beyond == 0
    seen = set()
    for _ in range(20):
        await q.forward(now=None)
        seen.add(q.beyond)
    assert all(0 <= beyond < 1000 for beyond in seen)
    assert len(seen) > 1


async def test_its_time_is_never_ahead_of_the_servers(q: Queue) -> None:
    for _ in range(20):
        seconds, micros = await q.client.time()
        _, _, now, _ = await q.forward(now=None)
        later_seconds, later_micros = await q.client.time()
        assert seconds * 10**6 + micros <= now * 1000 + q.beyond <= later_seconds * 10**6 + later_micros


def test_what_is_overdue_is_waited_for_no_longer() -> None:
    for due, wait in ((NOW + 1500, 1.4995), (NOW, 0.0), (NOW - 5000, 0.0), (-1, None)):
        found = _forwarded([1, due, NOW, [], 500])
        assert isinstance(found, ForwardReply)
        assert found.wait == wait


async def test_between_two_portions_of_what_is_due_everybody_else_gets_a_turn(q: Queue) -> None:
    await q.schedule(*[(f"t{number}", f"-{number}") for number in (3, 2, 1)])
    moved, due, *_ = await q.forward(limit=2, pause_ms=60_000)
    assert (moved, due, await q.pending()) == (2, NOW + 60_000, ["t3", "t2"])
    assert 0 < await q.client.pttl(q.key("forwarding")) <= 60_000
    # No other forwarder goes on meanwhile; it looks again, because this one might die.
    assert await q.forward(limit=2, pause_ms=60_000, forwarder="another") == (0, NOW + 50, NOW, [])
    moved, due, *_ = await q.forward(limit=2, pause_ms=60_000)
    assert moved == 0, "nor does the same one, whatever wakes it"
    assert NOW + 50 < due <= NOW + 60_000
    await q.client.delete(q.key("forwarding"))
    assert (await q.forward(limit=2, pause_ms=60_000))[:2] == (1, -1)
    assert not await q.client.exists(q.key("forwarding")), "nothing more is due"


async def test_who_moved_a_portion_need_not_wait_for_the_last_millisecond_of_its_pause(q: Queue) -> None:
    await q.schedule(("a", "-2"))
    for _ in range(20):
        await q.client.set(q.key("forwarding"), "f", px=1)
        assert (await q.forward(limit=1, pause_ms=3))[1] != NOW + 50


async def test_the_pause_is_longer_while_workers_have_enough_to_do(q: Queue) -> None:
    await q.enqueue(*[str(number) for number in range(20)])
    await q.schedule(("a", "-2"), ("b", "-1"))
    assert (await q.forward(limit=1, pause_ms=60_000))[:2] == (1, NOW + 180_000)
