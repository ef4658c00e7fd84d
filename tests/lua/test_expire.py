"""expire: completed tasks go when their retention ends."""

from __future__ import annotations

import pytest

from tests.support.queue import NOW, Queue
from veredus.errors import CommandRefused


async def keep(q: Queue, **retentions: int) -> None:
    await q.activate(*retentions)
    rows = [(task_id, "w:1", "", b"", seconds, 1, b"r") for task_id, seconds in retentions.items()]
    assert await q.complete(*rows) == []


async def test_exactly_what_has_ended_goes(q: Queue) -> None:
    await keep(q, a=1, b=2)
    before = await q.everything()
    assert await q.expire(now=NOW // 1000 * 1000 + 999) == 0
    assert await q.everything() == before
    assert await q.expire(now=NOW // 1000 * 1000 + 1000) == 1
    assert await q.scores("completed") == {"b": NOW // 1000 + 2}
    assert await q.client.exists(q.task("a")) == 0
    assert (await q.fields("b"))["result"] == "r"


async def test_the_limit_bounds_a_call_and_the_oldest_go_first(q: Queue) -> None:
    await keep(q, c=3, a=1, b=2)
    assert await q.expire(limit=2, now=NOW + 10_000) == 2
    assert list(await q.scores("completed")) == ["c"]
    assert await q.expire(limit=2, now=NOW + 10_000) == 1
    assert await q.expire(limit=2, now=NOW + 10_000) == 0


async def test_damaged_tasks_go_too(q: Queue) -> None:
    await keep(q, a=1, b=1, c=1)
    await q.client.delete(q.task("a"), q.task("b"))
    await q.client.set(q.task("b"), "x")
    assert await q.expire(now=NOW + 10_000) == 3
    assert not [name for name in await q.everything() if name.startswith(q.prefix)]


async def test_a_set_of_a_wrong_type_stops_it(q: Queue) -> None:
    await q.client.set(q.key("completed"), "x")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.expire()


async def test_many_thousands_in_one_call(q: Queue) -> None:
    await keep(q, **{f"t{i}": 1 for i in range(9000)})
    assert await q.expire(limit=9000, now=NOW + 10_000) == 9000
    assert await q.client.zcard(q.key("completed")) == 0


async def test_due_times_of_tasks_that_no_longer_wait_are_removed(q: Queue) -> None:
    await q.schedule(("taken by Go", "+1000"), ("waits", "+1000"), ("deleted by Go", "+90000"), ("later", "+90000"))
    await q.client.zrem(q.key("scheduled"), "taken by Go", "deleted by Go")
    await q.client.zadd(q.key("retry"), {"retried by Go": NOW // 1000 + 5})
    await q.client.zadd(q.key("due"), {"retried by Go": NOW})
    assert await q.expire(now=NOW + 3001) == 3
    assert await q.client.zrange(q.key("due"), 0, -1) == [b"waits", b"later"]
    assert await q.expire(now=NOW + 92_001) == 0


async def test_the_whole_index_is_looked_through_in_portions(q: Queue) -> None:
    await q.schedule(*[(f"t{n}", "+90000") for n in range(1000)])
    await q.client.zremrangebyrank(q.key("scheduled"), 300, 349)
    removed = [await q.expire(limit=100)]
    while q.due_cursor != b"0":
        removed.append(await q.expire(limit=100))
    assert len(removed) > 5
    assert sum(removed) == 50
    assert await q.client.zcard(q.key("due")) == 950
