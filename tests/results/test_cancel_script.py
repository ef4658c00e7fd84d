"""cancel: one atomic step takes a waiting task out of wherever it is, or marks a running one."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.results.test_scripts import CHANNEL, listening, look, said
from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from veredus.errors import CommandRefused
from veredus.model.message import TaskMessage
from veredus.store.tasks.cancels import CANCEL
from veredus.wire.messages import encode_task

LOCK = "asynq:{q}:unique:t:1"
WAITING = ("pending", "scheduled", "retry", "aggregating")


async def cancel(
    q: Queue, task_id: str, action: str = "delete", expected: bytes = b"A", *, max_size: int = 10_000
) -> list[bytes]:
    names = q.keys("pending scheduled retry archived due groups")
    args: list[Any] = [q.key(""), "asynq:cancel", max_size, 90 * 86400, task_id, action, expected, b"NEW", 0]
    reply: list[bytes] = await q.redis.run(CANCEL, names, [*args, NOW])
    return reply


async def put(q: Queue, state: str, task_id: str = "a") -> None:
    """A unique task in this state, and another one beside it."""
    row = (task_id, b"A", LOCK, 60, "")
    if state == "pending":
        await q.enqueue("before", row, "after")
    elif state == "scheduled":
        await q.schedule((task_id, "+60000", b"A", LOCK, 60, ""), ("after", "+60000"))
    elif state == "retry":
        await q.enqueue(row)
        await q.dequeue()
        await q.retry((task_id, "w:1", b"A", 60_000))
    else:
        await q.client.hset(q.task(task_id), mapping={"msg": "A", "state": state, "group": "g", "unique_key": LOCK})
        await q.client.zadd(q.key("g:g"), {task_id: 1})
        await q.client.sadd(q.key("groups"), "g")
        await q.client.set(LOCK, task_id)


@pytest.mark.parametrize("state", WAITING)
async def test_deleted_with_everything_that_belongs_to_it(q: Queue, state: str) -> None:
    await put(q, state)
    await look(q, "a")
    async with listening(q, CHANNEL) as heard:
        assert await cancel(q, "a") == [b"cancelled", b""]
    assert heard == [(CHANNEL, said(q, "cancelled", "a"))]
    left = await q.everything()
    assert not [name for name, key in left.items() if name in (LOCK, q.task("a")) or "a" in key.value]
    assert q.key("groups") not in left
    assert await cancel(q, "a") == [b"not found", b""]


@pytest.mark.parametrize("state", WAITING)
async def test_archived_with_its_reason_and_without_its_lock(q: Queue, state: str) -> None:
    await put(q, state)
    await look(q, "a")
    await q.client.hset(q.task("a"), "traceback", "of another failure")
    before = await q.everything()
    assert await cancel(q, "a", "archive", b"something else") == [b"reword", b"A"]
    assert await q.everything() == before
    async with listening(q, CHANNEL) as heard:
        assert await cancel(q, "a", "archive") == [b"cancelled", b""]
    assert heard == [(CHANNEL, said(q, "archived", "a"))]
    changed = differences(before, await q.everything())
    assert changed.pop(q.key("archived")) == Key("zset", {"a": str(NOW // 1000)}, "none")
    fields = changed.pop(q.task("a"))
    assert fields is not None
    assert (fields.value["msg"], fields.value["state"]) == ("NEW", "archived")
    assert not {"waited", "pending_since", "held", "cancel", "traceback"} & fields.value.keys()
    assert changed.pop(LOCK) is None
    for name, key in changed.items():
        assert key is None or "a" not in key.value, name
    assert await cancel(q, "a", "archive") == [b"already ended", b""]


@pytest.mark.parametrize("state", WAITING)
async def test_a_waiting_task_has_nothing_to_retry(q: Queue, state: str) -> None:
    await put(q, state)
    before = await q.everything()
    assert await cancel(q, "a", "retry") == [b"not running", b""]
    assert await q.everything() == before


@pytest.mark.parametrize("action", ["archive", "delete", "retry"])
async def test_a_running_task_is_marked_and_its_worker_told(q: Queue, action: str) -> None:
    await q.activate("a")
    before = await q.everything()
    async with listening(q, "asynq:cancel") as heard:
        assert await cancel(q, "a", action) == [b"cancelling", b""]
    assert heard == [("asynq:cancel", b"a")]
    fields = before[q.task("a")].value | {"cancel": action, "cancel_of": hashlib.sha1(await _message(q)).hexdigest()}
    assert differences(before, await q.everything()) == {q.task("a"): Key("hash", fields, "none")}


async def _message(q: Queue) -> bytes:
    message: bytes = await q.client.hget(q.task("a"), "msg")
    return message


@pytest.mark.parametrize("way", ["given back", "retried by Go"])
async def test_a_mark_counts_for_the_attempt_that_it_was_made_for(q: Queue, way: str) -> None:
    await q.activate("a")
    await cancel(q, "a", "archive")
    await q.client.lrem(q.key("active"), 0, "a")
    await q.client.zrem(q.key("lease"), "a")
    await q.client.lpush(q.key("pending"), "a")
    await q.client.hset(q.task("a"), "state", "pending")
    if way == "retried by Go":
        await q.client.hset(q.task("a"), "msg", "as Go wrote it for its next attempt")
    _, reply = await q.dequeue(number=2)
    assert reply[5] == ([b"a", b"archive"] if way == "given back" else [])
    assert ("cancel" in await q.fields("a"), "cancel_of" in await q.fields("a")) == (way == "given back",) * 2


async def test_the_order_of_the_others_stays(q: Queue) -> None:
    await q.enqueue("x", "a", "y", "z")
    await cancel(q, "a")
    assert await q.pending() == ["x", "y", "z"]


async def test_one_that_is_being_aggregated_has_ended(q: Queue) -> None:
    await put(q, "aggregating")
    await q.client.rename(q.key("g:g"), q.key("g:g:set"))
    before = await q.everything()
    assert await cancel(q, "a") == [b"already ended", b""]
    assert await q.everything() == before


async def test_a_group_keeps_its_other_members(q: Queue) -> None:
    await put(q, "aggregating", "b")
    await put(q, "aggregating", "a")
    await cancel(q, "b")
    assert await q.scores("g:g") == {"a": 1}
    assert await q.client.smembers(q.key("groups")) == {b"g"}


async def test_the_lock_of_another_task_stays(q: Queue) -> None:
    await put(q, "pending")
    await q.client.set(LOCK, "other")
    await cancel(q, "a")
    assert await q.client.get(LOCK) == b"other"


async def test_the_archive_is_kept_within_its_size(q: Queue) -> None:
    await q.activate("x", "y", "z")
    await q.archive("x", "y", "z", now=NOW - 5000)
    await q.enqueue(("a", b"A"))
    await cancel(q, "a", "archive", max_size=3)
    assert sorted(await q.scores("archived")) == ["a", "z"]
    assert await q.fields("x") == {}


@pytest.mark.parametrize("name", ["pending", "due", "archived", "groups"])
@pytest.mark.parametrize("action", ["archive", "delete"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str, action: str) -> None:
    await q.enqueue(("a", b"A"))
    await q.client.delete(q.key(name))
    await q.client.hset(q.key(name), "x", "y")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await cancel(q, "a", action)
    assert await q.everything() == before


async def test_the_lock_of_a_grouped_task_that_go_added_is_released(q: Queue) -> None:
    """Go names it only inside the message."""
    message = encode_task(TaskMessage(type="t", id="a", queue="q", unique_key=LOCK, group_key="g"))
    await q.client.hset(q.task("a"), mapping={"msg": message, "state": "aggregating", "group": "g"})
    await q.client.zadd(q.key("g:g"), {"a": 1})
    await q.client.sadd(q.key("groups"), "g")
    await q.client.set(LOCK, "a")
    assert await cancel(q, "a") == [b"cancelled", b""]
    assert await q.everything() == {}
