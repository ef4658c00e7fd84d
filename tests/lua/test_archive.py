"""archive: tasks that failed for good are put aside, within the archive's age and size."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences

LOCK = "asynq:{q}:unique:t:1"
SECOND = NOW // 1000


async def fill(q: Queue, count: int, score: int = SECOND - 10) -> None:
    """Archived tasks o0, o1, ... with scores one second apart at most."""
    pipe = q.client.pipeline(transaction=False)
    pipe.zadd(q.key("archived"), {f"o{i}": score for i in range(count)})
    for i in range(count):
        pipe.hset(q.task(f"o{i}"), mapping={"msg": "", "state": "archived"})
    await pipe.execute()


async def test_a_batch_is_put_aside_and_counted(q: Queue) -> None:
    await q.activate("a", "b")
    before = await q.everything()
    assert await q.archive(("a", "w:1", "", b"A2"), ("b", "w:1", "", b"stand-in", b"\xff\x00raw")) == []
    assert differences(before, await q.everything()) == {
        q.key("active"): None,
        q.key("lease"): None,
        q.key("archived"): Key("zset", {"a": str(SECOND), "b": str(SECOND)}, "none"),
        q.task("a"): Key("hash", {"msg": "A2", "state": "archived"}, "none"),
        q.task("b"): Key("hash", {"msg": "stand-in", "state": "archived", "original": "\udcff\x00raw"}, "none"),
        q.key("processed"): Key("string", "2", "none"),
        q.key("failed"): Key("string", "2", "none"),
        q.key(f"processed:{DAY}"): Key("string", "2", "days"),
        q.key(f"failed:{DAY}"): Key("string", "2", "days"),
    }


async def test_a_cancelled_task_counts_as_run_and_not_as_failed(q: Queue) -> None:
    await q.activate("a", "b")
    assert await q.archive(("a", "w:1", "", b"A2", b"", 0), ("b", "w:1")) == []
    assert [await q.client.get(q.key(name)) for name in ("processed", "failed")] == [b"2", b"1"]


async def test_the_traceback_is_that_of_the_last_failure(q: Queue) -> None:
    await q.activate("a", "b")
    for task_id in ("a", "b"):
        await q.client.hset(q.task(task_id), "traceback", "1 1\nfirst")
    await q.archive(("a", "w:1", "", b"A2", b"", 1, b"2 2\nsecond"), ("b", "w:1", "", b"B2"))
    assert (await q.fields("a"))["traceback"] == "2 2\nsecond"
    assert "traceback" not in await q.fields("b")


async def test_what_is_too_old_goes_with_its_hash_and_lock(q: Queue) -> None:
    await q.activate("a")
    await q.client.zadd(q.key("archived"), {"old": SECOND - 100, "young": SECOND - 99})
    await q.client.hset(q.task("old"), mapping={"msg": "", "state": "archived", "unique_key": LOCK})
    await q.client.hset(q.task("young"), mapping={"msg": "", "state": "archived"})
    await q.client.set(LOCK, "old")
    assert await q.archive("a", max_age=100) == []
    assert await q.scores("archived") == {"young": SECOND - 99, "a": SECOND}
    assert await q.client.exists(q.task("old"), LOCK) == 0
    assert await q.client.exists(q.task("young")) == 1


@pytest.mark.parametrize(("max_size", "left"), [(6, 5), (5, 4), (100, 5)])
async def test_it_keeps_one_less_than_its_limit_as_asynq_does(q: Queue, max_size: int, left: int) -> None:
    await fill(q, 4)
    await q.activate("a")
    assert await q.archive("a", max_size=max_size) == []
    kept = await q.scores("archived")
    assert len(kept) == left
    assert "a" in kept
    assert {f"o{i}" for i in range(4) if await q.client.exists(q.task(f"o{i}"))} == kept.keys() - {"a"}


async def test_the_oldest_go_first(q: Queue) -> None:
    await q.client.zadd(q.key("archived"), {"third": SECOND - 1, "first": SECOND - 3, "second": SECOND - 2})
    await q.activate("a")
    await q.archive("a", max_size=3)
    assert list(await q.scores("archived")) == ["third", "a"]


async def test_asynqs_limit_of_ten_thousand_keeps_9999(q: Queue) -> None:
    await fill(q, 10_050)
    await q.activate("a")
    assert await q.archive("a") == []
    assert await q.client.zcard(q.key("archived")) == 9999


@pytest.mark.parametrize("flood", ["too many", "too old"])
async def test_a_flood_of_excess_melts_away_and_breaks_nothing(q: Queue, flood: str) -> None:
    await fill(q, 9500, SECOND - 10 if flood == "too many" else SECOND - 10**7)
    ids = [f"a{i}" for i in range(20)]
    await q.activate(*ids)
    sizes = []
    for task_id in ids:
        assert await q.archive(task_id, max_size=100, max_age=10**6) == []
        sizes.append(await q.client.zcard(q.key("archived")))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] >= 19 * 50
    assert await q.active() == []
    kept = await q.scores("archived")
    assert set(ids) <= kept.keys()
    hashes = [name async for name in q.client.scan_iter(q.task("*"), count=5000)]
    assert {name.decode() for name in hashes} == {q.task(task_id) for task_id in kept}


async def test_a_big_batch_trims_more_than_it_adds(q: Queue) -> None:
    await fill(q, 9000)
    ids = [f"a{i}" for i in range(2000)]
    await q.activate(*ids)
    assert await q.archive(*ids, max_size=100) == []
    assert await q.client.zcard(q.key("archived")) == 9000 - 100


async def test_a_hash_of_a_wrong_type_among_the_old_does_not_stop_it(q: Queue) -> None:
    await q.client.zadd(q.key("archived"), {"old": 1})
    await q.client.set(q.task("old"), "x")
    await q.activate("a")
    assert await q.archive("a") == []
    assert await q.scores("archived") == {"a": SECOND}
