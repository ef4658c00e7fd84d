"""await, progress, write: what they return, what they write, and whom the settlements tell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import LEASE_MS, NOW, Queue, differences
from veredus.model.message import TaskMessage
from veredus.store.tasks.leases import EXTEND, RECOVER
from veredus.store.tasks.results import AWAIT, PROGRESS, WRITE
from veredus.wire.messages import decode_task, encode_task

CHANNEL = "asynq:ends:me"


async def look(q: Queue, task_id: str, channel: str = CHANNEL, keep: int = 0) -> list[Any]:
    reply: list[Any] = await q.redis.run(AWAIT, [q.task(task_id)], [channel, keep])
    return reply


def message_bytes(retention: int = 0) -> bytes:
    return encode_task(TaskMessage(type="t", payload=b"P", id="a", queue="q", retry=1, timeout=60, retention=retention))


async def progress(q: Queue, task_id: str, owner: str, data: bytes = b"{}") -> int:
    return int(await q.redis.run(PROGRESS, [q.key("lease")], [q.key(""), task_id, owner, data]))


async def write(q: Queue, task_id: str, owner: str, data: bytes = b"R") -> int:
    return int(await q.redis.run(WRITE, [q.key("lease")], [q.key(""), task_id, owner, data]))


@asynccontextmanager
async def listening(q: Queue, *channels: str) -> AsyncIterator[list[tuple[str, bytes]]]:
    """All messages on these channels while the block ran; the list is full once the block has ended."""
    heard: list[tuple[str, bytes]] = []
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe(*channels)
        for _ in channels:
            assert await pubsub.get_message(timeout=10)
        yield heard
        await q.client.publish(channels[0], "END")
        async for message in pubsub.listen():
            if message["data"] == b"END":
                break
            heard.append((message["channel"].decode(), message["data"]))


def said(q: Queue, verb: str, task_id: str, body: bytes = b"") -> bytes:
    key = q.task(task_id).encode()
    return b"%b %d %b%b" % (verb.encode(), len(key), key, body)


async def test_nothing_is_made_for_a_task_that_does_not_exist(q: Queue) -> None:
    assert await look(q, "a") == [b"", None, None, None, None, None, None]
    assert await q.everything() == {}


async def test_a_listener_is_written_down_once_and_beside_others(q: Queue) -> None:
    await q.enqueue(("a", b"A"))
    for channel in (CHANNEL, "asynq:ends:you", CHANNEL, "asynq:ends:m"):
        assert await look(q, "a", channel) == [b"pending", b"A", None, None, None, None, None]
    assert (await q.fields("a"))["waited"] == f"{CHANNEL} asynq:ends:you asynq:ends:m"


async def test_a_task_that_go_may_run_is_kept_for_whoever_waits(q: Queue) -> None:
    plain, kept = message_bytes(), message_bytes(retention=300)
    await q.enqueue(("c", plain))
    await q.dequeue()
    await q.enqueue(("a", plain), ("b", kept))
    for task_id in "abc":
        await look(q, task_id, keep=60)
        await look(q, task_id, "asynq:ends:you", keep=60)
    found = [decode_task(await q.client.hget(q.task(task_id), "msg")) for task_id in "abc"]
    assert [message.retention for message in found] == [60, 300, 0], "a running one is in Go's memory already"
    assert (found[0].type, found[0].payload) == ("t", b"P")


async def test_a_cancel_mark_for_another_message_is_not_shown(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), mapping={"cancel": "archive", "cancel_of": "0" * 40})
    assert (await look(q, "a"))[4] is None
    await q.client.hdel(q.task("a"), "cancel_of")
    assert (await look(q, "a"))[4] == b"archive", "an older version wrote it"


async def test_who_only_looks_changes_nothing(q: Queue) -> None:
    await q.activate("a")
    before = await q.everything()
    assert (await look(q, "a", ""))[0] == b"active"
    assert await q.everything() == before


@pytest.mark.parametrize("state", ["completed", "archived"])
async def test_an_end_is_returned_at_once_and_nobody_is_written_down(q: Queue, state: str) -> None:
    await q.activate("a")
    await (q.complete(("a", "w:1", "", b"M", 60, 1, b"\xffR")) if state == "completed" else q.archive("a"))
    before = await q.everything()
    found = await look(q, "a")
    assert (found[0], found[2]) == (state.encode(), b"\xffR" if state == "completed" else None)
    assert await q.everything() == before


async def test_every_end_is_told_to_everybody_who_waits_and_to_nobody_else(q: Queue) -> None:
    await q.activate("a", "b", "c", "d", "unwaited")
    for task_id in "abcd":
        await look(q, task_id)
    await look(q, "a", "asynq:ends:you")
    async with listening(q, CHANNEL, "asynq:ends:you") as heard:
        assert await q.done("a", "unwaited") == []
        await q.complete(("b", "w:1", "", b"M", 60, 1, b"x y\xff"), ("c", "w:1", "", b"M", 60, 0, b""))
        await q.archive("d")
    assert heard == [
        (CHANNEL, said(q, "done", "a")),
        ("asynq:ends:you", said(q, "done", "a")),
        (CHANNEL, said(q, "completed", "b", b"=x y\xff")),
        (CHANNEL, said(q, "completed", "c")),
        (CHANNEL, said(q, "archived", "d")),
    ]
    for task_id in "bcd":
        assert "waited" not in await q.fields(task_id)


@pytest.mark.parametrize(("mark", "verb"), [("delete", "cancelled"), ("archive", "done"), ("", "done")])
async def test_the_end_of_a_task_that_was_to_be_deleted_is_told_as_such(q: Queue, mark: str, verb: str) -> None:
    await q.activate("a")
    await look(q, "a")
    if mark:
        await q.client.hset(q.task("a"), "cancel", mark)
    async with listening(q, CHANNEL) as heard:
        await q.done("a")
    assert heard == [(CHANNEL, said(q, verb, "a"))]


@pytest.mark.parametrize("verb", ["complete", "archive"])
async def test_an_ended_task_bears_no_mark_of_a_cancel(q: Queue, verb: str) -> None:
    """Run again by hand, it is not cancelled by a wish of long ago."""
    await q.activate("a")
    await q.client.hset(q.task("a"), "cancel", "delete")
    await getattr(q, verb)("a")
    assert "cancel" not in await q.fields("a")


async def test_a_large_result_is_announced_and_not_sent_along(q: Queue) -> None:
    await q.activate("a", "b")
    await look(q, "a")
    await look(q, "b")
    most = b"x" * 65_536
    async with listening(q, CHANNEL) as heard:
        await q.complete(("a", "w:1", "", b"M", 60, 1, most), ("b", "w:1", "", b"M", 60, 1, most + b"x"))
    assert heard == [(CHANNEL, said(q, "completed", "a", b"=" + most)), (CHANNEL, said(q, "completed", "b"))]


async def test_a_retry_is_no_end_and_the_listener_stays(q: Queue) -> None:
    await q.activate("a")
    await look(q, "a")
    async with listening(q, CHANNEL) as heard:
        await q.retry(("a", "w:1", b"M", 0))
        await q.forward(now=NOW + 1000)
        await q.dequeue(number=2, now=NOW + 1000)
        await q.requeue(("a", "w:2"))
    assert heard == []
    assert (await q.fields("a"))["waited"] == CHANNEL


async def test_a_task_that_expires_unrun_is_told(q: Queue) -> None:
    await q.enqueue(("a", b"A", "", 0, str(NOW + 10)))
    await look(q, "a")
    async with listening(q, CHANNEL) as heard:
        await q.dequeue(now=NOW + 11)
    assert heard == [(CHANNEL, said(q, "expired", "a"))]


@FENCES
async def test_nobody_is_told_by_one_who_lost_the_task(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    if fence.__name__ not in ("_the_hash_is_gone", "_the_hash_has_a_wrong_type"):
        await look(q, "a")
    owner = await fence(q)
    async with listening(q, CHANNEL) as heard:
        assert await q.done(("a", owner)) == [1]
        assert await progress(q, "a", owner) == 0
    assert heard == []


async def test_progress_and_results_go_into_the_hash_and_nowhere_else(q: Queue) -> None:
    await q.activate("a")
    await look(q, "a")
    before = await q.everything()
    async with listening(q, CHANNEL) as heard:
        assert await progress(q, "a", "w:1", b'{"share": 1}') == 1
        assert await write(q, "a", "w:1", b"\xff") == 1
    assert heard == [(CHANNEL, said(q, "progress", "a", b'{"share": 1}'))]
    changed = differences(before, await q.everything())
    fields = before[q.task("a")].value | {"progress": '{"share": 1}', "result": "\udcff"}
    assert changed == {q.task("a"): Key("hash", fields, "none")}


@FENCES
async def test_a_late_writer_changes_nothing_and_makes_no_orphan(q: Queue, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    assert await progress(q, "a", owner) == 0
    assert await write(q, "a", owner) == 0
    assert await q.everything() == before


async def test_a_marked_task_that_fails_is_due_at_once_and_keeps_its_mark(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.hset(q.task("a"), "cancel", "archive")
    await q.client.hset(q.task("b"), "cancel", "retry")
    await q.retry(("a", "w:1", b"M", 60_000), ("b", "w:1", b"M", 60_000))
    assert await q.scores("due") == {"a": NOW, "b": NOW + 60_000}
    assert (await q.fields("a"))["cancel"] == "archive"
    assert "cancel" not in await q.fields("b")
    await q.forward(now=NOW + 1000)
    _, reply = await q.dequeue(2, number=2, now=NOW + 1000)
    assert (reply[3], reply[5]) == ([b"a", b"M"], [b"a", b"archive"])
    _, again = await q.dequeue(2, number=2, again=1, now=NOW + 1000)
    assert again[5] == [b"a", b"archive"]


async def test_heartbeat_and_recovery_see_the_mark(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.hset(q.task("b"), "cancel", "delete")
    args: list[str | int] = [q.key(""), 2, "a", "w:1", LEASE_MS, "b", "w:1", LEASE_MS, NOW]
    assert await q.redis.run(EXTEND, [q.key("lease")], args) == [NOW, [], [2, b"delete"]]
    late = NOW + LEASE_MS + 1000
    args = [q.key(""), 10, "r:1", 5000, 0, late - 10, 4000, 60_000, "", late]
    reply = await q.redis.run(RECOVER, q.keys("lease active"), args)
    assert reply[5] == [b"b", b"delete"]


async def test_whoever_passes_on_what_followers_shall_hear_is_woken(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), "waited", ">u:bob")
    async with q.wakeups() as heard:
        await q.done("a")
    assert heard == ["told"]
    assert 86_000 < await q.client.ttl(q.key("told")) <= 86_400
