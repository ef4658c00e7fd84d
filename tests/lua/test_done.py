"""done: succeeded tasks leave nothing behind but the count."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


async def test_a_batch_is_deleted_and_counted(q: Queue) -> None:
    await q.activate("a", "b", "c")
    before = await q.everything()
    assert await q.done("a", "c") == []
    after = await q.everything()
    assert differences(before, after) == {
        q.key("active"): Key("list", ["b"], "none"),
        q.key("lease"): Key("zset", {"b": after[q.task("b")].value["held"].rpartition(":")[2]}, "none"),
        q.task("a"): None,
        q.task("c"): None,
        q.key("processed"): Key("string", "2", "none"),
        q.key(f"processed:{DAY}"): Key("string", "2", "days"),
    }


@FENCES
async def test_what_is_not_the_workers_own_stays_untouched_and_is_reported(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    assert await q.done(("a", owner)) == [1]
    assert await q.everything() == before


@FENCES
async def test_the_rest_of_the_batch_is_settled(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    await q.activate("b", owner="z:1")
    before = await q.everything()
    assert await q.done(("b", "z:1"), ("a", owner), ("b", "z:1")) == [2, 3]
    changed = differences(before, await q.everything())
    assert changed[q.task("b")] is None
    assert changed[q.key("processed")] == Key("string", "1", "none")
    assert q.task("a") not in changed


async def test_a_held_lock_is_released(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, ""))
    await q.dequeue()
    assert await q.done(("a", "w:1", LOCK)) == []
    assert await q.client.exists(LOCK) == 0


async def test_the_lock_of_another_task_stays(q: Queue) -> None:
    await q.activate("a")
    await q.client.set(LOCK, "other")
    assert await q.done(("a", "w:1", LOCK)) == []
    assert await q.client.get(LOCK) == b"other"


async def test_a_lock_of_a_wrong_type_stays_and_fails_nothing(q: Queue) -> None:
    await q.activate("a")
    await q.client.rpush(LOCK, "x")
    assert await q.done(("a", "w:1", LOCK)) == []
    assert await q.client.exists(q.task("a")) == 0


async def test_a_lock_is_not_released_by_one_who_lost_the_task(q: Queue) -> None:
    await q.enqueue(("a", b"", LOCK, 60, ""))
    await q.dequeue()
    assert await q.done(("a", "x:1", LOCK)) == [1]
    assert await q.client.get(LOCK) == b"a"


@pytest.mark.parametrize("name", ["active", "lease"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.activate("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.done("a", "b")
    assert await q.everything() == before


async def test_the_daily_count_expires_after_ninety_days_counted_from_its_first(q: Queue) -> None:
    await q.activate("a", "b")
    await q.done("a")
    server_seconds, _ = await q.client.time()
    expires = server_seconds + await q.client.ttl(q.key(f"processed:{DAY}"))
    assert abs(expires - (NOW // 1000 + 90 * 86400)) <= 1
    await q.done("b", now=NOW + 3_600_000)
    assert abs(server_seconds + await q.client.ttl(q.key(f"processed:{DAY}")) - expires) <= 1
    assert await q.client.get(q.key(f"processed:{DAY}")) == b"2"


@pytest.mark.parametrize(
    "moment",
    [
        "2096-10-02T23:59:59.999",
        "2096-10-03T00:00:00.000",
        "2096-02-29T12:00:00.000",
        "2096-12-31T23:59:59.999",
        "2097-01-01T00:00:00.000",
        "2097-02-28T23:59:59.999",
        "2097-03-01T00:00:00.000",
        "2100-02-28T23:59:59.999",
        "2100-03-01T00:00:00.000",
    ],
)
async def test_days_are_utc(q: Queue, moment: str) -> None:
    await q.activate("a")
    now = round(datetime.fromisoformat(moment + "+00:00").timestamp() * 1000)
    assert await q.done("a", now=now) == []
    assert [name for name in await q.everything() if ":processed:" in name] == [q.key(f"processed:{moment[:10]}")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2**63 - 513, 2**63 - 512),
        (2**63 - 512, 1),
        (2**63 - 1, 1),
    ],
)
async def test_the_lifetime_count_starts_again_where_asynqs_does(q: Queue, before: int, after: int) -> None:
    await q.activate("a")
    await q.client.set(q.key("processed"), before)
    assert await q.done("a") == []
    assert int(await q.client.get(q.key("processed"))) == after


async def test_damaged_counts_fail_no_settlement(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.rpush(q.key("processed"), "x")
    await q.client.rpush(q.key(f"processed:{DAY}"), "x")
    assert await q.done("a") == []
    await q.client.set(q.key("processed"), "not a number")
    assert await q.done("b") == []
    assert await q.active() == []


async def test_nothing_settled_counts_nothing(q: Queue) -> None:
    assert await q.done("nobody") == [1]
    assert await q.everything() == {}


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    await q.activate(*ids)
    assert await q.done(*ids) == []
    left = await q.everything()
    assert set(left) == {q.key("processed"), q.key(f"processed:{DAY}"), q.key("batch:w")}
    assert left[q.key("processed")].value == "5000"


async def test_each_row_has_its_own_owner_though_the_leases_end_together(q: Queue) -> None:
    await q.enqueue("a", "b", "c")
    await q.dequeue(2, worker="w", number=1)
    await q.dequeue(1, worker="x", number=9)
    assert await q.done(("a", "w:1"), ("b", "x:9"), ("c", "x:9")) == [2]
    assert await q.active() == ["b"]


async def test_a_position_is_reported_once_however_often_its_id_comes(q: Queue) -> None:
    await q.activate("a")
    assert await q.done(("a", "w:1"), ("a", "x:9"), ("a", "w:1")) == [2, 3]
    assert await q.active() == []
