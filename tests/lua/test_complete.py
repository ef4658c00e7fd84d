"""complete: succeeded tasks are kept with their result until their retention ends."""

from __future__ import annotations

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


async def test_a_batch_is_kept_and_counted(q: Queue) -> None:
    await q.activate("a", "b")
    before = await q.everything()
    rows = [("a", "w:1", "", b"A2", 600, 1, b"\xffresult"), ("b", "w:1", "", b"B2", 1, 0, b"")]
    assert await q.complete(*rows) == []
    assert differences(before, await q.everything()) == {
        q.key("active"): None,
        q.key("lease"): None,
        q.key("completed"): Key("zset", {"a": str(NOW // 1000 + 600), "b": str(NOW // 1000 + 1)}, "none"),
        q.task("a"): Key("hash", {"msg": "A2", "state": "completed", "result": "\udcffresult"}, "none"),
        q.task("b"): Key("hash", {"msg": "B2", "state": "completed"}, "none"),
        q.key("processed"): Key("string", "2", "none"),
        q.key(f"processed:{DAY}"): Key("string", "2", "days"),
    }


async def test_an_empty_result_is_a_result(q: Queue) -> None:
    await q.activate("a", "b")
    await q.complete(("a", "w:1", "", b"", 60, 1, b""), ("b", "w:1", "", b"", 60, 0, b""))
    assert (await q.fields("a"))["result"] == ""
    assert "result" not in await q.fields("b")


async def test_a_result_that_the_handler_wrote_before_stays(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), "result", "early")
    await q.complete(("a", "w:1", "", b"", 60, 0, b""))
    assert (await q.fields("a"))["result"] == "early"


async def test_the_traceback_of_an_earlier_failure_is_gone(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), "traceback", "1 1\nfirst")
    await q.complete("a")
    assert "traceback" not in await q.fields("a")


@FENCES
async def test_what_is_not_the_workers_own_stays_untouched_and_is_reported(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    assert await q.complete(("a", owner)) == [1]
    assert await q.everything() == before


@FENCES
async def test_the_rest_of_the_batch_is_settled(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    await q.activate("b", owner="z:1")
    before = await q.everything()
    assert await q.complete(("a", owner), ("b", "z:1"), ("b", "z:1")) == [1, 3]
    changed = differences(before, await q.everything())
    assert changed[q.key("completed")] == Key("zset", {"b": str(NOW // 1000 + 600)}, "none")
    assert changed[q.key("processed")] == Key("string", "1", "none")
    assert q.task("a") not in changed


async def test_a_held_lock_is_released_and_that_of_another_task_stays(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, ""), "b")
    await q.dequeue(2)
    assert await q.complete(("b", "w:1", LOCK)) == []
    assert await q.client.get(LOCK) == b"a"
    assert await q.complete(("a", "w:1", LOCK)) == []
    assert await q.client.exists(LOCK) == 0


@pytest.mark.parametrize("name", ["active", "lease", "completed"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.activate("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.complete("a", "b")
    assert await q.everything() == before


async def test_damaged_counts_fail_no_settlement(q: Queue) -> None:
    await q.activate("a")
    await q.client.rpush(q.key("processed"), "x")
    await q.client.rpush(q.key(f"processed:{DAY}"), "x")
    assert await q.complete("a") == []
    assert await q.scores("completed") == {"a": NOW // 1000 + 600}
