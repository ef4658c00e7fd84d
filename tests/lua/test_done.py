"""done: succeeded tasks leave nothing behind but the count."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.keyspace import Key
from tests.support.queue import DAY, NOW, Queue, differences

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


async def test_batches_with_the_same_end_of_lease_are_of_their_own_owners(q: Queue) -> None:
    await q.enqueue("a", "b", "c")
    for number in (1, 2, 3):
        await q.dequeue(number=number)
    assert await q.done(("a", "w:1"), ("b", "w:2"), ("c", "w:2")) == [3]
    assert await q.client.exists(q.task("a"), q.task("b")) == 0


async def test_one_lease_of_a_batch_may_end_later_than_the_others(q: Queue) -> None:
    await q.activate("a", "b", "c")
    assert await q.extend("b", now=NOW + 5000) == []
    assert await q.done("a", "b", "c") == []


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


def _names(letter: str, count: int = 10) -> list[str]:
    return [f"{letter}{n}" for n in range(count)]


@pytest.mark.parametrize(
    "ended",
    [
        _names("b"),
        _names("c"),
        [*reversed(_names("b"))],
        _names("b")[2:],
        [*_names("b")[1:], "c0"],
        [*_names("a"), "c5"],
    ],
    ids=["in front of the tail", "further", "in another order", "a part", "two blocks", "not side by side"],
)
async def test_tasks_that_end_while_older_ones_of_another_worker_run(q: Queue, ended: list[str]) -> None:
    """Two workers that take turns have blocks side by side in the list."""
    for letter, owner in (("a", "v:1"), ("b", "w:1"), ("c", "v:2"), ("d", "w:2")):
        await q.activate(*_names(letter), owner=owner)
    before = await q.active()
    owners = {"a": "v:1", "b": "w:1", "c": "v:2", "d": "w:2"}
    assert await q.done(*[(task_id, owners[task_id[0]]) for task_id in ended]) == []
    assert await q.active() == [task_id for task_id in before if task_id not in ended], "the others in their order"
    assert await q.scores("lease") == dict.fromkeys((await q.active()), (await q.scores("lease"))["d0"])


async def test_an_id_that_comes_twice_is_ended_once_and_the_others_with_it(q: Queue) -> None:
    await q.activate("a", "b", "c")
    assert await q.done("a", "a", "b", "b", "c") == [2, 4]
    assert (await q.active(), await q.scores("lease")) == ([], {})
    assert not await q.client.exists(*[q.task(one) for one in "abc"])


async def test_an_id_that_a_damaged_list_has_twice_takes_no_other_with_it(q: Queue) -> None:
    for letter, owner in (("a", "v:1"), ("b", "w:1")):
        await q.activate(*_names(letter), owner=owner)
    await q.client.linsert(q.key("active"), "AFTER", "b3", "b4")
    before = await q.active()
    assert await q.done(*[(task_id, "w:1") for task_id in _names("b")]) == []
    left = await q.active()
    assert [task_id for task_id in left if task_id[0] == "a"] == [task_id for task_id in before if task_id[0] == "a"]
    assert set(left) <= {*_names("a"), "b4"}


async def test_blocks_leave_the_list_with_few_commands(q: Queue) -> None:
    for letter, owner in (("a", "v:1"), ("b", "w:1")):
        await q.activate(*_names(letter), owner=owner)
    await q.client.config_resetstat()
    assert await q.done(*[(task_id, "w:1") for task_id in _names("b")]) == []
    assert "cmdstat_lrem" not in await q.client.info("commandstats")
