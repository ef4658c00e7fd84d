"""replace: a task that has ended makes room for a new one with its id, in one step; any other one stays."""

from __future__ import annotations

import pytest

from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from veredus.errors import CommandRefused
from veredus.store.connection.scripts import with_insert
from veredus.store.tasks.intake import REPLACE, CallRecord, Intake, NewTask
from veredus.wire import keys

LOCK, OTHER = "asynq:{q}:unique:t:1", "asynq:{q}:unique:t:2"


async def replace(q: Queue, lock: str = "", due: str = "", group: str = "", number: str = "") -> int:
    record = CallRecord(q.key("sent:p:1"), number, 40)
    entry = NewTask("a", b"NEW", due, "", lock, 60 if lock else 0, group=group, replace=True)
    insert = Intake(q.redis).insertion("q", [entry], record)
    args = [*REPLACE.args([q.key(""), "a", lock, record.number], [(value,) for value in insert.args]), NOW]
    names = [*q.keys("archived completed"), record.key, *insert.keys]
    return int((await q.redis.run(with_insert(REPLACE, insert.script), names, args))[0])


async def ended(q: Queue, state: str) -> None:
    await q.enqueue(("a", b"OLD", LOCK, 60))
    await q.dequeue()
    if state == "archived":
        await q.archive(("a", "w:1", "", b"OLD", b""))  # as Go does: the lock stays
    else:
        await q.complete(("a", "w:1", LOCK, b"OLD", 600, 1, b"result"))


@pytest.mark.parametrize("state", ["archived", "completed"])
async def test_the_old_one_goes_with_all_its_fields(q: Queue, state: str) -> None:
    await ended(q, state)
    assert await replace(q) == 1
    assert await q.fields("a") == {"msg": "NEW", "state": "pending", "pending_since": f"{NOW}000000"}
    assert await q.pending() == ["a"]
    left = await q.everything()
    assert q.key(state) not in left
    assert LOCK not in left
    assert not [name for name in left if "replaced" in name]


@pytest.mark.parametrize("state", ["archived", "completed"])
async def test_its_own_lock_does_not_stand_in_the_way(q: Queue, state: str) -> None:
    await ended(q, state)
    assert await replace(q, LOCK) == 1
    assert (await q.everything())[LOCK] == Key("string", "a", "seconds")


async def test_it_may_be_delayed_or_join_a_group(q: Queue) -> None:
    await ended(q, "archived")
    assert await replace(q, due="+5000") == 1
    assert await q.scores("due") == {"a": NOW + 5000}
    await q.forward(now=NOW + 5000)
    await q.dequeue(number=2)
    await q.archive(("a", "w:2"))
    assert await replace(q, group="g") == 1
    assert await q.scores("g:g") == {"a": NOW // 1000}


@pytest.mark.parametrize("state", ["pending", "active", "scheduled", "retry"])
async def test_one_that_has_not_ended_stays_untouched(q: Queue, state: str) -> None:
    if state == "scheduled":
        await q.schedule(("a", "+5000"))
    else:
        await q.enqueue("a")
    if state in ("active", "retry"):
        await q.dequeue()
    if state == "retry":
        await q.retry("a")
    before = await q.everything()
    assert await replace(q) == 0
    assert await q.everything() == before


async def test_a_lock_that_another_task_holds_stays_with_it(q: Queue) -> None:
    await ended(q, "completed")
    await q.enqueue(("b", b"", OTHER, 60))
    before = await q.everything()
    assert await replace(q, OTHER) == -1
    assert await q.everything() == before


async def test_if_nothing_is_there_it_is_simply_stored(q: Queue) -> None:
    assert await replace(q) == 1
    assert await q.pending() == ["a"]


async def test_into_a_closed_queue_nothing_goes(q: Queue) -> None:
    await ended(q, "archived")
    await q.client.set(q.key("closed"), 1)
    before = await q.everything()
    assert await replace(q) == -4
    assert await q.everything() == before


async def test_an_insert_that_fails_leaves_the_old_one(q: Queue) -> None:
    await ended(q, "archived")
    await q.client.delete(LOCK)
    await q.client.set(q.key("pending"), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await replace(q)
    assert differences(before, await q.everything()) == {}


async def test_one_that_stands_in_a_lane_stays(q: Queue) -> None:
    """An archived task may hold up those behind it: whoever wants it gone deletes it."""
    await ended(q, "archived")
    await q.client.hset(q.task("a"), "order_key", "k")
    before = await q.everything()
    assert await replace(q) == 0
    assert await q.everything() == before


async def test_one_that_its_container_belies_has_not_ended(q: Queue) -> None:
    await q.enqueue("a")
    await q.client.hset(q.task("a"), "state", "archived")
    before = await q.everything()
    assert await replace(q) == 0
    assert await q.everything() == before


@pytest.mark.parametrize("outcome", ["stored", "refused", "failed"])
async def test_a_task_whose_id_looks_like_a_part_of_another_stays(q: Queue, outcome: str) -> None:
    """No key of a task is made from its id and something behind it: `a:replaced` is a task like any other."""
    await ended(q, "archived")
    await q.enqueue("a:replaced", "a:1", "a}", "a}:pending")
    before = {name: key for name, key in (await q.everything()).items() if name.startswith(q.task("a") + ":")}
    assert len(before) == 2
    if outcome == "refused":
        await q.enqueue(("b", b"", OTHER, 60))
        assert await replace(q, OTHER) == -1
    elif outcome == "failed":
        await q.client.set(q.key("scheduled"), "x")
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await replace(q, due="+5000")
    else:
        assert await replace(q) == 1
    after = await q.everything()
    assert {name: after.get(name) for name in before} == before
    assert keys.replaced("q") not in after
