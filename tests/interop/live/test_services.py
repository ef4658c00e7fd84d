"""What Go services do beside Python ones: lists of periodic tasks, rate limits, priorities, any bytes, lapsed locks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoPeer, go_peer
from tests.interop.live.python_side import PythonSide, same_listing
from tests.interop.live.rows import key, locks, no_locks, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, TaskFailed

pytestmark = VALKEY_ONLY


async def test_periodic_tasks_that_a_go_service_manages_beside_a_schedule_of_ours(
    program: Path, url: str, redis_client: Any
) -> None:
    """Its list changes while it runs; both inspectors show what is on it."""
    side = PythonSide(url)
    side.app.schedule("@every 1s", side.app.call("py:ours", {}, queue="shared"))
    first = {"queue": "shared", "max_retry": 2, "retention_ms": 60_000, "timeout_ms": 5000, "unique_ms": 60_000}
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        await peer.do("manage", periodic=[{"cron": "@every 1s", "type": "py:first", "options": first}])
        await until(lambda: {job.type for job in side.ran} == {"py:first", "py:ours"})
        await until(lambda: _same_schedules(app, peer, ["py:first", "py:ours"]))
        await peer.do("manage", periodic=[{"cron": "@every 1s", "type": "py:second", "options": {"queue": "shared"}}])
        await until(lambda: "py:second" in {job.type for job in side.ran})
        await until(lambda: _same_schedules(app, peer, ["py:ours", "py:second"]))
    assert await check_invariant(redis_client) == []


async def _same_schedules(app: App, peer: GoPeer, types: list[str]) -> bool:
    ours = {one.id: (one.spec, one.task_type, sorted(one.opts)) for one in await app.inspector().scheduler_entries()}
    theirs = {row["id"]: (row["spec"], row["type"], sorted(row["options"])) for row in await peer.do("entries")}
    return ours == theirs and sorted(one[1] for one in ours.values()) == types


async def test_a_rate_limit_of_a_go_service_costs_no_retry_when_we_go_on(
    program: Path, url: str, redis_client: Any
) -> None:
    """Its `IsFailure` says that such an error is none."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=100)
        (sent,) = await peer.enqueue("py:work", {"behave": "limited"}, queue="shared", max_retry=1)
        await until(lambda: len(peer.ran) >= 3, what="more than its one retry")
        await peer.do("stop")
        message = await look.message(sent["id"])
        assert (message.retried, message.error_msg) == (0, "over the limit")
        async with app.worker("shared", **FAST):
            await look.ends(sent["id"], "gone")
        assert (await look.counters())[1] == 0
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("by", ["go", "us"])
async def test_strict_priority_holds_for_tasks_of_both(program: Path, url: str, redis_client: Any, by: str) -> None:
    side = PythonSide(url)
    queues = {"high": 2, "low": 1}
    async with side.app as app, go_peer(program, url) as peer:
        for number in range(20):
            await peer.enqueue("py:work", f"low {number}".encode(), queue="low")
            await app.enqueue("py:work", f"high {number}".encode(), queue="high")
        if by == "go":
            await peer.serve("py:work", queues=queues, strict=True, concurrency=1)
            await until(lambda: len(peer.ran) == 40)
        else:
            async with app.worker(queues, strict=True, concurrency=1, **FAST):
                await until(lambda: len(side.ran) == 40)
    ran = [fact["payload"] for fact in peer.ran] or [job.payload for job in side.ran]
    assert ran == [f"{name} {number}".encode() for name in queues for number in range(20)]
    assert await check_invariant(redis_client) == []


async def test_an_error_of_go_that_is_not_utf_8_leaves_the_task_to_us(
    program: Path, url: str, redis_client: Any
) -> None:
    """Go cannot encode it, and so neither retries nor archives the task: its lease ends."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=100)
        handle = await app.enqueue("py:work", {"behave": "fail in bytes", "times": 1}, queue="shared")
        await until(lambda: peer.ran)
        await peer.kill()  # stopped in order, it would wait for a minute
        assert await look.state(handle.id) == "active"
        await redis_client.zadd(key("lease"), {handle.id: await now_of(redis_client) - 31})
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [job.retried for job in side.ran] == [1]
    assert await check_invariant(redis_client) == []


async def test_a_lock_of_go_that_lapsed_and_was_taken_by_another_task_stays_with_that_one(
    program: Path, url: str, redis_client: Any
) -> None:
    """The first task has waited too long; we run it while the second one has the lock."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        (one,) = await peer.enqueue("py:work", b"{}", queue="shared", unique_ms=1000)
        await until(lambda: no_locks(redis_client))
        (two,) = await peer.enqueue("py:work", b"{}", queue="shared", unique_ms=60_000, process_in_ms=3_600_000)
        async with app.worker("shared", **FAST):
            await look.ends(one["id"], "gone")
            (lock,) = await locks(redis_client)
            assert await redis_client.get(lock) == two["id"].encode()
            await peer.do("run", queue="shared", id=two["id"])
            await look.ends(two["id"], "gone")
        assert await locks(redis_client) == []
    assert await check_invariant(redis_client) == []


async def test_ten_megabytes_of_any_bytes_reach_us_and_are_listed_alike(
    program: Path, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    large = bytes(range(256)) * 40_000
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        side.may_end.clear()
        (sent,) = await peer.enqueue("py:work", large, queue="shared", retention_ms=60_000)
        await until(lambda: side.began)
        assert side.began[0].payload == large
        assert len(await same_listing(app, peer, "shared", "active")) == 1
        side.may_end.set()
        await look.ends(sent["id"], "completed")
        assert len(await same_listing(app, peer, "shared", "completed")) == 1
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("raw", [b"\xff\x00", b"plain text", b"[1", b"x" * 200_000], ids=lambda raw: repr(raw[:10]))
async def test_whoever_waits_gets_a_result_of_go_as_it_is_if_it_is_no_json(program: Path, url: str, raw: bytes) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        payload = {"raw": base64.b64encode(raw).decode()}
        handle = await app.enqueue("go:work", payload, queue="for-go", retention=60)
        assert await handle.result(timeout=20) == raw


async def test_a_task_that_a_go_client_sent_can_be_waited_for_by_its_id(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go", retry_ms=300)
        payload = {"behave": "fail", "times": 1, "result": '{"n":7}'}
        (sent,) = await peer.enqueue("go:work", payload, queue="for-go", retention_ms=60_000)
        handle = app.handle(sent["id"], queue="for-go")
        assert await handle.result(timeout=20) == {"n": 7}
        status = await handle.status()
        assert (status.state, status.retried) == ("completed", 1)
        (sent,) = await peer.enqueue("go:work", {"behave": "fail"}, queue="for-go", max_retry=0)
        with pytest.raises(TaskFailed, match="told to fail"):
            await app.handle(sent["id"], queue="for-go").result(timeout=20)
