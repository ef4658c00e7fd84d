"""Limits while the server's clock is set: nobody waits for as long as it went back, nobody is let in too early."""

from __future__ import annotations

from tests.limits.test_scripts import fill, settle, take
from tests.order.support import Bound
from tests.support.keyspace import breaches

HOUR = 3_600_000


async def test_a_rate_does_not_stand_still_when_the_clock_is_set_back(q: Bound) -> None:
    """The starts count as begun just now: a period later there is room, and not before."""
    await q.limits.declare("q", {"task:t": "0 2 1000"})
    await fill(q, "t", "a", "b", "c", "d", "e")
    assert await take(q) == ["a", "b"]
    q.now -= HOUR
    await q.forward(now=q.now)
    assert await take(q) == []
    q.now += 999
    await q.forward(now=q.now)
    assert await take(q) == []
    q.now += 1
    await q.forward(now=q.now)
    assert await take(q) == ["c", "d"]
    assert breaches(await q.everything()) == []


async def test_a_queues_rate_does_not_stand_still_when_the_clock_is_set_back(q: Bound) -> None:
    await q.limits.declare("q", {"queue": "0 1 1000"})
    await fill(q, "t", "a", "b")
    assert await take(q) == ["a"]
    q.now -= HOUR
    assert await take(q) == []
    assert q.wait == 1000  # type: ignore[attr-defined]
    q.now += 1000
    assert await take(q) == ["b"]


async def test_room_is_not_kept_for_as_long_as_the_clock_went_back(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await settle(q, "done", "a")
    await q.client.lrem(q.key("pending"), 0, "b")  # whoever was called does not come
    q.now -= HOUR
    await q.forward(now=q.now)
    assert await take(q) == ["c"]


async def test_room_is_kept_for_ten_seconds_and_then_for_nobody(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await settle(q, "done", "a")
    await q.client.lrem(q.key("pending"), 0, "b")  # whoever was called does not come
    for later, taken in ((9_999, []), (1, ["c"])):
        q.now += later
        await q.forward(now=q.now)
        assert await take(q) == taken


async def test_a_clock_that_is_set_forward_makes_no_room_for_more_at_once(q: Bound) -> None:
    """The living have not renewed yet. Whoever has lost its lease makes room as ever."""
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    assert await take(q) == ["a"]
    q.now += HOUR
    await q.forward(now=q.now)
    assert await take(q) == []
    assert 0 < (await q.scores("limited"))["task:t"] - q.now <= 60_000, "looked at again, but not all the time"
    await q.client.zrem(q.key("lease"), "a")  # as Go recovers
    q.now += 2000
    await q.forward(now=q.now)
    assert await take(q) == ["b"]
