"""Rows of docs/asynq-differences.md beside live Go, of servers: what they show, wait for, forward and fail."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoPeer, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import SLOW, fail, key, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys

pytestmark = VALKEY_ONLY


async def test_what_a_server_shows_and_keeps_of_what_it_runs(program: Path, url: str, redis_client: Any) -> None:
    """Default settings on both sides, where leases and beats count."""
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        # served-queue-registered
        await peer.serve("go:work", queue="for-go")
        await until(lambda: _alive(redis_client, 1))
        assert await redis_client.smembers("asynq:queues") == set()
        async with app.worker("shared"):
            assert await redis_client.smembers("asynq:queues") == {b"shared"}
            # worker-types, worker-details, beat-interval: records of both live ten seconds
            await until(lambda: _alive(redis_client, 2))
            (types,) = await redis_client.keys("asynq:types:*")
            (details,) = await redis_client.keys("asynq:details:*")
            for name in [types, details, *await redis_client.keys("asynq:servers:{*")]:
                assert 0 < await redis_client.ttl(name) <= 10, name
            # idle-workers
            await until(lambda: redis_client.exists(key("idle")))
            assert 0 < await redis_client.ttl(key("idle")) <= 3600
            # closed-connections
            await until(lambda: redis_client.exists(keys.CHECKERS))
            (channel,) = await redis_client.pubsub_channels("asynq:alive:*")
            assert await redis_client.zrange(keys.CHECKERS, 0, -1) == [channel.removeprefix(b"asynq:alive:")]
            assert 0 < await redis_client.ttl(keys.CHECKERS) <= 60
            # lease-length, held-field, batch-memory
            theirs = await app.enqueue("go:work", SLOW, queue="for-go")
            (ours,) = await peer.enqueue("py:work", SLOW, queue="shared")
            await until(lambda: peer.began and side.began)
            now = await now_of(redis_client)
            assert 27 <= await redis_client.zscore(key("lease", "for-go"), theirs.id) - now <= 30
            assert 8 <= await redis_client.zscore(key("lease"), ours["id"]) - now <= 13
            assert "held" not in await look.of("for-go").fields(theirs.id)
            assert "held" in await look.fields(ours["id"])
            (batch,) = await redis_client.keys(key("batch:*"))
            assert 0 < await redis_client.ttl(batch) <= 600
            # payload-shown: Go lists what our worker runs
            await until(lambda: _listed(peer, ours["id"]), what="Go lists the running task")
            # cancel-is-no-failure
            await peer.do("cancel", id=theirs.id)
            await look.of("for-go").ends(theirs.id, "retry")
            assert await look.of("for-go").counters() == (1, 1)
            await app.inspector().cancel("shared", ours["id"])
            await look.ends(ours["id"], "archived")
            assert await look.counters() == (1, 0)
            # result-kept
            gone = await app.enqueue("go:work", {"result": "r"}, queue="for-go")
            (kept,) = await peer.enqueue("py:work", {"result": "r"}, queue="shared")
            await look.of("for-go").ends(gone.id, "gone")
            await look.ends(kept["id"], "completed")
            row = await peer.task("shared", kept["id"])
            assert (row["retention"], row["result"]) == (600, b'"r"')
            # wakeup-channel: what Go schedules is found by looking
            (later,) = await peer.enqueue("py:work", queue="shared", process_in_ms=500)
            await until(lambda: side.attempts(later["id"]))
            assert await redis_client.pubsub_numsub(key("delay_wakeup")) == [(key("delay_wakeup").encode(), 1)]
        # expires-field, thread-overrun, deadline-not-cut
        await peer.do("pause", queue="for-go")
        late = await app.enqueue("go:work", {}, queue="for-go", expires=0.05)
        await until(lambda: _expired(look.of("for-go"), late.id))
        await peer.do("unpause", queue="for-go")
        await look.of("for-go").ends(late.id, "gone")
        assert [ran["id"] for ran in peer.ran][-1] == late.id
        deadline = datetime.fromtimestamp(await now_of(redis_client) + 3600, UTC)
        over = await app.enqueue(
            "go:work", {"behave": "sleep", "ms": 2500}, queue="for-go", timeout=1, deadline=deadline
        )  # fmt: skip
        await look.of("for-go").ends(over.id, "retry")
        assert over.id not in {ran["id"] for ran in peer.ran}, "its handler goes on unseen"
        (began,) = [fact for fact in peer.began if fact["id"] == over.id]
        assert began["deadline_ns"] % 10**9 == 0, "cut to a whole second"
        await until(lambda: over.id in {ran["id"] for ran in peer.ran})
    assert await check_invariant(redis_client) == []


async def _expired(look: Look, task_id: str) -> bool:
    return await look.now_ms() > int((await look.fields(task_id))["expires_at"])


async def _alive(client: Any, number: int) -> bool:
    return bool(await client.zcard("asynq:servers") == number)


async def test_our_idle_worker_changes_nothing_in_the_order_of_gos_tasks(
    program: Path, url: str, redis_client: Any
) -> None:
    """blocking-wait: it is woken by each of them, and puts it back."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        sent = []
        for number in range(30):
            sent += [row["id"] for row in await peer.enqueue("go:work", str(number).encode(), queue="shared")]
            await asyncio.sleep(0.01)
        await peer.serve("go:work", queue="shared", concurrency=1, check_ms=10)
        await until(lambda: len(peer.ran) == 30)
    assert [ran["id"] for ran in peer.ran] == sent
    assert await check_invariant(redis_client) == []


async def _fabricate(client: Any, peer: GoPeer, task_type: str, place: str, score: int, **fields: str) -> str:
    """A task that Go has sent, moved by hand to another sorted set."""
    (sent,) = await peer.enqueue(task_type, queue="shared", process_in_ms=3_600_000)
    task_id = str(sent["id"])
    await client.zrem(key("scheduled"), task_id)
    await client.zadd(key(place), {task_id: score})
    await client.hset(key(f"t:{task_id}"), mapping={"state": place, **fields})
    return task_id


@pytest.mark.parametrize("by", ["go", "us"])
async def test_what_is_due(program: Path, url: str, redis_client: Any, by: str) -> None:
    """forward-order, forward-registers-group, front-field; the queue is paused, so that what was moved can be seen."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.do("queues")
        now = await now_of(redis_client)
        retry = await _fabricate(redis_client, peer, "t", "retry", now - 10)
        scheduled = await _fabricate(redis_client, peer, "t", "scheduled", now - 5)
        front = await _fabricate(redis_client, peer, "t", "retry", now - 2, front="1")
        member = await _fabricate(redis_client, peer, "t", "retry", now - 1, group="g")
        await peer.do("pause", queue="shared")

        async def moved() -> bool:
            left = await redis_client.zcard(key("retry")) + await redis_client.zcard(key("scheduled"))
            return bool(left == 0)

        if by == "go":
            await peer.serve("t", queue="shared")
            await until(moved)
        else:
            async with app.worker("shared", **FAST):
                await until(moved)
        order = [item.decode() for item in await redis_client.lrange(key("pending"), 0, -1)][::-1]
        assert order == ([scheduled, retry, front] if by == "go" else [front, retry, scheduled])
        assert await redis_client.zrange(key("g:g"), 0, -1) == [member.encode()]
        assert await redis_client.smembers(key("groups")) == (set() if by == "go" else {b"g"})


async def test_failures_handed_over(program: Path, url: str, redis_client: Any) -> None:
    """traceback-field, attempt-fields, statistics-keys, deferrals-field, followers."""
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        (sent,) = await peer.enqueue("py:work", {"behave": "fail"}, queue="shared")
        async with app.worker("shared", **FAST):
            await look.ends(sent["id"], "retry")
        assert "told to fail" in (await app.inspector().task("shared", sent["id"])).traceback
        await peer.do("run", queue="shared", id=sent["id"])
        await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
        await until(lambda: peer.ran)
        await look.ends(sent["id"], "retry")
        assert "traceback" in await look.fields(sent["id"])
        assert (await app.inspector().task("shared", sent["id"])).traceback == "", "it belongs to an earlier failure"
        attempts = [(one.outcome, one.error) for one in await app.inspector().attempts("shared", sent["id"])]
        assert attempts == [("failed", "told to fail"), ("not recorded", "")]
        (stats,) = await app.inspector().type_stats()
        assert (stats.type, stats.counted.failed, (await look.counters())[1]) == ("py:work", 1, 2), (
            "Go's in the counters"
        )
        # Go tells nobody who follows a task
        followed = await app.enqueue("py:work", {}, queue="shared", delay=0.5)
        await redis_client.hset(key(f"t:{followed.id}"), "waited", ">s:0")
        await look.ends(followed.id, "gone")
        assert not await redis_client.exists(key("told"))
        await peer.do("stop")
        await peer.serve("py:work", queue="shared", retry_ms=1, no_failure=True)
        put_off = await app.enqueue("py:work", {"behave": "fail"}, queue="shared", max_retry=1)
        await until(lambda: sum(ran["id"] == put_off.id for ran in peer.ran) >= 3, what="more than its one retry")
        assert (await look.message(put_off.id)).retried == 0
        assert "deferrals" not in await look.fields(put_off.id)
        await peer.do("stop")
        await app.inspector().delete("shared", put_off.id)
    app = App(url)
    app.handler("py:*", queue="shared", retry_delay=3600)(fail)
    async with app, app.worker("shared", **FAST, is_failure=lambda error: False):
        ours = await app.enqueue("py:work", {}, queue="shared")
        await look.ends(ours.id, "retry")
        assert (await look.fields(ours.id))["deferrals"] == b"1"
        assert (await look.message(ours.id)).retried == 0
    assert await check_invariant(redis_client) == []


async def _listed(peer: GoPeer, task_id: str) -> bool:
    return task_id in str(await peer.do("servers"))
