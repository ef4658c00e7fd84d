"""Every way out of a lane gives the turn to the next, in the same step; nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.order.support import MESSAGE, Bound, go_delete, go_run
from tests.support.keyspace import breaches
from tests.support.queue import NOW


async def take(q: Bound, number: int = 1, wanted: int = 10) -> list[str]:
    ids, _ = await q.dequeue(wanted, number=number, now=q.now)
    return ids


@pytest.fixture
async def busy(q: Bound) -> Bound:
    """`a` runs, `b` and `c` wait for their turn."""
    await q.line_up(("a", "k"), ("b", "k"), ("c", "k"))
    assert await take(q) == ["a"]
    assert await take(q, 2) == []
    return q


@pytest.mark.parametrize("verb", ["done", "complete", "archive"])
async def test_what_ends_a_task_gives_the_turn_to_the_next(busy: Bound, verb: str) -> None:
    await getattr(busy, verb)("a")
    states = await busy.states()
    assert (states["b"], states["c"]) == ("pending", "parked")
    assert await busy.lane("k") == ["b", "c"]
    assert breaches(await busy.everything()) == []
    assert await take(busy, 3) == ["b"]


@pytest.mark.parametrize("verb", ["retry", "requeue"])
async def test_a_task_that_is_not_at_its_end_keeps_its_place(busy: Bound, verb: str) -> None:
    await getattr(busy, verb)("a")
    assert await busy.lane("k") == ["a", "b", "c"]
    busy.now += 5000
    await busy.forward(now=busy.now)
    assert breaches(await busy.everything()) == []
    assert await take(busy, 3) == ["a"]


async def test_a_task_whose_worker_is_gone_keeps_its_place(busy: Bound) -> None:
    busy.now += 20_000
    _, claimed, _ = await busy.recover("r:1", now=busy.now)
    assert [row[0] for row in claimed] == ["a"]
    await busy.retry(("a", "r:1", b"m", 0), now=busy.now)
    await busy.forward(now=busy.now + 1)
    assert await take(busy, 3) == ["a"]


async def test_an_archived_task_holds_up_the_others_if_told_to(q: Bound) -> None:
    await q.line_up(("a", "k"), ("b", "k"), hold=True)
    await take(q)
    await q.archive("a")
    await q.advance_stale_lanes()
    assert await q.states() == {"a": "archived", "b": "parked"}
    assert breaches(await q.everything()) == []
    [lane] = await q.inspector.order_keys("q", held=True)
    assert (lane.order_key, lane.size, lane.first, lane.held) == ("k", 2, "a", True)
    assert await q.inspector.release_order_key("q", "k") == "a"
    assert await q.states() == {"a": "archived", "b": "pending"}


async def test_run_again_it_goes_first(q: Bound) -> None:
    await q.line_up(("a", "k"), ("b", "k"), hold=True)
    await take(q)
    await q.archive("a")
    await q.inspector.run("q", "a")
    assert await q.states() == {"a": "pending", "b": "parked"}
    assert await take(q, 2) == ["a"]


async def test_an_expired_task_gives_the_turn_to_the_next(q: Bound) -> None:
    await q.line_up(("a", "k"), expires="+100")
    await q.line_up(("b", "k"))
    q.now += 200
    assert await take(q) == []
    assert await take(q, 2) == ["b"]


async def test_other_lanes_and_plain_tasks_are_not_held_up(busy: Bound) -> None:
    await busy.line_up(("x", "other"), ("y", "other"))
    await busy.enqueue("plain")
    assert await take(busy, 3) == ["x", "plain"]


async def test_the_next_one_is_served_before_those_who_came_after_it(busy: Bound) -> None:
    """Else a lane would move one step each time that the whole queue has been served."""
    await busy.enqueue("younger", now=NOW + 1)
    await busy.done("a")
    assert await busy.pending() == ["b", "younger"]


async def test_the_next_one_does_not_overtake_those_who_came_before_it(q: Bound) -> None:
    await q.line_up(("a", "k"))
    await take(q)
    await q.enqueue("older", now=NOW + 1)
    await q.line_up(("b", "k"), now=NOW + 2)
    await q.done("a")
    assert await q.pending() == ["older", "b"]


async def test_a_second_one_of_a_lane_is_parked_again_when_somebody_ran_it(busy: Bound) -> None:
    await go_run(busy, "c")
    assert await take(busy, 3) == []
    assert (await busy.states())["c"] == "parked"
    assert await busy.lane("k") == ["a", "b", "c"]
    await busy.done("a")
    assert await take(busy, 4) == ["b"]


async def test_an_archived_one_that_was_run_again_stands_at_the_end(busy: Bound) -> None:
    await busy.archive("a")
    await go_run(busy, "a")
    assert await take(busy, 3) == ["b"]
    assert await busy.lane("k") == ["b", "c", "a"]
    assert breaches(await busy.everything()) == []


async def test_a_lost_reply_hands_out_the_same_one(busy: Bound) -> None:
    ids, _ = await busy.dequeue(10, number=1, again=1)
    assert ids == ["a"]


@pytest.mark.parametrize("verb", ["delete", "archive", "cancel", "reschedule", "move"])
@pytest.mark.parametrize("who", ["first", "second"])
async def test_by_hand(q: Bound, verb: str, who: str) -> None:
    """Taken away before it runs: the turn goes on, or the line gets shorter."""
    await q.line_up(("first", "k"), ("second", "k"), ("third", "k"), message=MESSAGE)
    more: dict[str, Any] = {"reschedule": {"delay": 60}, "move": {"target": "elsewhere"}}
    await getattr(q.inspector, verb)("q", who, **more.get(verb, {}))
    left = [name for name in ("first", "second", "third") if name != who]
    assert await q.lane("k") == left
    states = await q.states()
    assert (states[left[0]], states[left[1]]) == ("pending", "parked")
    assert breaches(await q.everything()) == []


async def test_moved_tasks_take_their_places_in_the_other_queue(q: Bound) -> None:
    await q.line_up(("a", "k"), ("b", "k"), ("c", "k"), message=MESSAGE)
    for task_id in ("b", "a", "c"):
        await q.inspector.move("q", task_id, "r")
    assert await q.client.zrange("asynq:{r}:lane:k", 0, -1) == [b"b", b"a", b"c"]
    assert await q.client.lrange("asynq:{r}:pending", 0, -1) == [b"b"]
    assert breaches(await q.everything()) == []
    assert not await q.client.keys("asynq:{q}:lane*")


async def test_a_parked_task_cannot_be_run_out_of_turn(busy: Bound) -> None:
    from veredus import WrongState

    with pytest.raises(WrongState, match="waits for its turn"):
        await busy.inspector.run("q", "b")
    bulk = await busy.inspector.run_all("q", "scheduled")
    assert bulk.done == 0
    assert (await busy.states())["b"] == "parked"


async def test_deleting_all_that_is_scheduled_empties_the_lane(busy: Bound) -> None:
    await busy.inspector.delete_all("q", "scheduled")
    assert await busy.lane("k") == ["a"]
    await busy.done("a")
    assert not await busy.client.keys("*lane*")


async def test_nothing_is_left_of_a_lane_without_tasks(busy: Bound) -> None:
    for number, task_id in enumerate(("a", "b", "c"), start=3):
        await busy.done((task_id, f"w:{1 if task_id == 'a' else number - 1}"))
        await take(busy, number)
    assert not await busy.client.keys("*lane*")
    assert not await busy.client.exists(busy.key("scheduled"))


async def test_a_completed_task_leaves_its_lane_although_an_archived_one_would_hold_it_up(q: Bound) -> None:
    await q.line_up(("a", "k"), ("b", "k"), hold=True)
    await take(q)
    await q.complete("a")
    assert await q.lane("k") == ["b"]
    assert (await q.states())["b"] == "pending"


async def test_run_out_of_turn_behind_a_first_that_is_gone_it_is_put_right_at_once(q: Bound) -> None:
    """Not only by the next sweep; and the reply knows that one is pending again."""
    await q.line_up(("a", "k"), ("b", "k"))
    await go_delete(q, "a")
    await go_run(q, "b")
    ids, reply = await q.dequeue(5, now=q.now)
    assert (ids, reply[2]) == ([], 1)
    assert await q.states() == {"b": "pending"}
    assert await q.lane("k") == ["b"]


async def test_the_reply_counts_the_one_whose_turn_came_by_an_expiry(q: Bound) -> None:
    await q.line_up(("a", "k"), expires="+100")
    await q.line_up(("b", "k"))
    q.now += 200
    ids, reply = await q.dequeue(5, now=q.now)
    assert (ids, reply[2]) == ([], 1)
    assert await q.pending() == ["b"]


async def test_who_stands_in_no_lane_begins_a_new_one(q: Bound) -> None:
    await q.line_up(("a", "k"))
    await q.client.delete(q.key("lane:k"), q.key("lanes"))
    assert await take(q) == ["a"]
    assert await q.lane("k") == ["a"]
    await q.line_up(("b", "k"))
    assert (await q.states())["b"] == "parked"


async def test_parked_when_it_is_due_it_does_not_go_to_the_front_later(q: Bound) -> None:
    await q.line_up(("a", "k"))
    await q.line_up(("b", "k"), due="+100")
    await q.client.hset(q.task("b"), "front", "1")
    q.now += 200
    await q.forward(now=q.now)
    assert (await q.states())["b"] == "parked"
    assert "front" not in await q.fields("b")


async def test_a_damaged_lane_keeps_no_order_and_holds_up_nobody(q: Bound) -> None:
    await q.line_up(("a", "k"))
    await q.line_up(("late", "k"), due="+100")
    assert await take(q) == ["a"]
    await q.client.delete(q.key("lane:k"))
    await q.client.set(q.key("lane:k"), "x")
    assert await q.done("a") == []
    assert await q.scores("lanes") == {"k": NOW}, "it stays on the list, where the doctor finds it"
    q.now += 200
    await q.forward(now=q.now)
    assert await q.pending() == ["late"]


async def test_only_an_archived_task_holds_a_lane_up_and_is_released(q: Bound) -> None:
    await q.line_up(("a", "k"), ("b", "k"), hold=True, message=MESSAGE)
    before = await q.everything()
    (lane,) = await q.lanes.info("q", ["k"])
    assert not lane.held
    assert await q.lanes.release("q", "k") == ""
    assert await q.everything() == before
    await take(q)
    await q.archive("a")
    (lane,) = await q.lanes.info("q", ["k"])
    assert lane.held
    assert await q.lanes.release("q", "k") == "a"


@pytest.mark.parametrize(("then", "second"), [("archive", "parked"), ("delete", "pending")])
async def test_one_that_was_cancelled_holds_up_its_lane_if_it_is_archived(q: Bound, then: str, second: str) -> None:
    await q.line_up(("a", "k"), ("b", "k"), hold=True, message=MESSAGE)
    await q.inspector.cancel("q", "a", then=then)
    assert (await q.states())["b"] == second
