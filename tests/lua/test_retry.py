"""retry: out of active and lease, the message stored, due again: all four or none, and a wake-up like schedule's."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences

LOCK = "asynq:{q}:unique:t:1"


async def test_a_batch_has_all_its_effects(q: Queue) -> None:
    await q.activate("a", "b")
    before = await q.everything()
    assert await q.retry(("a", "w:1", b"A2", 1500, 1), ("b", "w:1", b"B2", 0, 0)) == []
    assert differences(before, await q.everything()) == {
        q.key("active"): None,
        q.key("lease"): None,
        q.key("retry"): Key("zset", {"a": "4000000002", "b": "4000000001"}, "none"),
        q.key("due"): Key("zset", {"a": str(NOW + 1500), "b": str(NOW)}, "none"),
        q.task("a"): Key("hash", {"msg": "A2", "state": "retry"}, "none"),
        q.task("b"): Key("hash", {"msg": "B2", "state": "retry", "deferrals": "1"}, "none"),
        q.key("processed"): Key("string", "1", "none"),
        q.key("failed"): Key("string", "1", "none"),
        q.key(f"processed:{DAY}"): Key("string", "1", "days"),
        q.key(f"failed:{DAY}"): Key("string", "1", "days"),
    }


async def test_the_lock_and_fields_that_others_wrote_stay(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, "+9000"))
    await q.dequeue()
    await q.client.hset(q.task("a"), mapping={"result": "r", "group": "g"})
    await q.retry("a")
    assert await q.client.get(LOCK) == b"a"
    assert await q.fields("a") == {
        "msg": "new",
        "state": "retry",
        "unique_key": LOCK,
        "expires_at": str(NOW + 9000),
        "result": "r",
        "due_group": "g",
    }


async def test_the_traceback_is_that_of_the_last_failure(q: Queue) -> None:
    await q.activate("a", "b")
    await q.retry(("a", "w:1", b"A2", 0, 1, 0, 0, b"1 1\nfirst"), ("b", "w:1", b"B2", 0, 1, 0, 0, b"1 1\nfirst"))
    await q.forward()
    await q.dequeue(2, number=2)
    assert (await q.fields("a"))["traceback"] == "1 1\nfirst", "as long as nothing newer is known"
    await q.retry(("a", "w:2", b"A3", 0, 1, 0, 0, b"2 2\nsecond"), ("b", "w:2", b"B3", 0, 1))
    assert (await q.fields("a"))["traceback"] == "2 2\nsecond"
    assert "traceback" not in await q.fields("b")


@pytest.mark.parametrize(("cancel", "due", "left"), [("archive", NOW, "archive"), ("retry", NOW + 60_000, None)])
async def test_a_task_that_was_cancelled_meanwhile_is_due_at_once_unless_a_retry_was_asked_for(
    q: Queue, cancel: str, due: int, left: str | None
) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), "cancel", cancel)
    await q.retry(("a", "w:1", b"A2", 60_000, 1))
    assert (await q.scores("due"), (await q.fields("a")).get("cancel")) == ({"a": due}, left)


async def test_both_lifetime_counts_start_again_with_the_count_of_runs(q: Queue) -> None:
    await q.activate("a")
    await q.client.set(q.key("processed"), 2**63 - 512)
    await q.client.set(q.key("failed"), 77)
    await q.retry("a")
    assert await q.client.mget(q.key("processed"), q.key("failed")) == [b"1", b"1"]


async def test_to_the_front_if_asked_and_only_this_time(q: Queue) -> None:
    await q.activate("a", "b")
    await q.retry(("a", "w:1", b"", 10, 1, 1), ("b", "w:1", b"", 0, 1, 1))
    await q.enqueue("c", "d")
    await q.forward(now=NOW + 10)
    assert await q.pending() == ["b", "a", "c", "d"]  # as they were due
    await q.dequeue(number=2)
    await q.client.hset(q.task("b"), "front", "1")  # as a Go forwarder leaves it
    await q.retry(("b", "w:2", b"", 0, 1, 0))
    await q.forward(now=NOW + 20)
    assert await q.pending() == ["a", "c", "d", "b"]


async def test_it_wakes_when_nothing_was_waiting(q: Queue) -> None:
    await q.activate("a")
    async with q.wakeups() as heard:
        await q.retry(("a", "w:1", b"", 1000, 1))
    assert heard == [str(NOW + 1000)]


async def test_it_wakes_for_an_earlier_one_and_not_for_later_ones(q: Queue) -> None:
    await q.activate(*"abcd")
    await q.schedule(("s", "+5000"))
    async with q.wakeups() as heard:
        await q.retry(("a", "w:1", b"", 5000, 1))
        await q.retry(("b", "w:1", b"", 5001, 1))
        await q.retry(("c", "w:1", b"", 4999, 1))
        await q.retry(("d", "w:1", b"", 4999, 1))
    assert heard == [str(NOW + 4999)]


async def test_it_wakes_when_something_is_overdue(q: Queue) -> None:
    await q.activate("a", "b")
    await q.schedule(("s", "+100"))
    async with q.wakeups() as heard:
        await q.retry(("a", "w:1", b"", 9000, 1), now=NOW + 99)
        await q.retry(("b", "w:1", b"", 9000, 1), now=NOW + 100)
    assert heard == [str(NOW + 9100)]


@pytest.mark.parametrize("name", ["scheduled", "retry"])
async def test_what_go_put_there_counts_as_waiting(q: Queue, name: str) -> None:
    await q.activate("a", "b")
    await q.client.zadd(q.key(name), {"go": NOW // 1000 + 10})
    async with q.wakeups() as heard:
        await q.retry(("a", "w:1", b"", 20_000, 1))
        await q.retry(("b", "w:1", b"", 5000, 1))
    assert heard == [str(NOW + 5000)]


async def test_a_batch_wakes_once_for_its_earliest(q: Queue) -> None:
    await q.activate(*"abc")
    async with q.wakeups() as heard:
        await q.retry(("a", "w:1", b"", 300, 1), ("b", "w:1", b"", 100, 0), ("c", "w:1", b"", 200, 1))
    assert heard == [str(NOW + 100)]


async def test_the_delay_counts_from_the_servers_clock_and_never_comes_early(q: Queue) -> None:
    await q.enqueue("a", now=None)
    await q.dequeue(now=None)
    seconds, micros = await q.client.time()
    assert await q.retry(("a", "w:1", b"", 500, 1), now=None) == []
    assert (await q.scores("due"))["a"] >= (seconds * 10**6 + micros) / 1000 + 500


async def test_a_task_that_killed_the_process_that_ran_it_is_counted_with_the_lost_ones(q: Queue) -> None:
    await q.activate("a", "b", "c")
    await q.client.hset(q.task("b"), "losses", 2)
    await q.client.hset(q.task("c"), "losses", "damaged")
    rows = [(one, "w:1", b"new", 0, 1, 0, 1) for one in ("a", "b", "c")]
    assert await q.retry(*rows) == []
    assert [(await q.fields(one))["losses"] for one in ("a", "b", "c")] == ["1", "3", "damaged"]
