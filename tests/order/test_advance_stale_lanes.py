"""What Go did to a lane is put right by a sweep: it never stops for good."""

from __future__ import annotations

import pytest

from tests.order.support import Bound, go_archive, go_delete, go_dequeue, go_done, go_retry, go_run
from tests.support.keyspace import breaches


@pytest.fixture
async def three(q: Bound) -> Bound:
    await q.line_up(("a", "k"), ("b", "k"), ("c", "k"))
    return q


async def test_a_go_worker_finishes_the_first(three: Bound) -> None:
    assert await go_dequeue(three) == "a"
    await go_done(three, "a")
    assert await three.lane("k") == ["a", "b", "c"]
    await three.advance_stale_lanes()
    assert await three.states() == {"b": "pending", "c": "parked"}
    assert breaches(await three.everything()) == []


@pytest.mark.parametrize("verb", [go_delete, go_archive])
async def test_a_go_tool_takes_the_first_away(three: Bound, verb: object) -> None:
    await verb(three, "a")  # type: ignore[operator]
    await three.advance_stale_lanes()
    assert await three.lane("k") == ["b", "c"]
    assert (await three.states())["b"] == "pending"


async def test_a_go_tool_takes_a_parked_one_away(three: Bound) -> None:
    await go_delete(three, "b")
    await three.advance_stale_lanes()
    assert await three.lane("k") == ["a", "b", "c"]
    ids, _ = await three.dequeue(1)
    await three.done(*ids)
    assert await three.states() == {"c": "pending"}
    assert await three.lane("k") == ["c"]


async def test_a_go_worker_fails_the_first(three: Bound) -> None:
    await go_dequeue(three)
    await go_retry(three, "a", 5)
    await three.advance_stale_lanes()
    assert await three.states() == {"a": "retry", "b": "parked", "c": "parked"}


async def test_a_go_worker_runs_one_out_of_turn_and_fails(three: Bound) -> None:
    await go_run(three, "c")
    await three.client.lrem(three.key("pending"), 0, "a")
    await three.client.rpush(three.key("pending"), "a", "c")
    await three.client.lrem(three.key("pending"), 1, "c")
    assert await go_dequeue(three) == "c"
    await go_retry(three, "c", 1)
    three.now += 2000
    await three.forward(now=three.now)
    assert await three.states() == {"a": "pending", "b": "parked", "c": "parked"}


async def test_a_lane_does_not_rest_for_as_long_as_the_servers_clock_went_back(three: Bound) -> None:
    await three.advance_stale_lanes()
    await go_delete(three, "a")
    three.now -= 600_000
    await three.advance_stale_lanes()
    assert (await three.states())["b"] == "pending"


async def test_of_very_many_each_gets_its_turn_to_be_looked_at(q: Bound) -> None:
    await q.line_up(*[(f"t{n}", f"k{n}") for n in range(1200)])
    for n in range(1200):
        await q.client.delete(q.task(f"t{n}"))
    await q.client.delete(q.key("pending"))
    q.now += 5000
    looked = [await q.lanes.advance_stale_lanes(["q"], 1000) for _ in range(4)]
    assert looked == [[500], [500], [200], [0]]
    assert not await q.client.keys("*lane*")


async def test_of_very_many_living_lanes_one_that_stopped_gets_its_turn(q: Bound) -> None:
    """A lane that lives stays on the list: having been looked at, it must stand behind those that were not."""
    lanes = [(f"t{n:03}", f"k{n:03}") for n in range(700)]
    await q.line_up(*lanes, ("first", "z"), ("second", "z"))
    await go_delete(q, "first")
    q.now += 5000
    looked = [await q.lanes.advance_stale_lanes(["q"], 1000) for _ in range(3)]
    assert looked == [[500], [201], [0]]
    assert (await q.states())["second"] == "pending"


async def test_more_dead_ones_than_one_call_clears(q: Bound) -> None:
    await q.line_up(*[(f"t{n:03}", "k") for n in range(500)])
    await q.line_up(("last", "k"))
    for n in range(500):
        await q.client.delete(q.task(f"t{n:03}"))
        await q.client.zrem(q.key("scheduled"), f"t{n:03}")
    await q.client.delete(q.key("pending"))
    for _ in range(3):
        await q.advance_stale_lanes()
    assert await q.states() == {"last": "pending"}


async def test_a_lane_that_one_call_did_not_clear_is_the_first_of_the_next_sweep(q: Bound) -> None:
    """Not only after the time that a lane rests between two looks."""
    await q.line_up(*[(f"t{n:03}", "k") for n in range(250)])
    await q.line_up(("last", "k"))
    for n in range(250):
        await q.client.delete(q.task(f"t{n:03}"))
        await q.client.zrem(q.key("scheduled"), f"t{n:03}")
    await q.client.delete(q.key("pending"))
    q.now += 5000
    assert await q.lanes.advance_stale_lanes(["q"], 1000) == [1]
    assert await q.states() == {"last": "parked"}
    assert await q.lanes.advance_stale_lanes(["q"], 1000) == [1]
    assert await q.states() == {"last": "pending"}
    assert await q.lanes.advance_stale_lanes(["q"], 1000) == [0]


async def test_a_damaged_lane_does_not_hold_up_the_sweep(q: Bound) -> None:
    await q.line_up(("a", "bad"), ("b", "good"), ("c", "good"))
    await q.client.set(q.key("lane:bad"), "x")
    await go_delete(q, "b")
    await q.advance_stale_lanes()
    assert (await q.states())["c"] == "pending"


async def test_an_id_that_go_gave_to_another_task_has_no_place_in_the_lane(three: Bound) -> None:
    assert await go_dequeue(three) == "a"
    await go_done(three, "a")
    await three.enqueue("a")
    await three.advance_stale_lanes()
    assert await three.states() == {"a": "pending", "b": "pending", "c": "parked"}
    assert await three.lane("k") == ["b", "c"]


async def test_the_first_that_waits_for_no_limit_any_more_goes_on(three: Bound) -> None:
    await go_delete(three, "a")
    await three.client.hset(three.task("b"), "limited_by", "task:t")
    await three.client.zadd(three.key("waiting:task:t"), {"b": 1})
    await three.advance_stale_lanes()
    assert (await three.states())["b"] == "parked", "it is its turn, but there is no room"
    await three.client.delete(three.key("waiting:task:t"))
    await three.advance_stale_lanes()
    assert (await three.states())["b"] == "pending"
    assert "limited_by" not in await three.fields("b")
