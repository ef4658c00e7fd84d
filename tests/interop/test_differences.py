"""One test for each row of docs/asynq-differences.md, named after it: the difference is there, and is what it says."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.interop import protobuf
from tests.interop.differences import RULES, expected
from tests.interop.go_peer import LEASE_EXPIRED, GoPeer
from tests.interop.golden import Picture, differences, golden_dump, picture
from tests.interop.replay import Replay, eventually
from tests.support.golden import load
from tests.support.queue import NOW, Queue
from tests.support.servers import VALKEY_ONLY
from veredus import App, ConfigError, Job, PayloadTooLarge
from veredus.model.message import TaskMessage
from veredus.store import intake
from veredus.store.store import Store
from veredus.worker.attempt import deadline_of

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]
DOCUMENT = Path(__file__).parents[2] / "docs" / "asynq-differences.md"


def test_rows_and_tests_correspond() -> None:
    rows = re.findall(r'^\| <a id="([a-z-]+)"></a>`([a-z-]+)` \|', DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    tests = [
        name.removeprefix("test_").replace("_", "-")
        for name in vars(sys.modules[__name__])
        if name.startswith("test_") and name != "test_rows_and_tests_correspond"
    ]
    assert all(anchor == shown for anchor, shown in rows)
    assert [anchor for anchor, _ in rows] == tests
    assert set(RULES) <= set(tests)
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(lines) == len(tests) + 2, "a line of the table is not a row"
    assert all(line.count(" | ") == 3 for line in lines if "---" not in line), "a row has not four cells"


async def needed(row: str, scenario: str, url: str, client: Any) -> Picture:
    """Our picture of the scenario: it fits with all rows and does not fit without this one."""
    replay = Replay(scenario, url, client)
    ours = picture(await replay.play(), replay.run)
    check_needed(row, scenario, ours)
    return ours


def check_needed(row: str, scenario: str, ours: Picture) -> None:
    assert differences(expected(scenario), ours) == []
    assert differences(expected(scenario, [name for name in RULES if name != row]), ours)


def _app(url: str) -> App:
    return App(url)


def _key(rest: str) -> str:
    return f"asynq:{{default}}:{rest}"


async def _hash(client: Any, task_id: str) -> dict[bytes, bytes]:
    return await client.hgetall(_key(f"t:{task_id}"))


async def _message(client: Any, task_id: str) -> dict[str, Any]:
    return protobuf.decode("TaskMessage", (await _hash(client, task_id))[b"msg"])[0]


async def _reaches(client: Any, task_id: str, state: bytes | None) -> None:
    async def there() -> bool:
        return await client.hget(_key(f"t:{task_id}"), "state") == state

    await eventually(there, f"state {state!r}")


# Delayed tasks.


async def test_due_rounded_up(url: str, redis_client: Any) -> None:
    ours = await needed("due-rounded-up", "scheduled", url, redis_client)
    assert [token for token in ours.values() if token == "due, rounded up"] == ["due, rounded up"] * 2
    scores = await redis_client.zrange(_key("scheduled"), 0, -1, withscores=True)
    asked_for = next(call for call in load("scheduled")["inputs"] if call["type"] == "s:at")
    assert asked_for["given"]["process_at"] == "2030-01-01T00:00:00.75Z"
    assert 1893456001 in [score for _, score in scores]
    assert b"1893456000" in golden_dump("scheduled").rows[_key("scheduled")].value.values()


async def test_due_index(url: str, redis_client: Any) -> None:
    await needed("due-index", "scheduled", url, redis_client)
    exact = dict(await redis_client.zrange(_key("due"), 0, -1, withscores=True))
    assert 1893456000750 in exact.values()


async def test_wakeup_channel(url: str, redis_client: Any) -> None:
    await needed("wakeup-channel", "server-idle", url, redis_client)


async def test_forward_order(store: Store, redis_client: Any) -> None:
    """Go empties scheduled first and then retry, whatever is due earlier."""
    second = NOW // 1000
    for task_id, place, late in (("a", "scheduled", 10), ("b", "retry", 30), ("c", "scheduled", 20)):
        await redis_client.hset(_key(f"t:{task_id}"), mapping={"msg": "m", "state": place})
        await redis_client.zadd(_key(place), {task_id: second - late})
    queue = Queue(store.redis, redis_client, "default")
    await queue.forward()
    assert await queue.pending() == ["b", "c", "a"]


async def test_forward_registers_group(store: Store, redis_client: Any) -> None:
    await redis_client.hset(_key("t:a"), mapping={"msg": "m", "state": "retry", "group": "g1"})
    await redis_client.zadd(_key("retry"), {"a": NOW // 1000 - 1})
    queue = Queue(store.redis, redis_client, "default")
    await queue.forward()
    assert await redis_client.zrange(_key("g:g1"), 0, -1) == [b"a"]
    assert await redis_client.smembers(_key("groups")) == {b"g1"}


# Taking tasks.


async def test_blocking_wait(url: str, redis_client: Any) -> None:
    app = _app(url)
    seen: list[str] = []

    @app.handler("*")
    async def any_type(job: Job) -> None:
        seen.append(job.type)

    async with app.worker({"default": 1}):
        await eventually(lambda: _blocked(redis_client), "a client that waits")
        await GoPeer(redis_client).enqueue("go:type")
        await eventually(lambda: _true(seen), "the task")
    await app.close()


async def test_batch_memory(url: str, redis_client: Any) -> None:
    await needed("batch-memory", "completed", url, redis_client)


async def test_owner_fields(url: str, redis_client: Any) -> None:
    goal, replay = asyncio.Event(), Replay("active-first", url, redis_client)
    try:
        check_needed("owner-fields", "active-first", picture(await replay.play_active_first(goal), replay.run))
    finally:
        goal.set()
        await replay.close()
    task_id = replay.run.sent[0].id
    assert await redis_client.exists(f"asynq:{{critical}}:t:{task_id}") == 0


async def test_pending_tidied(url: str, redis_client: Any) -> None:
    """Go makes a stub hash of a dangling id, active for ever; and runs an id that stands twice in the list twice."""
    app, seen = _app(url), []

    @app.handler("*")
    async def any_type(job: Job) -> None:
        seen.append(job.id)

    peer = GoPeer(redis_client)
    await redis_client.rpush(_key("pending"), "dangling")
    await peer.enqueue("t", task_id="twice")
    await redis_client.lpush(_key("pending"), "twice")
    last = await peer.enqueue("t")
    async with app.worker({"default": 1}):
        await eventually(lambda: _true(last in seen), "the last task")
        await _reaches(redis_client, last, None)
    await app.close()
    assert sorted(seen) == sorted(["twice", last])
    assert await redis_client.keys(_key("*")) == [
        key for key in await redis_client.keys(_key("*")) if b":processed" in key or b":batch:" in key
    ]


async def test_undecodable_archived(url: str, redis_client: Any) -> None:
    """Go logs an error and leaves the task active until its lease is recovered, which fails as well."""
    app = _app(url)
    await redis_client.sadd("asynq:queues", "default")
    await redis_client.hset(_key("t:bad"), mapping={"msg": b"\xff\x01", "state": "pending"})
    await redis_client.lpush(_key("pending"), "bad")
    async with app.worker({"default": 1}):
        await _reaches(redis_client, "bad", b"archived")
    await app.close()
    found = await _message(redis_client, "bad")
    assert found["payload"] == b"\xff\x01"
    assert found["error_msg"].startswith("not a TaskMessage")
    assert (await _hash(redis_client, "bad"))[b"original"] == b"\xff\x01"


async def test_unreadable_payload(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.task(name="typed")
    async def typed(number: int) -> None:
        raise AssertionError("never called")

    task_id = await GoPeer(redis_client).enqueue("typed", b'{"number": "x"}')
    async with app.worker({"default": 1}):
        await _reaches(redis_client, task_id, b"archived")
    await app.close()
    assert "payload does not fit" in (await _message(redis_client, task_id))["error_msg"]


async def test_expires_field(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.handler("*")
    async def any_type(job: Job) -> None:
        assert job.type == "fresh"

    late = await app.enqueue("late", b"", expires=0.05)
    assert int((await _hash(redis_client, late.id))[b"expires_at"]) > time.time() * 1000 - 5000
    await asyncio.sleep(0.06)
    await app.enqueue("fresh", b"", expires=60)
    async with app.worker({"default": 1}):
        await eventually(lambda: redis_client.exists(_key("processed")), "the fresh task's end")
    await app.close()
    assert await redis_client.get(_key("processed")) == b"1"
    assert await redis_client.keys(_key("t:*")) == []


async def test_deadline_not_cut() -> None:
    """With both, Go counts in whole seconds: its attempt would end at 1010 here."""
    both = TaskMessage(type="t", id="1", queue="q", timeout=10, deadline=5000)
    assert deadline_of(both, 1000.75) == 1010.75


# Leases and recovery.


async def test_lease_length(url: str, redis_client: Any) -> None:
    goal, replay = asyncio.Event(), Replay("active-first", url, redis_client)
    try:
        ours = picture(await replay.play_active_first(goal), replay.run)
    finally:
        goal.set()
        await replay.close()
    check_needed("lease-length", "active-first", ours)
    assert "12 s after the beat" in ours.values()


async def test_beat_interval(url: str, redis_client: Any) -> None:
    app = _app(url)
    async with app.worker({"default": 1}):
        await eventually(lambda: redis_client.exists("asynq:servers"), "the first beat")
        first = time.monotonic()
        (record,) = await redis_client.keys("asynq:servers:{*")

        async def refreshed() -> bool:
            return await redis_client.pttl(record) > 9800

        async def aged() -> bool:
            return await redis_client.pttl(record) < 9500

        await eventually(aged, "half a second")
        await eventually(refreshed, "the second beat")
    assert 3.8 < time.monotonic() - first < 6.0
    await app.close()


async def test_own_leases_have_no_slack(store: Store, redis_client: Any) -> None:
    queue = Queue(store.redis, redis_client, "default")
    await queue.activate("ours", "gos")
    lease_end = (await queue.scores("lease"))["ours"]
    await redis_client.zadd(_key("lease"), {"gos": lease_end - 1})  # written by a Go worker: `until` does not match
    _, claimed, _ = await queue.recover(now=lease_end * 1000)
    assert [row[0] for row in claimed] == ["ours"]
    _, claimed, _ = await queue.recover(now=(lease_end + 28) * 1000)
    assert "gos" not in [row[0] for row in claimed]
    _, claimed, _ = await queue.recover(now=(lease_end + 29) * 1000)
    assert "gos" in [row[0] for row in claimed]


async def test_losses_field(url: str, redis_client: Any) -> None:
    fields, _ = await _lost_twice(url, redis_client)
    assert fields[b"losses"] == b"2"


async def test_recovery_at_once(url: str, redis_client: Any) -> None:
    """Go waits its retry delay also after the first loss."""
    _, delays = await _lost_twice(url, redis_client)
    first, second = delays
    assert 0 <= first <= 1
    assert 40 <= second <= 41


async def _lost_twice(url: str, client: Any) -> tuple[dict[bytes, bytes], list[int]]:
    """A task of a Go worker that died, twice; its hash at last, and how long each retry was put off."""
    app, peer = _app(url), GoPeer(client)
    task_id = await peer.enqueue("t", b"", retry=5)
    delays = []
    async with app.worker({"elsewhere": 1}, lease=1.0, sweep=0.2, retry_delay=40):
        for _ in range(2):
            assert await peer.dequeue()
            await client.zadd(_key("lease"), {task_id: int(time.time()) - 31})
            await _reaches(client, task_id, b"retry")
            message = await _message(client, task_id)
            assert message["error_msg"] == LEASE_EXPIRED
            delays.append(int(await client.zscore(_key("retry"), task_id)) - message["last_failed_at"])
            peer.skew = 1.0
            await peer.forward()
    await app.close()
    return await _hash(client, task_id), delays


async def test_every_queue_kept(url: str, redis_client: Any) -> None:
    """A Go server recovers and cleans only the queues it serves."""
    app, peer = _app(url), GoPeer(redis_client, "left alone")
    kept = "asynq:{left alone}:completed"
    task_id = await peer.enqueue("t", retention=1)
    message = await peer.dequeue()
    assert message
    await peer.complete(message)
    await redis_client.zadd(kept, {task_id: int(time.time()) - 1})
    async with app.worker({"default": 1}, janitor_interval=0.1):
        await eventually(lambda: _gone(redis_client, kept), "the cleaning of a queue that nobody serves")
    await app.close()
    assert await redis_client.exists(f"asynq:{{left alone}}:t:{task_id}") == 0


async def test_active_without_lease(store: Store, redis_client: Any) -> None:
    queue = Queue(store.redis, redis_client, "default")
    await queue.activate("a")
    await redis_client.zrem(_key("lease"), "a")
    _, claimed, _ = await queue.recover(now=NOW + 1000)
    assert claimed == []
    _, claimed, _ = await queue.recover(now=NOW + 32_000)
    assert [row[0] for row in claimed] == ["a"]


async def test_fenced_settlement(store: Store, redis_client: Any) -> None:
    queue, peer = Queue(store.redis, redis_client, "default"), GoPeer(redis_client)
    task_id = await peer.enqueue("t")
    taken, _ = await queue.dequeue(now=None)
    assert taken == [task_id]
    peer.skew = 120
    assert await peer.recover(delay=0) == [task_id]
    assert await peer.forward() == 1
    assert await peer.dequeue()
    before = await queue.everything()
    for settle in (queue.done, queue.complete, queue.retry, queue.archive, queue.requeue):
        assert await settle(task_id, now=None) == [1]
    assert await queue.everything() == before


async def test_thread_overrun(url: str, redis_client: Any) -> None:
    """Go fails the task at its timeout and leaves the handler running."""
    app, may_end = _app(url), threading.Event()

    @app.task(name="blocks", payload="raw")
    def blocks(payload: bytes) -> None:
        may_end.wait(10)

    handle = await app.enqueue("blocks", b"", timeout=1)
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"active")
        try:
            await asyncio.sleep(1.3)
            assert await redis_client.hget(_key(f"t:{handle.id}"), "state") == b"active"
        finally:
            may_end.set()
        await _reaches(redis_client, handle.id, b"retry")
    await app.close()
    assert (await _message(redis_client, handle.id))["error_msg"] == "context deadline exceeded"


async def test_requeue_pending_since(url: str, redis_client: Any) -> None:
    await needed("requeue-pending-since", "shutdown-requeue", url, redis_client)


# How tasks end.


async def test_error_text(url: str, redis_client: Any) -> None:
    app = _app(url)
    errors = {"key": KeyError("x"), "wordless": ValueError(), "bad": RuntimeError("a\udcffb"), "plain": OSError("why")}

    @app.handler("*")
    async def any_type(job: Job) -> None:
        raise errors[job.type]

    ids = {name: (await app.enqueue(name, b"", max_retry=0)).id for name in errors}
    async with app.worker({"default": 1}):
        for task_id in ids.values():
            await _reaches(redis_client, task_id, b"archived")
    await app.close()
    texts = {name: (await _message(redis_client, task_id))["error_msg"] for name, task_id in ids.items()}
    assert texts == {"key": "KeyError: 'x'", "wordless": "ValueError", "bad": "a?b", "plain": "why"}


async def test_result_kept(url: str, redis_client: Any) -> None:
    """In Go a result without a retention is gone with the task."""
    app = _app(url)

    @app.task(name="answer", payload="raw")
    async def answer(payload: bytes) -> dict[str, int]:
        return {"answer": 42}

    handle = await app.enqueue("answer", b"")
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"completed")
    await app.close()
    message = await _message(redis_client, handle.id)
    assert message["retention"] == 600
    assert (await _hash(redis_client, handle.id))[b"result"] == b'{"answer":42}'
    assert 600 <= int(await redis_client.zscore(_key("completed"), handle.id)) - message["completed_at"] <= 601


async def test_archive_releases_lock(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.handler("*")
    async def any_type(job: Job) -> None:
        raise RuntimeError("no")

    handle = await app.enqueue("t", b"x", max_retry=0, unique_for=3600)
    (lock,) = await redis_client.keys(_key("unique:*"))
    assert await redis_client.get(lock) == handle.id.encode()
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"archived")
    await app.close()
    assert await redis_client.exists(lock) == 0


async def test_archive_trim_bounded(store: Store, redis_client: Any) -> None:
    """Go removes all that are too old in one call, and fails for good from some thousands on."""
    queue = Queue(store.redis, redis_client, "default")
    await redis_client.zadd(_key("archived"), {f"old{i}": 1 for i in range(300)})
    await queue.activate("a")
    await queue.archive("a")
    assert await redis_client.zcard(_key("archived")) == 1 + 300 - 101


async def test_server_clock(url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app, real = _app(url), time.time

    class Wrong:
        monotonic = time.monotonic

        @staticmethod
        def time() -> float:
            return real() + 3600

    monkeypatch.setattr("veredus.clock.time", Wrong)
    pending, later = await app.enqueue("t", b""), await app.enqueue("t", b"", delay=60)
    await app.close()
    since = int((await _hash(redis_client, pending.id))[b"pending_since"]) / 1e9
    assert abs(since - real()) < 5
    assert abs(int(await redis_client.zscore(_key("scheduled"), later.id)) - real() - 60) < 5


# Sending.


async def test_fractions_rounded_up(url: str, redis_client: Any) -> None:
    await needed("fractions-rounded-up", "pending-variants", url, redis_client)
    app = _app(url)
    handle = await app.enqueue("t", b"", timeout=0.2, retention=timedelta(milliseconds=200))
    await app.close()
    message = await _message(redis_client, handle.id)
    assert (message["timeout"], message["retention"]) == (1, 1)


async def test_timeout_zero(url: str, redis_client: Any) -> None:
    app = _app(url)
    with pytest.raises(ConfigError, match="timeout"):
        await app.enqueue("t", b"", timeout=0)
    handle = await app.enqueue("t", b"")
    await app.close()
    assert (await _message(redis_client, handle.id))["timeout"] == 1800
    zero = next(call for call in load("deadline-timeout")["inputs"] if call["type"] == "d:zero")
    assert zero["returned"][0]["timeout_s"] == 1800


async def test_refused_arguments(url: str, redis_client: Any) -> None:
    app = _app(url)
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - refused because it is naive
    for wrong in ({"max_retry": -5}, {"timeout": -1}, {"queue": "}q"}, {"deadline": naive}):
        with pytest.raises(ConfigError):
            await app.enqueue("t", b"", **wrong)
    with pytest.raises(PayloadTooLarge):
        await app.enqueue("t", b"x" * (1024 * 1024 + 1))
    await app.close()
    assert await redis_client.dbsize() == 0


async def test_duplicate_not_an_error(url: str, redis_client: Any) -> None:
    app = _app(url)
    first, second = [await app.enqueue("t", b"x", unique_for=60) for _ in range(2)]
    await app.close()
    assert (first.created, second.created) == (True, False)
    assert await redis_client.lrange(_key("pending"), 0, -1) == [first.id.encode()]


async def test_id_conflict_lock(url: str, redis_client: Any) -> None:
    await needed("id-conflict-lock", "unique-id-conflict", url, redis_client)


async def test_batch_headers(url: str, redis_client: Any) -> None:
    await needed("batch-headers", "batch", url, redis_client)


async def test_batch_duplicates(url: str, redis_client: Any) -> None:
    app = _app(url)
    task = app.task(name="b:dup", payload="raw")(_handler).using(task_id="dup-1")
    handles = await app.enqueue_many(task.call(b"1") for _ in range(2))
    await app.close()
    assert [handle.created for handle in handles] == [True, False]
    assert await redis_client.lrange(_key("pending"), 0, -1) == [b"dup-1"]


async def test_batch_unique(url: str, redis_client: Any) -> None:
    app = _app(url)
    task = app.task(name="b:unique", payload="raw")(_handler).using(unique_for=3600)
    handles = await app.enqueue_many(task.call(payload) for payload in (b"a", b"a", b"b"))
    await app.close()
    assert [handle.created for handle in handles] == [True, False, True]
    assert len(await redis_client.keys(_key("unique:*"))) == 2


async def test_batch_group(url: str, redis_client: Any) -> None:
    app = _app(url)
    task = app.task(name="b:group", payload="raw")(_handler).using(group="g")
    (handle,) = await app.enqueue_many([task.call(b"z")])
    await app.close()
    assert await redis_client.zrange(_key("g:g"), 0, -1) == [handle.id.encode()]


async def test_scheduled_group(url: str, redis_client: Any) -> None:
    await needed("scheduled-group", "group-scheduled-before", url, redis_client)


async def test_group_order(url: str, redis_client: Any) -> None:
    await needed("group-order", "group-aggregating", url, redis_client)


async def test_group_unique_key(url: str, redis_client: Any) -> None:
    await needed("group-unique-key", "group-aggregating", url, redis_client)


async def test_queue_registered_again(url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go client registers a queue once in its life: deleted meanwhile, the queue stays invisible to the tools."""
    app = _app(url)
    await app.enqueue("t", b"")
    await redis_client.srem("asynq:queues", "default")
    monkeypatch.setattr(intake, "REGISTER_AGAIN", 0.0)
    await app.enqueue("t", b"")
    await app.close()
    assert await redis_client.smembers("asynq:queues") == {b"default"}


async def _handler(payload: bytes) -> None:
    raise AssertionError("never called")


async def _true(value: object) -> bool:
    return bool(value)


async def _gone(client: Any, key: str) -> bool:
    return await client.exists(key) == 0


async def _blocked(client: Any) -> bool:
    return any(row["cmd"] == "blmove" for row in await client.client_list())
