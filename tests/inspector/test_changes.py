"""edit_payload, reschedule and move: the message, the due time, the queue; the unique lock always goes along."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import Key, check_invariant
from tests.support.queue import NOW, differences
from veredus.errors import ConfigError, DuplicateTask, TaskIdConflict, TaskNotFound, WrongState
from veredus.model.message import TaskMessage
from veredus.wire import keys
from veredus.wire.messages import decode_task, encode_task

EDITABLE = ["pending", "scheduled", "retry", "archived"]


async def _message(q: Bench, task_id: str) -> TaskMessage:
    return decode_task(await q.client.hget(q.task(task_id), "msg"))


# Editing.


@pytest.mark.parametrize("state", EDITABLE)
async def test_a_new_payload_changes_nothing_else(q: Bench, state: str) -> None:
    await q.fill(state, "a")
    before, old = await q.everything(), await _message(q, "a")
    await q.inspector.edit_payload("q", "a", {"n": 2})
    changed = differences(before, await q.everything())
    assert list(changed) == [q.task("a")]
    new = await _message(q, "a")
    assert new.payload == b'{"n":2}'
    old.payload = new.payload
    assert new == old


async def test_the_lock_moves_with_the_payload_and_keeps_its_time(q: Bench) -> None:
    old, new = keys.unique("q", "t", b"1"), keys.unique("q", "t", b"2")
    await q.pend("a", payload=b"1", lock=old)
    await q.client.pexpire(old, 123_456)
    await q.inspector.edit_payload("q", "a", b"2")
    assert await q.client.get(old) is None
    assert await q.client.get(new) == b"a"
    assert 100_000 < await q.client.pttl(new) <= 123_456
    assert (await q.fields("a"))["unique_key"] == new
    assert (await _message(q, "a")).unique_key == new


async def test_no_payload_and_an_empty_one_have_different_locks(q: Bench) -> None:
    await q.pend("a", payload=b"1", lock=keys.unique("q", "t", b"1"))
    await q.inspector.edit_payload("q", "a", None)
    assert await q.client.get(keys.unique("q", "t", None)) == b"a"
    await q.inspector.edit_payload("q", "a", b"")
    assert await q.client.get(keys.unique("q", "t", b"")) == b"a"


async def test_a_payload_whose_lock_another_task_holds_is_refused(q: Bench) -> None:
    await q.pend("a", payload=b"1", lock=keys.unique("q", "t", b"1"))
    await q.pend("b", payload=b"2", lock=keys.unique("q", "t", b"2"))
    before = await q.everything()
    with pytest.raises(DuplicateTask, match="'a'"):
        await q.inspector.edit_payload("q", "a", b"2")
    assert await q.everything() == before


@pytest.mark.parametrize("state", ["active", "completed", "aggregating"])
async def test_what_runs_or_has_ended_is_not_edited(q: Bench, state: str) -> None:
    await q.fill(state, "a")
    with pytest.raises(WrongState, match="can be edited"):
        await q.inspector.edit_payload("q", "a", b"2")
    with pytest.raises(TaskNotFound):
        await q.inspector.edit_payload("q", "b", b"2")


async def test_of_many_editors_none_overwrites_what_another_wrote(q: Bench) -> None:
    """Each edit is a compare-and-set, so what somebody else changes in between survives."""
    await q.pend("a")
    counted = 0

    async def count() -> None:
        nonlocal counted
        for _ in range(30):
            old = await q.client.hget(q.task("a"), "msg")
            message = decode_task(old)
            message.retried += 1
            counted += await q.inspector._tasks.edit("q", "a", old, encode_task(message), "") == 1

    async def edit() -> None:
        for n in range(5):
            await q.inspector.edit_payload("q", "a", str(n).encode())

    await asyncio.gather(count(), edit(), edit(), edit())
    message = await _message(q, "a")
    assert message.payload == b"4"
    assert message.retried == counted > 0
    assert await q.inspector._tasks.edit("q", "a", b"not the message", b"x", "") == -5


# Another time.


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "archived", "completed", "aggregating"])
async def test_it_is_due_to_the_millisecond(q: Bench, state: str) -> None:
    await q.fill(state, "a")
    at = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(seconds=90, milliseconds=7)
    async with q.wakeups() as heard:
        await q.inspector.reschedule("q", "a", at=at)
    kept = "retry" if state == "retry" else "scheduled"
    assert await q.scores("due") == {"a": NOW + 90_007}
    assert await q.scores(kept) == {"a": NOW // 1000 + 91}
    fields = await q.fields("a")
    assert fields["state"] == kept
    assert "pending_since" not in fields
    # Those who slept until an earlier time look for themselves.
    assert heard == ([] if state in ("scheduled", "retry") else [str(NOW + 90_007)])
    assert await check_invariant(q.client) == []
    assert (await q.inspector.task("q", "a")).next_process_at == at


async def test_an_earlier_time_wakes_the_forwarders_and_a_later_one_prolongs_the_lock(q: Bench) -> None:
    await q.fill("scheduled", "a", lock=q.lock())
    async with q.wakeups() as heard:
        await q.inspector.reschedule("q", "a", delay=0.25)
        await q.inspector.reschedule("q", "a", delay=7200)
    assert heard == [str(NOW + 250)]
    assert await q.client.ttl(q.lock()) > 7000
    moved, *_ = await q.forward(now=NOW + 7_199_999)
    assert moved == 0
    moved, *_ = await q.forward(now=NOW + 7_200_000)
    assert moved == 1


async def test_reschedule_refuses_nonsense(q: Bench) -> None:
    await q.fill("active", "a")
    with pytest.raises(WrongState, match="running"):
        await q.inspector.reschedule("q", "a", delay=1)
    for given in ({}, {"at": datetime(2030, 1, 1)}, {"at": datetime.now(UTC), "delay": 1}):  # noqa: DTZ001
        with pytest.raises(ConfigError):
            await q.inspector.reschedule("q", "a", **given)


# Another queue.


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "archived", "completed", "aggregating"])
async def test_a_moved_task_keeps_everything_but_its_queue(q: Bench, state: str) -> None:
    lock = keys.unique("q", "t", b"1")
    await q.fill(state, "a", payload=b"1", lock=lock)
    await q.client.set(lock, "a", px=500_000)
    await q.client.hset(q.task("a"), mapping={"result": "r", "losses": 2})
    other = Bench(q.redis, q.client, "other")
    before = await q.everything()
    await q.inspector.move("q", "a", "other")
    after = await q.everything()
    message = decode_task(before[q.task("a")].value["msg"].encode("utf-8", "surrogateescape"))
    message.queue, message.unique_key = "other", keys.unique("other", "t", b"1")
    fields = before[q.task("a")].value | {
        "msg": encode_task(message).decode("utf-8", "surrogateescape"),
        "unique_key": message.unique_key,
    }
    assert after[other.task("a")] == Key("hash", fields, "none")
    place = "g:g" if state == "aggregating" else state
    assert after[other.key(place)] == before[q.key(place)]
    assert after.get(other.key("due")) == before.get(q.key("due"))
    assert after[message.unique_key] == Key("string", "a", "minutes")
    assert not {q.task("a"), q.key(place), q.key("due"), lock} & after.keys()
    assert after["asynq:queues"].value == {"q", "other"}
    assert await check_invariant(q.client) == []


async def test_a_late_result_does_not_take_the_id_of_a_moved_task(q: Bench) -> None:
    """A Go handler that stood still wrote it after its task was gone."""
    await q.pend("a")
    await q.client.hset(keys.task("other", "a"), "result", "late")
    await q.inspector.move("q", "a", "other")
    fields = await q.client.hgetall(keys.task("other", "a"))
    assert fields[b"state"] == b"pending"
    assert b"result" not in fields
    assert await check_invariant(q.client) == []


async def test_move_refuses_without_a_trace(q: Bench) -> None:
    other = Bench(q.redis, q.client, "other")
    await q.fill("active", "run")
    await q.pend("twin")
    await q.pend("locked", payload=b"1", lock=keys.unique("q", "t", b"1"))
    await other.pend("twin")
    await other.pend("x", payload=b"1", lock=keys.unique("other", "t", b"1"))
    before = await q.everything()
    for task_id, error in (
        ("run", WrongState),
        ("twin", TaskIdConflict),
        ("locked", DuplicateTask),
        ("no", TaskNotFound),
    ):
        with pytest.raises(error):
            await q.inspector.move("q", task_id, "other")
    with pytest.raises(ConfigError):
        await q.inspector.move("q", "twin", "q")
    assert await q.everything() == before


async def test_a_member_of_a_group_is_rescheduled_where_no_go_forwarder_looks(q: Bench) -> None:
    """Go would put it into its group again without listing the group. Its lock goes along, also one that Go took."""
    await q.join("g", "a", lock=q.lock())
    await q.inspector.reschedule("q", "a", delay=1)
    fields = await q.fields("a")
    assert fields["due_group"] == "g"
    assert fields["unique_key"] == q.lock()
    assert "group" not in fields
    assert await check_invariant(q.client) == []
    await q.forward(now=NOW + 1000)
    assert await q.client.smembers(q.key("groups")) == {b"g"}
    assert (await q.fields("a"))["group"] == "g"
    assert await check_invariant(q.client) == []


async def test_a_member_that_is_run_by_hand_and_fails_is_where_no_go_forwarder_looks(q: Bench) -> None:
    await q.join("g", "a", lock=q.lock())
    await q.inspector.run("q", "a")
    fields = await q.fields("a")
    assert (fields["due_group"], fields["unique_key"]) == ("g", q.lock())
    assert "group" not in fields
    assert await check_invariant(q.client) == []


async def test_one_that_waits_for_its_group_goes_along_with_a_move(q: Bench) -> None:
    await q.schedule(("a", "+5000", q.message("a", group_key="g"), "", 0, "", "g"))
    await q.inspector.move("q", "a", "other")
    assert await q.client.hget("asynq:{other}:t:a", "due_group") == b"g"
