"""complete: succeeded tasks are kept with their result until their retention ends."""

from __future__ import annotations

from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences

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
