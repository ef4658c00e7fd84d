"""One test for each row of docs/asynq-differences.md, named after it: the difference is there, and is what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
import zlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.groups.support import GroupQueue
from tests.interop import protobuf
from tests.interop.differences import RULES, expected
from tests.interop.go_peer import LEASE_EXPIRED, GoPeer
from tests.interop.golden import STATISTICS, Picture, differences, golden_dump, picture
from tests.interop.replay import Replay
from tests.support.golden import load
from tests.support.queue import NOW, Queue
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, forever, pause, until
from veredus import (
    App,
    ConfigError,
    Inspector,
    Job,
    Limit,
    PayloadTooLarge,
    QueueClosed,
    SkipRetry,
    TaskIdConflict,
    current,
)
from veredus.model.archive import ASYNQS
from veredus.model.message import TaskMessage, deadline_of
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks import groups, intake
from veredus.store.tasks.limits import LimitStore
from veredus.wire import keys
from veredus.wire.messages import encode_task
from veredus.wire.types import startable
from veredus.worker.config import WorkerConfig
from veredus.worker.roles.aggregator import Aggregator

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
    assert all(line.count(" | ") == 4 for line in lines if "---" not in line), "a row has not five cells"


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
    fields: dict[bytes, bytes] = await client.hgetall(_key(f"t:{task_id}"))
    return fields


async def _message(client: Any, task_id: str) -> dict[str, Any]:
    return protobuf.decode("TaskMessage", (await _hash(client, task_id))[b"msg"])[0]


async def _reaches(client: Any, task_id: str, state: bytes | None) -> None:
    async def there() -> bool:
        return bool(await client.hget(_key(f"t:{task_id}"), "state") == state)

    await until(there, what=f"state {state!r}")


# Delayed tasks.


async def test_due_rounded_up(url: str, redis_client: Any) -> None:
    ours = await needed("due-rounded-up", "scheduled", url, redis_client)
    assert [token for token in ours.values() if token == "due, rounded up"] == ["due, rounded up"] * 2
    scores = await redis_client.zrange(_key("scheduled"), 0, -1, withscores=True)
    asked_for = next(call for call in load("scheduled")["inputs"] if call["type"] == "s:at")
    assert asked_for["given"]["process_at"] == "2030-01-01T00:00:00.75Z"
    assert 1893456001 in [score for _, score in scores]
    assert b"1893456000" in golden_dump("scheduled").rows[_key("scheduled")].value.values()


async def test_due_index(url: str, store: Store, redis_client: Any) -> None:
    queue, peer = Queue(store.redis, redis_client, "default"), GoPeer(redis_client)
    await queue.schedule(("a", "+10", b"m"), now=None)
    peer.skew = 60
    assert await peer.forward() == 1
    assert await redis_client.zrange(_key("due"), 0, -1) == [b"a"], "Go leaves the entry behind"
    later = int(time.time() * 1000) + 5000
    assert (await queue.forward(now=later))[0] == 0
    assert (await queue.pending(), await redis_client.exists(_key("due"))) == (["a"], 0)
    await redis_client.flushall()

    await needed("due-index", "scheduled", url, redis_client)
    exact = dict(await redis_client.zrange(_key("due"), 0, -1, withscores=True))
    assert 1893456000750 in exact.values()


async def test_wakeup_channel(url: str, store: Store, redis_client: Any) -> None:
    await needed("wakeup-channel", "server-idle", url, redis_client)
    queue = Queue(store.redis, redis_client, "default")
    async with queue.wakeups() as heard:
        for task_id, due in (("later", "+900"), ("last", "+950"), ("first", "+100")):
            await queue.schedule((task_id, due))
    assert heard == [str(NOW + 900), str(NOW + 100)], "announced if it is due before all others"
    assert WorkerConfig().forward_interval == 3.0


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
        await until(lambda: _blocked(redis_client), what="a client that waits")
        await GoPeer(redis_client).enqueue("go:type")
        await until(lambda: _true(seen), what="the task")
    await app.close()


async def test_idle_workers(url: str, redis_client: Any) -> None:
    app, ran = _app(url), asyncio.Event()

    @app.task(name="ours")
    async def ours() -> None:
        ran.set()

    async with app.worker({"default": 1}):
        await until(lambda: redis_client.zcard(_key("idle")))
        ((member, _),) = await redis_client.zrange(_key("idle"), 0, -1, withscores=True)
        assert 3590 < await redis_client.ttl(_key("idle")) <= 3600
        assert (await redis_client.pubsub_numsub(member)) == [(member, 1)]
        await until(lambda: redis_client.exists(_key("watcher")))
        assert 0 < await redis_client.ttl(_key("watcher")) <= 15
        async with redis_client.pubsub() as channel:
            await channel.subscribe(member)
            assert await channel.get_message(timeout=PATIENCE)
            await ours.enqueue()
            await asyncio.wait_for(ran.wait(), PATIENCE)
            message = await channel.get_message(timeout=PATIENCE)
            assert message["data"] == b"asynq:{default}:"
    assert await redis_client.exists(_key("idle"), _key("watcher")) == 0, "a worker that stops is idle no more"
    await app.close()


async def test_closed_connections(url: str, redis_client: Any) -> None:
    app, checkers = _app(url), "asynq:checkers:{asynq:servers}"
    async with app.worker({"default": 1}):
        (channel,) = await until(lambda: redis_client.pubsub_channels("asynq:alive:*"))
        (member,) = await until(lambda: redis_client.zrange(checkers, 0, -1))
        assert member == channel.removeprefix(b"asynq:alive:")
        assert 0 < await redis_client.ttl(checkers) <= 60
        assert not await redis_client.exists("asynq:judged:{asynq:servers}"), "nobody was found dead"
    assert await redis_client.pubsub_channels("asynq:alive:*") == []
    await app.close()


async def test_batch_memory(url: str, redis_client: Any) -> None:
    await needed("batch-memory", "completed", url, redis_client)


async def test_passes_over(url: str, redis_client: Any) -> None:
    """Go takes a task of a type that it does not know, and retries it: "handler not found"."""
    assert "handler not found" in str(expected("unknown-type"))
    app, ran = _app(url), asyncio.Event()

    @app.task(name="ours")
    async def ours() -> None:
        ran.set()

    peer = GoPeer(redis_client)
    theirs = await peer.enqueue("theirs")
    async with app.worker({"default": 1}):
        await ours.enqueue()
        await asyncio.wait_for(ran.wait(), PATIENCE)
    message = await peer.dequeue()
    assert message is not None
    assert (message["id"], message.get("retried", 0)) == (theirs, 0)
    await app.close()


async def test_left_for_go(store: Store, redis_client: Any) -> None:
    queue = Queue(store.redis, redis_client, "default")
    left = "5"  # one of those that its id leaves to Go
    await queue.enqueue((left, encode_task(TaskMessage(type="t", id=left, queue="default", retry=25))))
    before = await queue.everything()
    types = startable({"t": "loop"}, {})
    assert (await queue.dequeue(startable=types, for_go="50 1500 10"))[0] == []
    assert await queue.everything() == before, "nothing is written"
    assert (await queue.dequeue(startable=types, for_go="50 1500 10", now=NOW + 1500))[0] == [left]


async def test_worker_types(url: str, redis_client: Any) -> None:
    await needed("worker-types", "server-idle", url, redis_client)


async def test_worker_details(url: str, redis_client: Any) -> None:
    await needed("worker-details", "server-idle", url, redis_client)


async def test_held_field(url: str, redis_client: Any) -> None:
    goal, replay = asyncio.Event(), Replay("active-first", url, redis_client)
    try:
        check_needed("held-field", "active-first", picture(await replay.play_active_first(goal), replay.run))
    finally:
        goal.set()
        await replay.close()
    task_id = replay.run.sent[0].id
    assert await redis_client.exists(f"asynq:{{critical}}:t:{task_id}") == 0


async def test_pending_tidied(url: str, redis_client: Any, caplog: pytest.LogCaptureFixture) -> None:
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
        await until(lambda: _true(last in seen), what="the last task")
        await _reaches(redis_client, last, None)
    await app.close()
    assert sorted(seen) == sorted(["twice", last])
    assert all(any(task_id in text for text in caplog.messages) for task_id in ("dangling", "twice"))
    left = [key for key in await redis_client.keys(_key("*")) if not STATISTICS.search(key.decode())]
    assert left == [key for key in left if b":processed" in key or b":batch:" in key]


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
    assert (found["type"], found["payload"]) == ("undecodable", b"\xff\x01")
    assert found["error_msg"].startswith("not a TaskMessage")
    assert (await _hash(redis_client, "bad"))[b"original"] == b"\xff\x01"


async def test_unreadable_payload(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.task(name="typed")
    async def typed(number: int) -> None:
        raise AssertionError("never called")

    @app.task(name="read")
    async def read(number: int, tags: list[str]) -> list[Any]:
        return [number, tags]

    task_id = await GoPeer(redis_client).enqueue("typed", b'{"number": 1.5}')
    read_id = await GoPeer(redis_client).enqueue("read", b'{"number": 1e+06, "tags": null, "added": {}}')
    async with app.worker({"default": 1}):
        await _reaches(redis_client, task_id, b"retry")
        await _reaches(redis_client, read_id, b"completed")
    await app.close()
    found = await _message(redis_client, task_id)
    assert found["error_msg"] == "PayloadError: payload does not fit: Expected `int`, got `float` - at `$.number`"
    assert found["retried"] == 1
    assert (await _hash(redis_client, read_id))[b"result"] == b"[1000000,[]]"


async def test_expires_field(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.handler("*")
    async def any_type(job: Job) -> None:
        assert job.type == "fresh"

    before = time.time()
    late = await app.enqueue("late", b"", expires=0.05)
    expires_at = int((await _hash(redis_client, late.id))[b"expires_at"])
    assert 0 < expires_at - before * 1000 < 50 + (time.time() - before) * 1000 + 2
    ignored = await app.enqueue("late", b"", expires=0.05, queue="gos")
    sent = time.time()

    async def is_over() -> bool:
        seconds, microseconds = await redis_client.time()
        return bool(seconds * 1000 + microseconds / 1000 > max(expires_at, sent * 1000 + 51))

    await until(is_over, what="the end of their 50 ms")
    message = await GoPeer(redis_client, "gos").dequeue()
    assert message is not None, "a Go worker does not look at the field"
    assert message["id"] == ignored.id
    await app.enqueue("fresh", b"", expires=60)
    async with app.worker({"default": 1}):
        await until(lambda: redis_client.exists(_key("processed")), what="the fresh task's end")
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
    worker = app.worker({"default": 1})
    async with worker:
        await until(lambda: redis_client.exists("asynq:servers"), what="the first beat")
        (record,) = await redis_client.keys("asynq:servers:{*")

        async def beaten_at() -> float:
            """When the record was written last, whenever we look: it lives for 10 s."""
            (seconds, microseconds), left = await redis_client.pipeline().time().pttl(record).execute()
            return float(seconds + microseconds / 1e6 + left / 1000 - 10)

        async def refreshed() -> float | None:
            at = await beaten_at()
            return at if at > first + 1 else None

        first = await beaten_at()
        second = await until(refreshed, what="the second beat")
    assert worker.config.beat == 4
    assert second - first > 3.9
    await app.close()


async def test_payload_shown(url: str, redis_client: Any) -> None:
    app = _app(url)

    @app.task(name="waits")
    async def waits(text: str) -> None:
        await forever()

    async with app.worker({"default": 1}):
        handle = await waits.enqueue("x" * 5000)
        (shown,) = await until(lambda: _shown(app), what="the record of the running task")
        assert shown == (await app.inspector().task("default", handle.id)).payload[:1000]
        await handle.cancel(then="delete")
    await app.close()


async def _shown(app: App) -> list[bytes]:
    return [worker.task_payload for server in await app.inspector().servers() for worker in server.active_workers]


async def test_own_leases_have_no_slack(store: Store, redis_client: Any) -> None:
    assert WorkerConfig().sweep == 2.0
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
    delays: list[int] = []
    async with app.worker({"elsewhere": 1}, lease=1.0, sweep=0.2, retry_delay=40):
        for _ in range(2):
            assert await peer.dequeue()
            await client.zadd(_key("lease"), {task_id: int(time.time()) - 31})
            await _reaches(client, task_id, b"retry")
            message = await _message(client, task_id)
            assert (message["error_msg"], message["retried"]) == (LEASE_EXPIRED, len(delays) + 1)
            assert int(await client.get(_key("failed"))) == len(delays) + 1
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
        await until(lambda: _gone(redis_client, kept), what="the cleaning of a queue that nobody serves")
    await app.close()
    assert await redis_client.exists(f"asynq:{{left alone}}:t:{task_id}") == 0


async def test_active_without_lease(store: Store, redis_client: Any) -> None:
    queue = Queue(store.redis, redis_client, "default")
    await queue.activate("a")
    await redis_client.zrem(_key("lease"), "a")
    _, claimed, _ = await queue.recover(now=NOW + 1000)
    assert claimed == []
    ended = (NOW + 1000) // 1000
    assert await queue.scores("lease") == {"a": ended}
    _, claimed, _ = await queue.recover(now=(ended + 30) * 1000 - 1)
    assert claimed == []
    _, claimed, _ = await queue.recover(now=(ended + 30) * 1000)
    assert [row[0] for row in claimed] == ["a"]


async def test_fenced_settlement(store: Store, redis_client: Any) -> None:
    queue, peer = Queue(store.redis, redis_client, "default"), GoPeer(redis_client)
    task_id = await peer.enqueue("t")
    taken, _ = await queue.dequeue(now=None)
    assert taken == [task_id]
    peer.skew = 120
    assert await peer.recover(delay=0) == [task_id]
    assert await peer.forward() == 1
    message = await peer.dequeue()
    assert message
    before = await queue.everything()
    for settle in (queue.done, queue.complete, queue.retry, queue.archive, queue.requeue):
        assert await settle(task_id, now=None) == [1]
    assert await queue.everything() == before
    await peer.done(message)
    assert await redis_client.exists(_key(f"t:{task_id}"), _key("active"), _key("lease")) == 0


async def test_thread_overrun(url: str, redis_client: Any) -> None:
    """Go fails the task at its timeout and leaves the handler running."""
    app, may_end = _app(url), threading.Event()

    @app.task(name="blocks", payload="raw")
    def blocks(payload: bytes) -> None:
        may_end.wait(PATIENCE)

    handle = await app.enqueue("blocks", b"", timeout=1)
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"active")
        try:
            await pause(1.3, proves="the task stays active as long as its thread runs")
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
    errors = {
        "key": KeyError("x"),
        "wordless": ValueError(),
        "bad": RuntimeError("a\udcffb"),
        "skip": SkipRetry(),
        "long": ValueError("x" * 10_000_000),
        "plain": OSError("why"),
    }

    @app.handler("*")
    async def any_type(job: Job) -> None:
        raise errors[job.type]

    ids = {name: (await app.enqueue(name, b"", max_retry=0)).id for name in errors}
    async with app.worker({"default": 1}):
        for task_id in ids.values():
            await _reaches(redis_client, task_id, b"archived")
    await app.close()
    texts = {name: (await _message(redis_client, task_id))["error_msg"] for name, task_id in ids.items()}
    assert texts.pop("long") == "ValueError: " + "x" * 8148 + "... (cut, 10,000,012 characters)"
    assert texts == {
        "key": "KeyError: 'x'",
        "wordless": "ValueError",
        "bad": "RuntimeError: a?b",
        "plain": "OSError: why",
        "skip": "skip retry for the task",
    }


async def test_traceback_field(url: str, redis_client: Any) -> None:
    """Go keeps the field when an attempt of its own fails: it is of another failure then, and not shown."""
    app, inspector = _app(url), App(url).inspector()

    @app.task(name="t", max_retry=5, retry_delay=3600)
    async def fail() -> None:
        raise ValueError("here")

    handle = await fail.enqueue()
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"retry")
    assert b'raise ValueError("here")' in (await _hash(redis_client, handle.id))[b"traceback"]
    assert (await handle.status()).traceback.endswith("ValueError: here")
    assert (await inspector.task("default", handle.id)).traceback.endswith("ValueError: here")
    await inspector.run("default", handle.id)
    peer = GoPeer(redis_client)
    message = await peer.dequeue()
    assert message is not None
    await peer.retry(message, 60, "of Go")
    assert b"traceback" in await _hash(redis_client, handle.id)
    status = await handle.status()
    assert (status.error, status.traceback) == ("of Go", "")
    assert (await inspector.task("default", handle.id)).traceback == ""
    await inspector.close()
    await app.close()
    await redis_client.flushdb()
    await needed("traceback-field", "retry", url, redis_client)


async def test_attempt_fields(url: str, redis_client: Any) -> None:
    """Go keeps the fields, and what it runs has no record: the list of attempts says so."""
    app = _app(url)

    @app.task(name="t", max_retry=5, retry_delay=3600)
    async def fail() -> None:
        raise ValueError("here")

    handle = await fail.enqueue()
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"retry")
    await app.inspector().run("default", handle.id)
    peer = GoPeer(redis_client)
    message = await peer.dequeue()
    assert message is not None
    await peer.retry(message, 60, "of Go")
    found = [(one.attempt, one.outcome, one.error) for one in await handle.attempts()]
    assert found == [(1, "failed", "here"), (2, "not recorded", "")]
    assert (await _hash(redis_client, handle.id))[b"attempts"] == b"1"
    await app.close()
    await redis_client.flushdb()
    await needed("attempt-fields", "retry", url, redis_client)


async def test_statistics_keys(url: str, redis_client: Any) -> None:
    """What Go runs is in the daily counters alone."""
    app = _app(url)

    @app.task(name="t", max_retry=0)
    async def fail() -> None:
        raise ValueError("here")

    handle = await fail.enqueue()
    async with app.worker({"default": 1}):
        await _reaches(redis_client, handle.id, b"archived")
    await fail.enqueue()
    peer = GoPeer(redis_client)
    message = await peer.dequeue()
    assert message is not None
    await peer.archive(message, "of Go")
    inspector = app.inspector()
    (one,) = await inspector.type_stats()
    assert (one.type, one.counted.processed, one.counted.failed) == ("t", 1, 1)
    assert [(one.error, one.count) for one in await inspector.errors()] == [("here", 1)]
    assert (await inspector.queue("default")).failed == 2
    ours = [name for name in await redis_client.keys("*") if STATISTICS.search(name.decode())]
    assert len(ours) == 6
    assert all([await redis_client.ttl(name) > 0 for name in ours])
    await app.close()


async def test_cancel_is_no_failure(url: str, redis_client: Any) -> None:
    """A task that was cancelled for good has run, but not failed; Asynq's own way of cancelling is a failed attempt."""
    app = _app(url)

    @app.task(name="t")
    async def hang() -> None:
        await asyncio.Event().wait()

    async with app.worker({"default": 1}):
        for then, state in (("archive", b"archived"), ("delete", None), ("retry", b"retry")):
            handle = await hang.enqueue()
            await _reaches(redis_client, handle.id, b"active")
            await handle.cancel(then)
            await _reaches(redis_client, handle.id, state)
    await app.close()
    assert await redis_client.mget(_key("processed"), _key("failed")) == [b"3", b"1"]


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


async def test_late_result(url: str, redis_client: Any) -> None:
    """Go's client refuses the id for ever."""
    app, key = _app(url), _key("t:same")
    ways: list[dict[str, Any]] = [{}, {"delay": 60}, {"order_key": "k"}, {"group": "g"}, {"replace": True}]
    for options in ways:
        await redis_client.hset(key, "result", "late")
        assert (await app.enqueue("t", b"", task_id="same", **options)).created
        assert b"result" not in await redis_client.hgetall(key)
        await redis_client.hset(key, "result", "in time")
        with pytest.raises(TaskIdConflict):
            await app.enqueue("t", b"", task_id="same", **options)
        await app.inspector().delete("default", "same")
    await redis_client.hset(key, "msg", b"\xff")
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", b"", task_id="same")
    await redis_client.delete(key)
    await app.close()


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


async def test_lock_kept(store: Store, redis_client: Any) -> None:
    """In Go, nothing but the end of the task touches the lock that the client took."""
    queue, lock = Queue(store.redis, redis_client, "default"), _key("unique:t:")
    await queue.enqueue(("a", b"", lock, 5))
    assert await redis_client.ttl(lock) <= 5
    await queue.dequeue()
    assert await redis_client.ttl(lock) > 60
    await redis_client.expire(lock, 5)
    await queue.retry(("a", "w:1", b"", 600_000, 1))
    assert await redis_client.ttl(lock) > 600
    await redis_client.delete(lock)
    await queue.forward(now=NOW + 600_000)
    assert await redis_client.get(lock) == b"a"
    await redis_client.expire(lock, 7200)
    await queue.dequeue(number=2, now=NOW + 600_000)
    assert await redis_client.ttl(lock) > 7000


async def test_archive_trim_bounded(store: Store, redis_client: Any) -> None:
    """Go removes all that are too old in one call, and fails for good from some thousands on."""
    queue = Queue(store.redis, redis_client, "default")
    old = [f"old{i:03}" for i in range(300)]
    await redis_client.zadd(_key("archived"), {task_id: 1 + i for i, task_id in enumerate(old)})
    for task_id in old:
        lock = _key(f"unique:{task_id}")
        await redis_client.set(lock, task_id)
        await redis_client.hset(_key(f"t:{task_id}"), mapping={"msg": "", "state": "archived", "unique_key": lock})
    await queue.activate("a", "b", "c", "d")

    async def left() -> list[str]:
        """Of the old ones; whose hash and lock stand or fall with it."""
        ids = [task_id for task_id in await queue.scores("archived") if task_id in old]
        assert await redis_client.exists(*[_key(f"t:{task_id}") for task_id in old]) == len(ids)
        assert await redis_client.exists(*[_key(f"unique:{task_id}") for task_id in old]) == len(ids)
        return ids

    await queue.archive("a", "b")
    assert await left() == old[102:], "too old: at most 100 more than came in"
    await queue.archive("c", max_age=10**10, max_size=51)
    assert await left() == old[102 + 101 :], "too many: at most 100 more than came in"
    await queue.archive("d", max_age=10**10, max_size=51)
    assert await left() == old[300 - 46 :]
    assert set(await queue.scores("archived")) == {*old[300 - 46 :], "a", "b", "c", "d"}
    assert (ASYNQS.most, ASYNQS.seconds) == (10_000, 90 * 86400), "of which one less is kept"


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
    wrongs: list[dict[str, Any]] = [{"max_retry": -5}, {"timeout": -1}, {"deadline": naive}]
    wrongs += [{"task_id": "a\nb"}, {"task_id": " a"}, {"group": "g\0"}, {"group": "g" * 501}]
    wrongs += [{"queue": name} for name in ("}q", "q{1}", "a,b", "q" * 201)]
    for wrong in wrongs:
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


async def test_group_order(url: str, store: Store, redis_client: Any) -> None:
    await needed("group-order", "group-aggregating", url, redis_client)
    queue = GroupQueue(store.redis, redis_client, "default")
    await queue.add(("g", "c"), ("g", "a"), ("g", "b"))
    await queue.stage("g")
    assert await queue.read("g") == (1, ["c", "a", "b"], [])


async def test_group_unique_key(url: str, redis_client: Any) -> None:
    await needed("group-unique-key", "group-aggregating", url, redis_client)


async def test_sent_record(url: str, redis_client: Any) -> None:
    """A Go client whose reply was lost can only send again, and the task may have been run and be gone by then."""
    assert not [key for name in ("pending", "batch") for key in golden_dump(name).rows if ":sent:" in key]
    app = _app(url)
    await app.enqueue("t", b"")
    task = await app.enqueue("t", b"")
    await app.close()
    (key,) = await redis_client.keys(_key("sent:*"))
    assert re.fullmatch(r"asynq:\{default\}:sent:[0-9a-f]{16}:1", key.decode())
    assert await redis_client.get(key) == f"000000000002  {task.id}".encode()
    assert 30_000 < await redis_client.pttl(key) <= 40_000


async def test_served_queue_registered(url: str, redis_client: Any) -> None:
    await needed("served-queue-registered", "server-idle", url, redis_client)
    await redis_client.flushall()
    async with _app(url).worker(queues={"default": 1}, lease=1.5):
        assert await redis_client.smembers("asynq:queues") == {b"default"}
        await redis_client.delete("asynq:queues")
        await until(lambda: redis_client.exists("asynq:queues"))
        assert await redis_client.smembers("asynq:queues") == {b"default"}


async def test_queue_registered_again(url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go client registers a queue once in its life: deleted meanwhile, the queue stays invisible to the tools."""
    assert intake.REGISTER_AGAIN == 60.0
    app = _app(url)
    await app.enqueue("t", b"")
    await redis_client.srem("asynq:queues", "default")
    monkeypatch.setattr(intake, "REGISTER_AGAIN", 0.0)
    await app.enqueue("t", b"")
    await app.close()
    assert await redis_client.smembers("asynq:queues") == {b"default"}


# What Asynq has no option for.


async def test_deferrals_field(url: str, redis_client: Any) -> None:
    await needed("deferrals-field", "retry-not-failure", url, redis_client)


async def test_front_field(store: Store, redis_client: Any) -> None:
    queue = Queue(store.redis, redis_client, "default")
    await queue.activate("a", "b")
    await queue.retry(("a", "w:1", b"m", 0, 1, 1), ("b", "w:1", b"m", 0, 1, 0))
    assert (await queue.fields("a"))["front"] == "1"
    await queue.enqueue("c")
    await queue.forward()
    assert await queue.pending() == ["a", "c", "b"]
    assert "front" not in await queue.fields("a")
    await queue.dequeue(1, number=2)
    await queue.retry(("a", "w:2", b"m", 0, 1, 1))
    peer = GoPeer(redis_client)
    peer.skew = NOW / 1000 + 60 - time.time()
    assert await peer.forward() == 1
    assert await queue.pending() == ["c", "b", "a"], "Go puts it at the back, and keeps the field"
    assert (await queue.fields("a"))["front"] == "1"


async def test_closed_queue(url: str, redis_client: Any) -> None:
    app = _app(url)
    await app.enqueue("t", b"")
    await app.inspector().close_queue("default")
    assert await redis_client.get(_key("closed")) is not None
    with pytest.raises(QueueClosed):
        await app.enqueue("t", b"")
    go_id = await GoPeer(redis_client).enqueue("t", b"")
    assert (await redis_client.lrange(_key("pending"), 0, -1))[0] == go_id.encode()
    await app.inspector().delete_queue("default", force=True)
    await app.close()
    assert await redis_client.keys("*") == []


async def test_replace_ended(url: str, redis_client: Any) -> None:
    app = _app(url)
    await app.enqueue("t", b"1", task_id="a")
    await app.inspector().archive("default", "a")
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", b"2", task_id="a")
    await app.enqueue("t", b"2", task_id="a", replace=True)
    await app.close()
    assert await redis_client.exists(_key("archived")) == 0
    assert (await _message(redis_client, "a"))["payload"] == b"2"


async def test_archive_limits(url: str, redis_client: Any) -> None:
    app = App(url, archive_size=2, archive_days=1)
    await redis_client.zadd(_key("archived"), {"old": int(time.time()) - 2 * 86400})
    for n in range(4):
        handle = await app.enqueue("t", b"")
        await app.cancel(handle.id)
        assert await redis_client.zcard(_key("archived")) == min(n + 1, 2)
    await app.close()
    assert await redis_client.zscore(_key("archived"), "old") is None
    assert len(await redis_client.keys(_key("t:*"))) == 2


def test_key_prefix() -> None:
    code = "from veredus.wire import keys; print(keys.QUEUES, keys.pending('q'), keys.CANCEL_CHANNEL)"
    for given, prefix in (({}, "asynq"), ({"VEREDUS_KEY_PREFIX": "shop"}, "shop")):
        printed = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **given}, capture_output=True, text=True, check=True
        ).stdout
        assert printed.split() == [f"{prefix}:queues", f"{prefix}:{{q}}:pending", f"{prefix}:cancel"]


async def test_cancel_mark(url: str, redis_client: Any) -> None:
    """What Go's inspector does writes nothing; a Go server hears of ours all the same."""
    app, inspector = _app(url), Inspector.at(url)
    queue = Queue(inspector._redis, redis_client, "default")
    await app.enqueue("t", b"", task_id="waits")
    assert await inspector.cancel("default", "waits", then="delete") == "cancelled"
    await queue.activate("runs")
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe("asynq:cancel")
        assert await pubsub.get_message(timeout=10)
        assert await inspector.cancel("default", "runs") == "cancelling"
        assert (await pubsub.get_message(timeout=10))["data"] == b"runs"
    await inspector.close()
    await app.close()
    assert (await _hash(redis_client, "runs"))[b"cancel"] == b"archive"
    assert await redis_client.exists(_key("t:waits")) == 0


async def test_waiting_fields(url: str, redis_client: Any) -> None:
    app = _app(url)
    go_on = asyncio.Event()

    @app.task(name="t")
    async def slow() -> None:
        await current().progress(0.5, "half")
        await go_on.wait()

    handle = await slow.enqueue()
    waiting = asyncio.create_task(handle.result(timeout=PATIENCE))
    async with app.worker({"default": 1}):
        await until(lambda: redis_client.hget(_key(f"t:{handle.id}"), "progress"), what="the progress")
        fields = await _hash(redis_client, handle.id)
        go_on.set()
        assert [*await asyncio.gather(waiting)] == [None]
    await app.close()
    assert fields[b"waited"].startswith(b"asynq:ends:")
    assert b'"share": 0.5' in fields[b"progress"]


async def test_durable_tasks(url: str, redis_client: Any) -> None:
    app = _app(url)

    async def fee() -> int:
        return 7

    @app.task(name="t")
    async def order() -> None:
        await current().step(fee)
        await current().wait_for("paid")

    handle = await order.enqueue()
    async with app.worker({"default": 1}):
        await until(lambda: redis_client.hget(_key(f"t:{handle.id}"), "waiting"), what="the wait")
        fields = await _hash(redis_client, handle.id)
        assert await redis_client.zrange(_key("scheduled"), 0, -1, withscores=True) == [
            (handle.id.encode(), 9999999998)
        ]
        assert await redis_client.zcard(_key("waits")) == 1
    assert len(fields[b"run"]) == 10
    assert fields[b"waiting"].startswith(b"event 0 ")
    assert re.fullmatch(rb"\+\d+ \d+ 1 j7", fields[b"s:fee"])
    assert {name: fields[name] for name in (b"e:paid", b"front", b"state")} == {
        b"e:paid": b"0",
        b"front": b"1",
        b"state": b"scheduled",
    }
    assert await redis_client.smembers("asynq:veredus:{e%02x}:waiters:paid" % (zlib.crc32(b"paid") % 64))
    await app.emit("paid")
    assert await redis_client.lrange(_key("pending"), 0, -1) == [handle.id.encode()]
    await app.close()


async def test_followers(url: str, redis_client: Any) -> None:
    app = _app(url)
    handle = await app.enqueue("t", b"")
    await app.follow(handle, user="a b")
    fields = await _hash(redis_client, handle.id)
    await handle.cancel(then="delete")
    await app.close()
    assert fields[b"waited"] == b">u:a%20b"
    (record,) = await redis_client.lrange(_key("told"), 0, -1)
    assert record.split(b" ", 2)[1:] == [
        b">u:a%20b",
        b"cancelled %d %s" % (len(name := _key(f"t:{handle.id}")), name.encode()),
    ]
    assert 0 < await redis_client.ttl(_key("told")) <= 86400


# By hand.


async def test_run_pending_since(url: str, redis_client: Any) -> None:
    app = _app(url)
    one, two = [await app.enqueue("t", b"", delay=60) for _ in range(2)]
    await app.inspector().run("default", one.id)
    await app.inspector().run_all("default", "scheduled")
    await app.close()
    for handle in (one, two):
        assert abs(int((await _hash(redis_client, handle.id))[b"pending_since"]) / 1e9 - time.time()) < 5


async def test_inspector_releases_locks(url: str, redis_client: Any) -> None:
    app = _app(url)
    inspector = app.inspector()
    first = await app.enqueue("t", b"1", unique_for=60)
    await inspector.archive("default", first.id)
    await app.enqueue("t", b"2", unique_for=60)
    await app.enqueue("t", b"3", unique_for=60, group="g")
    assert len(await redis_client.keys(_key("unique:*"))) == 2
    await inspector.delete_all("default", "pending")
    await inspector.delete_all("default", "aggregating")
    await app.close()
    assert await redis_client.keys(_key("unique:*")) == []


async def test_payload_edit(url: str, redis_client: Any) -> None:
    app = _app(url)
    handle = await app.enqueue("t", b"1", unique_for=60)
    await app.inspector().edit_payload("default", handle.id, b"2")
    await app.close()
    assert await redis_client.keys(_key("unique:*")) == [keys.unique("default", "t", b"2").encode()]
    message = await _message(redis_client, handle.id)
    assert (message["payload"], message["unique_key"]) == (b"2", keys.unique("default", "t", b"2"))


async def test_queue_deleted_whole(url: str, redis_client: Any) -> None:
    app = _app(url)
    await app.enqueue("t", b"", unique_for=60)
    await app.enqueue("t", b"", group="g")
    await app.pause("default")
    for name in ("processed", "failed", "processed:2026-01-01"):
        await redis_client.set(_key(name), 1)
    await redis_client.hset(_key("t:done"), mapping={"msg": b"", "state": "completed"})
    await redis_client.zadd(_key("completed"), {"done": 4_000_000_000})
    await app.inspector().delete_queue("default", force=True)
    await app.close()
    assert await redis_client.keys("*") == []


# Groups.


async def test_group_lock_released(store: Store, redis_client: Any) -> None:
    queue, lock = GroupQueue(store.redis, redis_client, "default"), _key("unique:item:")
    await queue.add_like_go("g", "a", lock=lock)
    await queue.stage("g")
    assert await queue.aggregate("g", [("a", lock)], [("sum", b"m")]) == (1, [1])
    assert await redis_client.exists(lock) == 0


async def test_group_one_step(store: Store, redis_client: Any) -> None:
    queue = GroupQueue(store.redis, redis_client, "default")
    await queue.add(("g", "a"))
    await queue.stage("g")
    await queue.reclaim(set_key=queue.set_key("g"))
    assert await queue.aggregate("g", ["a"], [("sum", b"m")]) == (0, [])  # it lives on in its group
    await queue.stage("g")
    assert await queue.aggregate("g", ["a"], [("sum", b"m")]) == (1, [1])
    assert await queue.pending() == ["sum"]
    assert await redis_client.exists(_key("t:a"), queue.set_key("g"), _key("aggregation_sets")) == 0


async def test_group_reclaim(store: Store, redis_client: Any) -> None:
    """Go gives all members back at once, and the group stays without its name."""
    queue, set_key = GroupQueue(store.redis, redis_client, "default"), _key("g:g:5e7")
    await redis_client.zadd(set_key, {f"m{n:04}": n for n in range(2500)})
    await redis_client.zadd(_key("aggregation_sets"), {set_key: int(time.time()) - 1})
    sizes = []
    for _ in range(3):
        await store.groups.reclaim(["default"])
        assert await redis_client.smembers(_key("groups")) == {b"g"}
        sizes.append(len(await queue.scores("g:g")))
    assert sizes == [1000, 2000, 2500]
    assert await queue.scores("g:g") == {f"m{n:04}": n for n in range(2500)}
    assert await redis_client.exists(set_key, _key("aggregation_sets")) == 0
    aggregator = _aggregator(store, grace=3600)
    await aggregator.step()
    assert aggregator._list_at <= time.monotonic() + 2.0, "looked for at least every 2 seconds"


def _aggregator(store: Store, **settings: Any) -> Aggregator:
    """Of the group g; it is told when to look, and finds nothing ripe."""
    app = App("redis://nowhere")

    @app.aggregate("g", **settings)
    def never(group: str, jobs: list[Job]) -> Any:
        raise AssertionError("nothing was ripe")

    nobody: Any = None
    return Aggregator(store.groups, app.aggregations, {"default": 1}, nobody, OutageLog())


async def test_group_failure(url: str, redis_client: Any) -> None:
    app, calls = _app(url), []

    @app.aggregate("g", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> Any:
        calls.append(len(jobs))
        raise SystemExit("no")

    handle = await app.enqueue("t", b"", group="g")
    async with app.worker({"default": 1}):
        await until(lambda: _true(calls), what="the call")
        await until(lambda: redis_client.zscore(_key("g:g"), handle.id), what="the member, given back")
        assert await redis_client.exists(_key("aggregation_sets")) == 0
        await until(lambda: _true(len(calls) > 1), what="the second try")
    await app.close()


async def test_group_unreadable(url: str, redis_client: Any) -> None:
    app = _app(url)
    seen: list[str] = []

    @app.aggregate("g", grace=1, max_size=2)
    def digest(group: str, jobs: list[Job]) -> list[Any]:
        seen.extend(job.id for job in jobs)
        return []

    handle = await app.enqueue("t", b"", group="g")
    await redis_client.hset(_key("t:odd"), mapping={"msg": b"\xff", "state": "aggregating", "group": "g"})
    await redis_client.zadd(_key("g:g"), {"odd": int(time.time())})
    async with app.worker({"default": 1}):
        await _reaches(redis_client, "odd", b"archived")
        await until(lambda: _true(seen), what="the call")
    await app.close()
    assert seen == [handle.id]
    assert (await _message(redis_client, "odd"))["type"] == "undecodable"


async def test_group_several(url: str, redis_client: Any) -> None:
    app, ran = _app(url), []

    @app.handler("sum")
    async def total(job: Job) -> None:
        ran.append(job.payload)

    @app.aggregate("two", grace=1, max_size=1)
    def both(group: str, jobs: list[Job]) -> list[Any]:
        return [app.call("sum", b"1"), app.call("sum", b"2")]

    @app.aggregate("none", grace=60, max_size=1)
    def neither(group: str, jobs: list[Job]) -> list[Any]:
        return []

    await app.enqueue("t", b"", group="two")
    dropped = await app.enqueue("t", b"", group="none")
    async with app.worker({"default": 1}):
        await until(lambda: _true(len(ran) == 2), what="both tasks")
        await until(lambda: _gone(redis_client, _key(f"t:{dropped.id}")), what="the end of the other")
    await app.close()
    assert sorted(ran) == [b"1", b"2"]


async def test_group_cadence(url: str, store: Store, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go looks at each group when its interval is over, which is 7 seconds at most."""

    async def next_look(**settings: Any) -> float:
        """Seconds after a look at the group until the next one, at most."""
        aggregator = _aggregator(store, **settings)
        await aggregator.step()
        at = aggregator._agenda.next()
        assert at is not None
        return at - time.monotonic()

    queue = GroupQueue(store.redis, redis_client, "default")
    assert await queue.add(("g", "a"), now=None) == [1]
    real = time.time
    for hours in (0, 1, -1):  # the clock of this process is wrong, that of the server counts
        monkeypatch.setattr(time, "time", lambda wrong=hours * 3600: real() + wrong)
        assert await next_look(grace=3600, max_size=2) <= 2.0
        assert 100 < await next_look(grace=3600, max_delay=300) <= 300
        assert 3000 < await next_look(grace=3600) <= 3600
    monkeypatch.undo()
    await redis_client.flushall()

    app, seen = _app(url), []

    @app.aggregate("g", grace=3600, max_size=2)
    def digest(group: str, jobs: list[Job]) -> list[Any]:
        seen.append(time.monotonic())
        return []

    async with app.worker({"default": 1}):
        await app.enqueue("t", b"1", group="g")
        await app.enqueue("t", b"2", group="g")
        await until(lambda: _true(seen), what="the call")
    await app.close()


async def test_group_size_bound(store: Store, redis_client: Any) -> None:
    assert groups.MOST == 10_000
    queue = GroupQueue(store.redis, redis_client, "default")
    await queue.add(*[("g", f"t{n:02}") for n in range(7)])
    assert (await queue.check(("g", "s1", 0, 0, 0), most=5))[0][0] == 1
    assert await redis_client.zcard(queue.set_key("g", "s1")) == 5
    assert await redis_client.zcard(_key("g:g")) == 2


# Schedules.


async def test_order_lanes(url: str, redis_client: Any) -> None:
    app = _app(url)
    handles = [await app.enqueue("t", order_key="k", order_hold=True) for _ in range(2)]
    first, second = [handle.id.encode() for handle in handles]
    assert await redis_client.zrange(_key("lane:k"), 0, -1) == [first, second]
    assert await redis_client.zrange(_key("lanes"), 0, -1) == [b"k"]
    fields = await _hash(redis_client, second.decode())
    assert (fields[b"state"], fields[b"order_key"], fields[b"order_hold"]) == (b"scheduled", b"k", b"1")
    assert await redis_client.zscore(_key("scheduled"), second) == 9_999_999_999
    peer = GoPeer(redis_client)
    message = await peer.dequeue()
    assert message is not None
    assert message["id"] == first.decode()
    assert await peer.dequeue() is None
    assert await peer.forward() == 0
    await app.close()


async def test_limits_keys(url: str, store: Store, redis_client: Any) -> None:
    app = _app(url)
    app.task(name="t", limit=Limit(concurrency=1, rate="9/s"))(forever)
    async with app.worker():
        handles = [await app.enqueue("t", limit_key="l") for _ in range(2)]
        await until(lambda: _true_zcard(redis_client, "scheduled", 1), what="one that waits")
        assert await redis_client.hgetall(_key("limits")) == {b"task:t": b"1 9 1000"}
        running, waiting = [await _hash(redis_client, handle.id) for handle in handles]
        assert (running[b"slots"], running[b"limit_key"]) == (b'["task:t"]', b"l")
        assert (waiting[b"state"], waiting[b"limited_by"]) == (b"scheduled", b"task:t")
        names = {name.decode().partition("}:")[2] for name in await redis_client.keys(_key("*"))}
        assert {"slots:task:t", "starts:task:t", "waiting:task:t", "limited"} <= names
        for handle in handles:
            await handle.cancel(then="delete")
    await redis_client.flushall()

    # Go is not limited, and keeps the fields.
    queue, peer, desk = Queue(store.redis, redis_client, "default"), GoPeer(redis_client), LimitStore(store.redis)
    await desk.declare("default", {"task:t": "1 0 0", "task-key:t": "1 0 0"})
    first, second, third = [(await app.enqueue("t", limit_key="l")).id for _ in range(3)]
    await app.close()
    taken, _ = await queue.dequeue(5, now=None)
    assert taken == [first]
    assert await peer.forward() == 0, "what waits for a limit is out of Go's sight"
    free = await peer.enqueue("t")
    message = await peer.dequeue()
    assert message is not None
    assert message["id"] == free, "the limit is reached, and Go takes one more"
    await redis_client.zrem(_key("scheduled"), second)  # as Go's inspector runs a task
    await redis_client.lpush(_key("pending"), second)
    await redis_client.hset(_key(f"t:{second}"), "state", "pending")
    message = await peer.dequeue()
    assert message is not None
    assert message["id"] == second
    await peer.retry(message, 60, "no")
    fields = await queue.fields(second)
    assert (fields["state"], fields["limit_key"], fields["limited_by"]) == ("retry", "l", "task:t")
    assert json.loads(fields["limit_scopes"]) == ["task:t", "task-key:1:t:l"]
    assert await redis_client.zrange(_key("slots:task:t"), 0, -1) == [first.encode()], "Go takes up no room"

    await queue.done(first, now=None)
    assert await redis_client.zrange(_key("called:task:t"), 0, -1) == [third.encode()]
    await desk.declare("default", {"queue": "1 0 0"})
    assert (await queue.dequeue(5, number=2, now=None))[0] == [third]
    await peer.enqueue("other")
    assert (await queue.dequeue(5, number=3, now=None))[0] == []
    assert await redis_client.exists(_key("full")) == 1
    assert await peer.dequeue() is not None, "the queue is full, but not for Go"


async def _true_zcard(client: Any, name: str, number: int) -> bool:
    return bool(await client.zcard(_key(name)) == number)


@pytest.mark.parametrize("hours", [0, 1, -1])
async def test_semaphore_clock(store: Store, redis_client: Any, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """What is over by the server's clock is over, whatever the clock of this process says."""
    real, peer = time.time, GoPeer(redis_client)
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    peer.skew = -hours * 3600
    seconds, _ = await redis_client.time()
    await redis_client.zadd("asynq:sema:s", {"over": seconds - 2})
    assert await peer.acquire("s", 2, "go", seconds + 500)
    desk = LimitStore(store.redis)
    assert await desk.acquire("s", 2, "ours", seconds + 600)
    assert not await desk.acquire("s", 2, "more", seconds + 600)
    assert not await peer.acquire("s", 2, "more", seconds + 600)
    both = {b"go": seconds + 500, b"ours": seconds + 600}
    assert dict(await redis_client.zrange("asynq:sema:s", 0, -1, withscores=True)) == both
    assert await desk.give_back("s", "ours")
    assert await peer.acquire("s", 2, "more", seconds + 600)
    peer.skew += 1800
    assert await peer.acquire("s", 1, "late", seconds + 9000), "by Go's own clock they are all over"
    assert await redis_client.zrange("asynq:sema:s", 0, -1) == [b"late"]


async def test_scheduler_entry_ids(url: str, redis_client: Any) -> None:
    apps = [_app(url), _app(url)]
    entries = [app.schedule("@every 1s", app.call("t", b"x", queue="default")) for app in apps]
    assert entries[0].id == entries[1].id
    assert entries[0].task_id(7) == f"{entries[0].id}:7"
    assert apps[0].schedule("@every 2s", apps[0].call("t", b"x")).id != entries[0].id
    async with apps[0].scheduler():
        await until(lambda: redis_client.llen(_key("pending")), what="a tick")
    (first, *_) = await redis_client.lrange(_key("pending"), -1, -1)
    await apps[0].close()
    assert first.decode().startswith(f"{entries[0].id}:")


async def test_scheduler_shown_at_once(url: str, redis_client: Any) -> None:
    """Go shows nothing before its first interval of 10 seconds is over."""
    app = _app(url)
    app.schedule("@every 1h", app.call("t"))
    started = time.monotonic()
    async with app.scheduler():
        await until(lambda: redis_client.keys("asynq:schedulers:{*"), what="the entries")
        assert time.monotonic() - started < 9
        (key,) = await redis_client.keys("asynq:schedulers:{*")
        assert 10 < await redis_client.ttl(key) <= 20
    await app.close()
    assert await redis_client.keys("asynq:schedulers*") == []


async def test_scheduler_history_kept(url: str, redis_client: Any) -> None:
    app = _app(url)
    entry = app.schedule("@every 1s", app.call("t"))
    history = f"asynq:scheduler_history:{entry.id}"
    async with app.scheduler():
        await until(lambda: redis_client.zcard(history), what="the first tick")
    await app.close()
    assert 29 * 86400 < await redis_client.ttl(history) <= 30 * 86400
    assert not [key for key in golden_dump("scheduler-after-shutdown").rows if "history" in key]


async def test_scheduler_options_shown(url: str, redis_client: Any) -> None:
    app = _app(url)
    app.schedule("@every 1h", app.call("t", queue="low", max_retry=3, headers={"k": "v"}))
    async with app.scheduler():
        await until(lambda: redis_client.keys("asynq:schedulers:{*"), what="the entries")
        (shown,) = await app.inspector().scheduler_entries()
    await app.close()
    assert {'Queue("low")', "MaxRetry(3)", 'Header(["k","v"])'} <= set(shown.opts)
    assert all("(" in option for option in shown.opts)  # Go's reader panics without


async def test_scheduler_keys(url: str, redis_client: Any) -> None:
    apps = [_app(url), _app(url)]
    (entry, _) = [app.schedule("@every 1s", app.call("t", queue="default")) for app in apps]
    async with apps[0].scheduler(), apps[1].scheduler():
        await until(lambda: _true_length(redis_client, 3), what="three ticks")
        assert len(await redis_client.keys("asynq:veredus:scheduler_leader:*")) == 1
        state = await redis_client.hgetall(_key(f"cron:{entry.id}"))
    for app in apps:
        await app.close()
    ids = [task_id.decode() for task_id in await redis_client.lrange(_key("pending"), 0, -1)]
    assert len(ids) == len(set(ids))
    assert set(state) == {b"at", b"fired"}


async def _true_length(client: Any, least: int) -> bool:
    return bool(await client.llen(_key("pending")) >= least)


async def _handler(payload: bytes) -> None:
    raise AssertionError("never called")


async def _true(value: object) -> bool:
    return bool(value)


async def _gone(client: Any, key: str) -> bool:
    return bool(await client.exists(key) == 0)


async def _blocked(client: Any) -> bool:
    return any(row["cmd"] == "blmove" for row in await client.client_list())
