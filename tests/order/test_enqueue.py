"""order/enqueue: new tasks take their place in their lane; only the first is pending."""

from __future__ import annotations

import pytest

from tests.order.support import Bound, go_delete_queue, go_dequeue, go_done
from tests.support.keyspace import PARKED, Key, breaches
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused
from veredus.wire import keys

NS = f"{NOW}000000"


async def test_the_first_is_pending_and_the_others_are_parked(q: Bound) -> None:
    before = await q.everything()
    assert await q.line_up(("a", "k"), ("b", "k"), ("c", "other")) == [1, 1, 1]

    def task(state: str, key: str) -> Key:
        return Key("hash", {"msg": "m", "state": state, "order_key": key, "pending_since": NS}, "none")

    assert differences(before, await q.everything()) == {
        q.task("a"): task("pending", "k"),
        q.task("b"): task("scheduled", "k"),
        q.task("c"): task("pending", "other"),
        q.key("pending"): Key("list", ["c", "a"], "none"),
        q.key("scheduled"): Key("zset", {"b": PARKED}, "none"),
        q.key("lane:k"): Key("zset", {"a": "1", "b": "2"}, "none"),
        q.key("lane:other"): Key("zset", {"c": "1"}, "none"),
        q.key("lanes"): Key("zset", {"k": str(NOW), "other": str(NOW)}, "none"),
    }


async def test_a_delayed_task_takes_its_place_when_it_is_due(q: Bound) -> None:
    await q.line_up(("late", "k"), due="+500")
    await q.line_up(("later", "k"), due="+700")
    assert await q.lane("k") == []
    assert await q.states() == {"late": "scheduled", "later": "scheduled"}
    await q.line_up(("now", "k"))
    q.now += 1000
    await q.forward(now=q.now)
    assert await q.lane("k") == ["now", "late", "later"]
    assert await q.states() == {"now": "pending", "late": "parked", "later": "parked"}
    assert breaches(await q.everything()) == []


async def test_a_hold_and_a_limit_key_stand_in_the_hash(q: Bound) -> None:
    await q.line_up(("a", "k"), hold=True, limit_key="l")
    fields = await q.client.hgetall(q.task("a"))
    assert (fields[b"order_hold"], fields[b"limit_key"]) == (b"1", b"l")
    await q.line_up(("b", ""), limit_key="l")
    assert (await q.states())["b"] == "pending"
    assert b"order_key" not in await q.client.hgetall(q.task("b"))


@pytest.mark.parametrize(("due", "state"), [("", "parked"), ("+500", "scheduled")])
async def test_an_id_whose_old_task_go_ended_gives_up_the_old_place(q: Bound, due: str, state: str) -> None:
    """The new task of the id stands at the end of the lane, and whoever stood behind the old one goes on at once."""
    await q.line_up(("a", "k"), ("b", "k"))
    assert await go_dequeue(q) == "a"
    await go_done(q, "a")
    assert await q.lane("k") == ["a", "b"]
    assert await q.line_up(("a", "k"), due=due) == [1]
    assert await q.states() == {"a": state, "b": "pending"}
    assert await q.lane("k") == (["b"] if due else ["b", "a"])


async def test_an_id_that_is_taken_changes_nothing(q: Bound) -> None:
    await q.line_up(("a", "k"))
    before = await q.everything()
    assert await q.line_up(("a", "other")) == [0]
    assert await q.everything() == before


@pytest.mark.parametrize("damaged", ["lane:k", "lanes", "pending"])
async def test_nothing_is_written_when_a_key_has_a_wrong_type(q: Bound, damaged: str) -> None:
    await q.client.set(q.key(damaged), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.line_up(("a", "j"), ("b", "k"))
    assert await q.everything() == before


async def test_a_closed_queue_takes_none(q: Bound) -> None:
    await q.inspector.close_queue("q")
    before = await q.everything()
    assert await q.line_up(("a", "k")) == [-4]
    assert await q.everything() == before


async def test_a_unique_lock_is_taken_and_lasts_from_when_the_task_is_due(q: Bound) -> None:
    lock, late = q.key("unique:now"), q.key("unique:late")
    assert await q.line_up(("a", "k"), lock=lock, ttl=100) == [1]
    assert await q.line_up(("b", "k"), lock=lock, ttl=100) == [-1]
    assert await q.line_up(("c", "k"), lock=late, ttl=100, due="+50000") == [1]
    assert [await q.client.get(name) for name in (lock, late)] == [b"a", b"c"]
    assert 90 < await q.client.ttl(lock) <= 100
    assert 140 < await q.client.ttl(late) <= 150
    assert (await q.fields("a"))["unique_key"] == lock
    assert await q.states() == {"a": "pending", "c": "scheduled"}


@pytest.mark.parametrize("ttl", [0, 0.5])
async def test_a_lock_without_a_whole_lifetime_stops_it_before_the_first_write(q: Bound, ttl: float) -> None:
    before = await q.everything()
    with pytest.raises(CommandRefused, match="whole seconds"):
        await q.line_up(("a", "k"), lock=q.key("unique:x"), ttl=ttl)
    assert await q.everything() == before


async def test_a_delayed_task_is_due_to_the_millisecond_and_announced(q: Bound) -> None:
    async with q.wakeups() as heard:
        await q.line_up(("a", "k"), due="+500")
        await q.line_up(("b", "k"), due="+700")
        await q.line_up(("c", "k"), due="+100")
    assert heard == [str(NOW + 500), str(NOW + 100)]
    assert await q.scores("due") == {"a": NOW + 500, "b": NOW + 700, "c": NOW + 100}


async def test_a_lane_is_looked_after_in_its_turn_however_many_join_it(q: Bound) -> None:
    """Whoever joins does not put off the next look: the first may have ended without us."""
    await q.line_up(("a", "k"))
    q.now += 1000
    await q.line_up(("b", "k"))
    assert await q.scores("lanes") == {"k": NOW}


@pytest.mark.parametrize("number", [1, 3, 500])
async def test_places_of_tasks_that_are_gone_hold_up_nobody(q: Bound, number: int) -> None:
    """Go's DeleteQueue deletes the tasks and leaves the lanes: the next task of the key is the first."""
    await q.line_up(*[(f"old{n}", "k") for n in range(number)])
    await go_delete_queue(q)
    assert len(await q.lane("k")) == number
    await q.client.sadd(keys.QUEUES, "q")  # as every client does
    await q.line_up(("new", "k"), ("next", "k"))
    assert await q.states() == {"new": "pending", "next": "parked"}
    assert await q.lane("k") == ["new", "next"]
    assert await q.pending() == ["new"]
    assert breaches(await q.everything()) == []


async def test_what_go_ended_gives_way_to_those_behind_it_when_the_next_one_comes(q: Bound) -> None:
    """Also while no worker sweeps."""
    await q.line_up(("a", "k"), ("b", "k"))
    assert await go_dequeue(q) == "a"
    await go_done(q, "a")
    await q.line_up(("c", "k"))
    assert await q.states() == {"b": "pending", "c": "parked"}
    assert await q.lane("k") == ["b", "c"]
