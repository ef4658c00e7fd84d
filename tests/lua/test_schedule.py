"""schedule: tasks due later, to the millisecond, and a wake-up only if it changes the forwarders' plan."""

from __future__ import annotations

import math

import pytest

from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


async def test_a_batch_has_whole_seconds_in_the_shared_set_and_milliseconds_in_the_index(q: Queue) -> None:
    before = await q.everything()
    assert await q.schedule(("a", "+250", b"A"), ("b", str(NOW + 61_000), b"B")) == [1, 1]
    assert differences(before, await q.everything()) == {
        q.key("scheduled"): Key("zset", {"a": "4000000001", "b": "4000000062"}, "none"),
        q.key("due"): Key("zset", {"a": str(NOW + 250), "b": str(NOW + 61_000)}, "none"),
        q.task("a"): Key("hash", {"msg": "A", "state": "scheduled"}, "none"),
        q.task("b"): Key("hash", {"msg": "B", "state": "scheduled"}, "none"),
    }


@pytest.mark.parametrize("offset", [0, 1, 249, 250, 251, 749, 750, 751, 1000])
async def test_the_score_is_the_second_rounded_up(q: Queue, offset: int) -> None:
    await q.schedule(("a", f"+{offset}"))
    space = await q.everything()
    assert space[q.key("scheduled")].value == {"a": str(math.ceil((NOW + offset) / 1000))}
    assert space[q.key("due")].value == {"a": str(NOW + offset)}


async def test_the_delay_counts_from_the_servers_clock_and_never_comes_early(q: Queue) -> None:
    before = await microseconds(q)
    await q.schedule(("a", "+500"), now=None)
    after = await microseconds(q)
    due = (await q.scores("due"))["a"]
    assert before / 1000 + 500 <= due <= math.ceil(after / 1000) + 500


async def test_clock_and_delay_are_rounded_up_together(q: Queue) -> None:
    """Each by itself would make half of the tasks a millisecond late."""
    for number in range(50):
        before = await microseconds(q)
        await q.schedule((f"{number}", "+500.400"), now=None)
        after = await microseconds(q)
        due = (await q.scores("due"))[f"{number}"]
        assert before / 1000 + 500.4 <= due <= math.ceil(after / 1000 + 500.4)


async def microseconds(q: Queue) -> int:
    """The server's clock."""
    seconds, micros = await q.client.time()
    return int(seconds) * 10**6 + int(micros)


async def test_an_id_that_exists_is_refused_and_changes_nothing(q: Queue) -> None:
    await q.schedule(("a", "+5000"))
    await q.enqueue("b")
    before = await q.everything()
    assert await q.schedule(("a", "+1"), ("b", "+1", b"", LOCK, 60)) == [0, 0]
    assert await q.everything() == before


async def test_the_lock_lives_for_the_delay_and_its_ttl(q: Queue) -> None:
    assert await q.schedule(("a", "+600999", b"A", LOCK, 1000)) == [1]
    assert 1590 < await q.client.ttl(LOCK) <= 1600
    assert await q.client.get(LOCK) == b"a"
    assert (await q.fields("a"))["unique_key"] == LOCK


async def test_the_lock_of_a_task_that_was_due_long_ago_lives_for_its_ttl(q: Queue) -> None:
    await q.schedule(("a", str(NOW - 10**9), b"A", LOCK, 1000))
    assert 990 < await q.client.ttl(LOCK) <= 1000


async def test_a_held_lock_refuses_the_task_and_nothing_else_of_the_batch(q: Queue) -> None:
    await q.enqueue(("x", b"", LOCK, 60))
    before = await q.everything()
    assert await q.schedule(("a", "+100", b"A", LOCK, 60), ("b", "+2000", b"B")) == [-1, 1]
    assert differences(before, await q.everything()) == {
        q.key("scheduled"): Key("zset", {"b": "4000000003"}, "none"),
        q.key("due"): Key("zset", {"b": str(NOW + 2000)}, "none"),
        q.task("b"): Key("hash", {"msg": "B", "state": "scheduled"}, "none"),
    }


async def test_expires_is_stored_as_an_absolute_instant(q: Queue) -> None:
    await q.schedule(("a", "+100", b"", "", 0, "+900"))
    assert (await q.fields("a"))["expires_at"] == str(NOW + 900)


async def test_a_lock_time_that_redis_refuses_strands_nobody_of_the_batch(q: Queue) -> None:
    before = await q.everything()
    with pytest.raises(CommandRefused):
        await q.schedule(("a", "+100"), ("b", "+0", b"", LOCK, 0))
    after = await q.everything()
    assert after == before


@pytest.mark.parametrize("name", ["scheduled", "due"])
async def test_a_set_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.schedule(("a", "+100", b"", LOCK, 60))
    assert await q.everything() == before


async def test_a_damaged_retry_set_is_not_its_business(q: Queue) -> None:
    await q.client.set(q.key("retry"), "x")
    assert await q.schedule(("a", "+100")) == [1]


async def test_it_wakes_when_nothing_was_waiting(q: Queue) -> None:
    async with q.wakeups() as heard:
        await q.schedule(("a", "+5000"))
    assert heard == [str(NOW + 5000)]


async def test_it_wakes_for_an_earlier_one_and_not_for_later_ones(q: Queue) -> None:
    await q.schedule(("a", "+5000"))
    async with q.wakeups() as heard:
        await q.schedule(("same", "+5000"))
        await q.schedule(("later", "+5001"))
        await q.schedule(("earlier", "+4999"))
        await q.schedule(("between", "+4999"))
    assert heard == [str(NOW + 4999)]


async def test_it_wakes_when_something_is_overdue(q: Queue) -> None:
    await q.schedule(("a", "+100"))
    async with q.wakeups() as heard:
        await q.schedule(("b", "+9000"), now=NOW + 99)
        await q.schedule(("c", "+9000"), now=NOW + 100)
    assert heard == [str(NOW + 9100)]


async def test_a_waiting_retry_counts_as_waiting(q: Queue) -> None:
    await q.activate("a")
    await q.retry(("a", "w:1", b"", 1000, 1))
    async with q.wakeups() as heard:
        await q.schedule(("b", "+1001"))
        await q.schedule(("c", "+999"))
    assert heard == [str(NOW + 999)]


@pytest.mark.parametrize("name", ["scheduled", "retry"])
async def test_what_go_put_there_counts_as_waiting(q: Queue, name: str) -> None:
    await q.client.zadd(q.key(name), {"go": NOW // 1000 + 10})
    async with q.wakeups() as heard:
        await q.schedule(("b", "+20000"))
        await q.schedule(("c", "+5000"))
    assert heard == [str(NOW + 5000)]


async def test_a_batch_wakes_once_for_its_earliest(q: Queue) -> None:
    async with q.wakeups() as heard:
        await q.schedule(("a", "+300"), ("b", "+100"), ("c", "+200"))
    assert heard == [str(NOW + 100)]


async def test_refused_tasks_wake_nobody(q: Queue) -> None:
    await q.enqueue(("x", b"", LOCK, 60))
    async with q.wakeups() as heard:
        assert await q.schedule(("x", "+1"), ("y", "+1", b"", LOCK, 60)) == [0, -1]
    assert heard == []


async def test_five_thousand_in_one_call(q: Queue) -> None:
    async with q.wakeups() as heard:
        assert await q.schedule(*[(f"t{i}", f"+{i + 1}") for i in range(5000)]) == [1] * 5000
    assert heard == [str(NOW + 1)]
    assert await q.scores("due") == {f"t{i}": NOW + i + 1 for i in range(5000)}
