"""The doctor finds what is wrong with lanes and limits, and mends it without losing a task."""

from __future__ import annotations

import pytest

from tests.order.support import MESSAGE, Bound, go_archive, go_delete
from tests.support.keyspace import breaches
from tests.support.servers import VALKEY_ONLY

pytestmark = VALKEY_ONLY


async def kinds(q: Bound) -> set[str]:
    return {finding.kind for finding in await q.inspector.doctor.diagnose("q", server=False)}


@pytest.fixture
async def three(q: Bound) -> Bound:
    await q.line_up(("a", "k"), ("b", "k"), ("c", "k"), message=MESSAGE)
    assert await kinds(q) == set()
    return q


async def mended(q: Bound) -> None:
    wrong = await kinds(q)
    repaired = {finding.kind for finding in await q.inspector.doctor.repair_all("q")}
    assert wrong <= repaired, "what was repaired is reported"
    assert await kinds(q) == set()
    assert breaches(await q.everything()) == []


async def test_a_lane_has_an_id_without_a_task(three: Bound) -> None:
    await three.client.delete(three.task("a"))
    await three.client.delete(three.key("pending"))
    assert "order_stray" in await kinds(three)
    await mended(three)
    assert await three.states() == {"b": "pending", "c": "parked"}


async def test_the_lane_is_gone(three: Bound) -> None:
    await three.client.delete(three.key("lane:k"), three.key("lanes"))
    assert await kinds(three) == {"waiting_nowhere"}
    await mended(three)
    assert sorted((await three.states()).values()) == ["parked", "pending", "pending"] or await three.lane("k")


async def test_the_list_of_lanes_is_gone(three: Bound) -> None:
    await three.client.delete(three.key("lanes"))
    assert await kinds(three) == {"unlisted_order_key"}
    await mended(three)


async def test_a_lane_is_listed_that_has_no_tasks(three: Bound) -> None:
    await three.client.zadd(three.key("lanes"), {"ghost": 1})
    assert await kinds(three) == {"empty_order_key"}
    await mended(three)


async def test_the_first_is_parked(three: Bound) -> None:
    await three.client.delete(three.key("pending"))
    await three.client.zadd(three.key("scheduled"), {"a": 9_999_999_999})
    await three.client.hset(three.task("a"), "state", "scheduled")
    assert await kinds(three) == {"order_stopped"}
    await mended(three)
    assert (await three.states())["a"] == "pending"


async def test_a_lane_has_a_wrong_type(three: Bound) -> None:
    await three.client.delete(three.key("lane:k"))
    await three.client.set(three.key("lane:k"), "x")
    assert "wrong_type" in await kinds(three)
    await mended(three)


async def test_room_is_taken_up_by_a_task_that_does_not_run(three: Bound) -> None:
    await three.client.zadd(three.key("slots:task:t"), {"a": 5_000_000_000})
    assert await kinds(three) == {"stale_slot"}
    await mended(three)
    assert not await three.client.exists(three.key("slots:task:t"))


async def test_an_archived_one_belongs_into_its_lane_only_if_it_holds_it_up(three: Bound) -> None:
    await go_archive(three, "a")
    assert await kinds(three) == {"order_stray"}
    await three.client.hset(three.task("a"), "order_hold", "1")
    assert await kinds(three) == set()
    await three.client.hdel(three.task("a"), "order_hold")
    await mended(three)
    assert await three.states() == {"a": "archived", "b": "pending", "c": "parked"}


async def test_who_waits_for_a_limit_is_in_his_place(three: Bound) -> None:
    """The first of a lane may be parked for a limit, and a task without a lane as well."""
    await three.enqueue("x", ("y", MESSAGE))
    await go_delete(three, "x")
    for task_id in ("a", "y"):
        await three.client.lrem(three.key("pending"), 0, task_id)
        await three.client.zadd(three.key("scheduled"), {task_id: 9_999_999_999})
        await three.client.hset(three.task(task_id), mapping={"state": "scheduled", "limited_by": "task:t"})
    assert await kinds(three) == {"order_stopped", "waiting_nowhere"}
    await three.client.zadd(three.key("waiting:task:t"), {"a": 1, "y": 2})
    assert not {"order_stopped", "waiting_nowhere"} & await kinds(three)
    assert await three.lanes.check("q", "y", "", apply=False) == []
    await three.client.delete(three.key("waiting:task:t"))
    await mended(three)
    assert (await three.states())["y"] == "pending"
    assert "limited_by" not in await three.fields("y")


async def test_room_of_a_running_task_is_left_alone_and_other_room_goes_to_whoever_waits(three: Bound) -> None:
    await three.limits.declare("q", {"task:t": "1 0 0"})
    assert (await three.dequeue(1, now=three.now))[0] == ["a"]
    assert await three.limits.check("q", "task:t", "a", apply=True) is False
    assert await three.client.zrange(three.key("slots:task:t"), 0, -1) == [b"a"]
    await three.enqueue(("x", MESSAGE))
    assert (await three.dequeue(1, number=2, now=three.now))[0] == []
    await three.client.zrem(three.key("slots:task:t"), "a")
    await three.client.zadd(three.key("slots:task:t"), {"gone": 5_000_000_000})
    assert await three.limits.check("q", "task:t", "gone", apply=True) is True
    assert (await three.states())["x"] == "pending"
