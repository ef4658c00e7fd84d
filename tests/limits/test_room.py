"""Room within limits: who waits where, for whom room is kept, and who gets it when it comes back."""

from __future__ import annotations

import json

import pytest

from tests.limits.test_scripts import fill, message, settle, take
from tests.order.support import Bound, go_run
from tests.support.keyspace import breaches
from tests.support.queue import LEASE_END, NOW

KEY_A = "task-key:1:t:a"


async def keyed(q: Bound, *rows: tuple[str, str], task_type: str = "t") -> None:
    """Each row: an id and its limit key."""
    for task_id, key in rows:
        await q.line_up((task_id, ""), limit_key=key, message=message(task_type))


async def members(q: Bound, name: str) -> list[str]:
    return list(await q.scores(name))


async def test_who_waits_keeps_the_time_of_its_arrival(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    q.now += 5000
    await fill(q, "t", "c")
    assert await take(q) == ["a"]
    assert await q.scores("waiting:task:t") == {"b": NOW * 1000, "c": q.now * 1000}
    assert (await q.fields("b"))["pending_since"] == f"{NOW}000000"
    await settle(q, "done", "a")
    assert (await q.fields("b"))["pending_since"] == f"{NOW}000000"


async def test_room_kept_for_one_who_was_called_is_not_for_others_even_if_nobody_else_waits(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    await settle(q, "done", "a")
    assert await members(q, "called:task:t") == ["b"]
    assert 50_000 < await q.client.pttl(q.key("called:task:t")) <= 60_000
    await fill(q, "t", "late")
    await q.client.lrem(q.key("pending"), 0, "late")
    await q.client.rpush(q.key("pending"), "late")
    assert await take(q) == ["b"]
    assert await q.states() == {"b": "active", "late": "parked"}


@pytest.mark.parametrize("by_go", ["deleted", "archived", "taken"])
async def test_no_room_is_kept_for_one_that_go_took_away_from_pending(q: Bound, by_go: str) -> None:
    """Go knows nothing of the room: a queue that it deleted would stand still for ten seconds."""
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    await settle(q, "done", "a")
    assert await members(q, "called:task:t") == ["b"]
    await q.client.lrem(q.key("pending"), 0, "b")
    if by_go == "deleted":
        await q.client.delete(q.task("b"))
    elif by_go == "archived":
        await q.client.hset(q.task("b"), "state", "archived")
        await q.client.zadd(q.key("archived"), {"b": NOW // 1000})
    else:
        await q.client.hset(q.task("b"), "state", "active")
        await q.client.lpush(q.key("active"), "b")
        await q.client.zadd(q.key("lease"), {"b": NOW // 1000 + 30})
    await fill(q, "t", "late")
    assert await take(q) == ["late"]
    assert await members(q, "called:task:t") == []


async def test_who_was_called_takes_the_room_kept_and_no_other(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "3 0 0"})
    await fill(q, "t", "a1", "a2", "a3", "b")
    await take(q)
    await settle(q, "done", "a1")
    await settle(q, "done", "a2")
    await fill(q, "t", "d", "e")
    assert await take(q) == ["b", "d"]


async def test_both_numbers_of_a_limit_count(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 5 1000"})
    await fill(q, "t", "a", "b", "c")
    assert await take(q) == ["a"]
    await settle(q, "done", "a")
    assert await take(q) == ["b"]


async def test_more_starts_than_fit_a_page_lapse_together(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "0 120 1000"})
    await fill(q, "t", *[f"t{n:03}" for n in range(240)])
    assert len(await take(q, 120)) == 120
    q.now += 1000
    assert len(await take(q, 120)) == 120


async def test_the_next_instant_counts_those_who_were_called(q: Bound) -> None:
    """Three starts a second: of those who wait, one was called; the next may begin when the second start lapses."""
    await q.limits.declare("q", {"task:t": "0 3 1000"})
    for task_id in ("a", "b", "c"):
        await fill(q, "t", task_id)
        assert await take(q) == [task_id]
        q.now += 300
    await fill(q, "t", "d", "e")
    assert await take(q) == []
    q.now = NOW + 1000
    moved, due, _, _ = await q.forward(now=q.now)
    assert (moved, due) == (1, NOW + 1300)


async def test_a_distant_instant_is_looked_at_once_a_minute(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "0 1 3600000", "queue": "0 5 3600000"})
    await fill(q, "t", "a", "b")
    async with q.wakeups() as heard:
        assert await take(q) == ["a"]
    assert await q.scores("limited") == {"task:t": NOW + 60_000}
    assert heard == [str(NOW + 60_000)], "the forwarders are told"
    await fill(q, "free", *[f"f{n}" for n in range(5)])
    assert len(await take(q, 10)) == 4
    assert await take(q) == []
    assert q.wait == 60_000  # type: ignore[attr-defined]
    assert not await q.client.exists(q.key("full")), "nobody makes room for a rate: there is nothing to tell"


async def test_nobody_is_told_of_room_that_nobody_missed(q: Bound) -> None:
    await q.limits.declare("q", {"queue": "2 0 0"})
    await fill(q, "t", "a")
    await take(q)
    async with q.wakeups() as heard:
        await settle(q, "done", "a")
    assert heard == []


async def test_stopped_by_another_limit_it_waits_for_that_one(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 0 0", "task-key:t": "1 0 0"})
    await keyed(q, ("a1", "a"), ("b1", "b"), ("a2", "a"))
    assert await take(q) == ["a1", "b1"]
    assert (await q.fields("a2"))["limited_by"] == "task:t"
    assert json.loads((await q.fields("a2"))["limit_scopes"]) == ["task:t", KEY_A]
    q.now += 1000
    await settle(q, "done", "b1")
    assert (await q.fields("a2"))["limited_by"] == KEY_A
    assert await q.scores(f"waiting:{KEY_A}") == {"a2": NOW * 1000}
    assert await q.scores("limited") == {KEY_A: LEASE_END * 1000}
    await settle(q, "done", "a1")
    assert await members(q, "called:task:t") == await members(q, f"called:{KEY_A}") == ["a2"]
    fields = await q.fields("a2")
    assert fields["state"] == "pending"
    assert {"limited_by", "limit_scopes"}.isdisjoint(fields)
    assert await take(q) == ["a2"]
    assert not await q.client.exists(q.key("called:task:t"), q.key(f"called:{KEY_A}"))


async def test_one_who_is_stopped_by_his_key_does_not_hold_up_the_next_of_his_type(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 0 0", "task-key:t": "1 0 0"})
    await keyed(q, ("a1", "a"), ("x1", "x"), ("a2", "a"), ("b1", "b"))
    assert await take(q) == ["a1", "x1"]
    await settle(q, "done", "x1")
    assert await q.states() == {"a1": "active", "a2": "parked", "b1": "pending"}


async def test_a_key_whose_type_is_full_is_looked_at_again_after_a_second(q: Bound) -> None:
    """Not at once and for ever: the room of the type comes with a word of its own."""
    await q.limits.declare("q", {"task:t": "2 0 0", "task-key:t": "1 0 0"})
    await keyed(q, ("k1", "a"), ("k2", "a"), ("k3", "a"), ("k4", "a"))
    assert await take(q) == ["k1"]
    await keyed(q, ("y1", "y"), ("z1", "z"))
    assert await take(q) == ["y1"]
    await settle(q, "done", "k1")
    assert (await q.states())["z1"] == "pending", "it waited for the type, and takes the room"
    assert (await q.fields("k2"))["limited_by"] == "task:t"
    assert await members(q, f"waiting:{KEY_A}") == ["k3", "k4"]
    assert (await q.scores("limited"))[KEY_A] == q.now + 1000


async def test_only_who_waits_for_this_limit_is_called(q: Bound) -> None:
    """An entry of a line that its task has left does not bring it back."""
    await q.limits.declare("q", {"task:t": "1 0 0", "task:o": "1 0 0"})
    await fill(q, "t", "t1", "t2")
    await fill(q, "o", "o1")
    assert await take(q) == ["t1", "o1"]
    await q.client.zadd(q.key("waiting:task:o"), {"t2": 1})
    await settle(q, "done", "o1")
    assert await q.states() == {"t1": "active", "t2": "parked"}


async def test_what_go_made_due_on_a_day_is_not_called(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    later = q.now // 1000 + 3600
    await q.client.zadd(q.key("scheduled"), {"b": later})
    await settle(q, "done", "a")
    assert await q.pending() == []
    assert await q.scores("scheduled") == {"b": later}


async def test_who_was_called_and_is_stopped_by_another_limit_gives_the_room_on(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await keyed(q, ("a", "x"), ("b", "l"), ("c", "y"))
    await take(q)
    await settle(q, "done", "a")
    assert await members(q, "called:task:t") == ["b"]
    await q.limits.declare("q", {"queue-key": "1 0 0"})
    await q.client.zadd(q.key("slots:queue-key:l"), {"another": LEASE_END})
    assert await take(q, 1) == []
    assert await members(q, "called:task:t") == ["c"]
    assert await q.states() == {"b": "parked", "c": "pending"}
    assert (await q.fields("b"))["limited_by"] == "queue-key:l"


async def test_without_its_limit_whoever_waits_goes_on_as_soon_as_one_is_done(q: Bound) -> None:
    """Also when no limit is left in the queue at all."""
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await q.limits.declare("q", {"task:t": ""})
    await settle(q, "done", "a")
    assert await q.states() == {"b": "pending", "c": "pending"}


async def test_all_limits_that_have_room_again_are_looked_at_in_one_step(q: Bound) -> None:
    await q.limits.declare("q", {"task-key:t": "1 0 0"})
    await keyed(q, *[(f"{key}{n}", key) for key in "abc" for n in range(2)])
    assert await take(q) == ["a0", "b0", "c0"]
    await q.client.delete(q.key("lease"))  # as Go ends them
    q.now = LEASE_END * 1000
    assert (await q.forward(now=q.now))[0] == 3
    assert await q.pending() == ["a1", "b1", "c1"]


async def test_a_long_type_is_counted_like_a_short_one(q: Bound) -> None:
    """Its length takes up two bytes in the message."""
    name = "x" * 300
    await q.limits.declare("q", {f"task:{name}": "1 0 0"})
    await fill(q, name, "a", "b")
    assert await take(q) == ["a"]


async def test_a_limit_key_counts_before_an_order_key(q: Bound) -> None:
    await q.limits.declare("q", {"queue-key": "1 0 0"})
    await q.line_up(("a", "order"), limit_key="limit")
    assert await take(q) == ["a"]
    assert (await q.fields("a"))["slots"] == '["queue-key:limit"]'


async def test_a_task_that_shall_be_cancelled_needs_no_room(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a")
    await take(q)
    await fill(q, "t", "b")
    await q.client.hset(q.task("b"), "cancel", "delete")
    assert await take(q) == ["b"]
    assert await members(q, "slots:task:t") == ["a"]


async def test_an_id_that_stands_twice_in_the_line_takes_up_room_once(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 0 0"})
    await fill(q, "t", "a", "b", "c")
    await q.client.rpush(q.key("pending"), "a")
    assert await take(q) == ["a", "b"]
    assert await members(q, "waiting:task:t") == ["c"]
    assert breaches(await q.everything()) == []


async def test_the_reply_counts_those_who_were_called_meanwhile(q: Bound) -> None:
    """Two have ended, and nobody has looked yet: who comes now lets those go first who wait."""
    await q.limits.declare("q", {"task:t": "2 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await q.client.delete(q.key("lease"))  # as Go ends them
    q.now = LEASE_END * 1000
    await fill(q, "t", "d")
    ids, reply = await q.dequeue(10, number=9, now=q.now)
    assert (ids, reply[2]) == ([], 2)
    assert await q.pending() == ["c", "d"]


async def test_parked_again_in_its_lane_it_waits_for_no_limit(q: Bound) -> None:
    """Run out of turn by a Go tool, it comes back to its lane; the line that it stood in before is not its line now."""
    await q.limits.declare("q", {"task:other": "1 0 0"})
    await q.line_up(("a", "k"), ("b", "k"))
    await q.client.hset(q.task("b"), "limited_by", "task:t")
    await q.client.zadd(q.key("waiting:task:t"), {"b": 1})
    await go_run(q, "b")
    assert await take(q) == ["a"]
    assert "limited_by" not in await q.fields("b")
    await settle(q, "done", "a")
    assert await q.states() == {"b": "pending"}


async def test_a_listing_counts_what_runs_and_what_began_within_the_period(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 3 1000"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    (row,) = await q.limits.list("q")
    assert (row.running, row.begun, row.waiting) == (2, 2, 1)
    q.now += 999
    assert (await q.limits.list("q"))[0].begun == 2
    q.now += 1
    assert (await q.limits.list("q"))[0].begun == 0
    q.now = LEASE_END * 1000 - 1
    assert (await q.limits.list("q"))[0].running == 2
    q.now += 1
    assert (await q.limits.list("q"))[0].running == 0, "their leases are over"


async def test_cancelled_while_it_waited_it_waits_for_nothing_any_more(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    await q.inspector.cancel("q", "b", then="archive")
    fields = await q.fields("b")
    assert fields["state"] == "archived"
    assert "limited_by" not in fields


async def test_the_starts_of_a_scope_that_is_used_no_more_go_by_themselves(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "0 5 1000"})
    await fill(q, "t", "a")
    await take(q)
    assert 60_000 < await q.client.pttl(q.key("starts:task:t")) <= 61_000
