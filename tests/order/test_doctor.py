"""The doctor finds what is wrong with lanes and limits, and mends it without losing a task."""

from __future__ import annotations

import pytest

from tests.order.support import MESSAGE, Bound
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
    await q.inspector.doctor.repair_all("q")
    assert await kinds(q) == set()
    assert breaches(await q.everything()) == []


async def test_a_lane_has_an_id_without_a_task(three: Bound) -> None:
    await three.client.delete(three.task("a"))
    await three.client.delete(three.key("pending"))
    assert "lane_stray" in await kinds(three)
    await mended(three)
    assert await three.states() == {"b": "pending", "c": "parked"}


async def test_the_lane_is_gone(three: Bound) -> None:
    await three.client.delete(three.key("lane:k"), three.key("lanes"))
    assert await kinds(three) == {"parked_nowhere"}
    await mended(three)
    assert sorted((await three.states()).values()) == ["parked", "pending", "pending"] or await three.lane("k")


async def test_the_list_of_lanes_is_gone(three: Bound) -> None:
    await three.client.delete(three.key("lanes"))
    assert await kinds(three) == {"unlisted_lane"}
    await mended(three)


async def test_a_lane_is_listed_that_has_no_tasks(three: Bound) -> None:
    await three.client.zadd(three.key("lanes"), {"ghost": 1})
    assert await kinds(three) == {"empty_lane"}
    await mended(three)


async def test_the_first_is_parked(three: Bound) -> None:
    await three.client.delete(three.key("pending"))
    await three.client.zadd(three.key("scheduled"), {"a": 9_999_999_999})
    await three.client.hset(three.task("a"), "state", "scheduled")
    assert await kinds(three) == {"lane_stopped"}
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
