"""What becomes of a task in the hands of either side, and how the other side goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.fleet import VeredusMember
from tests.interop.live.peer import go_peer
from tests.interop.live.python_side import PythonSide, same_listing
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until

pytestmark = VALKEY_ONLY

# behaviour -> (state in which one attempt with max_retry=1 leaves the task, error of Go, error of ours)
OUTCOMES = {
    "ok": ("gone", "", ""),
    "fail": ("retry", "told to fail", "ValueError: told to fail"),
    "skip": ("archived", "told to skip: skip retry for the task", "SkipRetry: told to skip"),
    "revoke": ("gone", "", ""),
}


@pytest.mark.parametrize("behaviour", OUTCOMES)
async def test_a_task_that_go_ran_is_where_asynq_says(
    program: Path, url: str, redis_client: Any, behaviour: str
) -> None:
    state, error, _ = OUTCOMES[behaviour]
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
        handle = await app.enqueue("py:work", {"behave": behaviour}, queue="shared", max_retry=1)
        await look.ends(handle.id, state)
        if state != "gone":
            (row,) = await same_listing(app, peer, "shared", state)
            assert (row["error"], row["retried"]) == (error, 1 if state == "retry" else 0)
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("behaviour", OUTCOMES)
async def test_a_task_that_we_ran_is_where_asynq_says(
    program: Path, url: str, redis_client: Any, behaviour: str
) -> None:
    """error-text."""
    state, _, error = OUTCOMES[behaviour]
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        (sent,) = await peer.enqueue("py:work", {"behave": behaviour}, queue="shared", max_retry=1)
        await look.ends(sent["id"], state)
        if state != "gone":
            (row,) = await same_listing(app, peer, "shared", state)
            assert (row["error"], row["retried"]) == (error, 1 if state == "retry" else 0)
    assert await check_invariant(redis_client) == []


async def test_a_panic_in_go_is_retried_by_us(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=1000)
        handle = await app.enqueue("py:work", {"behave": "panic", "times": 1}, queue="shared")
        await look.ends(handle.id, "retry")
        assert "panic" in (await peer.task("shared", handle.id))["error"]
        await peer.do("stop")
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [job.retried for job in side.ran] == [1]
    assert await look.counters() == (2, 1)
    assert await check_invariant(redis_client) == []


async def test_a_retry_of_ours_is_run_by_go(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        (sent,) = await peer.enqueue("py:work", {"behave": "fail", "times": 1}, queue="shared")
        async with app.worker("shared", **FAST):
            await until(lambda: side.ran)
        await peer.serve("py:work", queue="shared")
        await look.ends(sent["id"], "gone")
        (ran,) = peer.ran
    assert (ran["retried"], len(side.ran)) == (1, 1)
    assert await look.counters() == (2, 1)
    assert await check_invariant(redis_client) == []


async def test_results_of_either_side_are_read_by_the_other(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        theirs = await app.enqueue("go:work", {"result": "from Go"}, queue="for-go", retention=60)
        await look.of("for-go").ends(theirs.id, "completed")
        (row,) = await same_listing(app, peer, "for-go", "completed")
        assert (row["result"], row["retention"]) == (b"from Go", 60)
        async with app.worker("shared", **FAST):
            (sent,) = await peer.enqueue("py:work", {"result": "from Python"}, queue="shared", retention_ms=90_000)
            await look.ends(sent["id"], "completed")
        (row,) = await same_listing(app, peer, "shared", "completed")
        assert row["result"] == b'"from Python"'
    assert await check_invariant(redis_client) == []


async def test_a_lease_that_dies_with_go_is_recovered_by_us(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared")
        handle = await app.enqueue("py:work", {"behave": "sleep", "ms": 60_000, "times": 1}, queue="shared")
        await look.ends(handle.id, "active")
        await peer.kill()
        # Go's lease of 30 s, and the 30 s that Go allows for clocks, are over
        await redis_client.zadd("asynq:{shared}:lease", {handle.id: await _now(redis_client) - 31})
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [job.retried for job in side.ran] == [1]
    assert await check_invariant(redis_client) == []


async def test_a_lease_that_dies_with_us_is_recovered_by_go(
    program: Path, url: str, redis_client: Any, tmp_path: Path
) -> None:
    """Go looks for lost leases when it starts, and once a minute."""
    look, worker = Look(redis_client, "normal"), VeredusMember(url, tmp_path / "facts", tmp_path / "log", lease=12)
    async with go_peer(program, url) as peer:
        await worker.start()
        try:
            (sent,) = await peer.enqueue("storm:work", {"behave": "wait", "ms": 60_000, "times": 1}, queue="normal")
            await look.ends(sent["id"], "active")
        finally:
            await worker.kill()
        # our lease of 12 s, and the 30 s that Go allows for clocks, are over
        await redis_client.zadd("asynq:{normal}:lease", {sent["id"]: await _now(redis_client) - 31}, xx=True)
        await peer.serve("storm:work", queue="normal", retry_ms=1000)
        await look.ends(sent["id"], "gone")
        (ran,) = peer.ran
    assert ran["retried"] == 1
    assert await look.counters() == (2, 1)
    assert await check_invariant(redis_client) == []


async def test_graceful_stop_of_either_side_gives_the_task_to_the_other(
    program: Path, url: str, redis_client: Any
) -> None:
    """requeue-pending-since."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", shutdown_ms=1)
        slow = await app.enqueue("py:work", {"behave": "wait", "ms": 7000}, queue="shared")
        await until(lambda: peer.began)
        await peer.do("stop")
        assert await look.state(slow.id) == "pending"
        assert "pending_since" not in await look.fields(slow.id)
        settings = {**FAST, "shutdown_timeout": 0.2}
        async with app.worker("shared", **settings):
            await until(lambda: side.began)
        assert await look.state(slow.id) == "pending"
        assert "pending_since" in await look.fields(slow.id)
        await peer.serve("py:work", queue="shared")
        await look.ends(slow.id, "gone")
    assert await look.counters() == (1, 0)
    assert await check_invariant(redis_client) == []


async def _now(client: Any) -> int:
    return int((await client.time())[0])


async def test_both_sides_work_on_one_queue_and_each_task_runs_once(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", concurrency=5)
        async with app.worker("shared", concurrency=5, **FAST):
            sends = [app.enqueue("py:work", {"behave": "sleep", "ms": 20}, queue="shared") for _ in range(200)]
            await asyncio.gather(*sends)
            await peer.enqueue("py:work", {"behave": "sleep", "ms": 20}, count=200, queue="shared")
            await until(lambda: len(side.ran) + len(peer.ran) >= 400)
            await until(lambda: _idle(look))
    assert len({job.id for job in side.ran} | {ran["id"] for ran in peer.ran}) == 400
    assert len(side.ran) + len(peer.ran) == 400
    assert len(peer.ran) > 40 < len(side.ran)
    assert await look.counters() == (400, 0)
    assert await check_invariant(redis_client) == []


async def _idle(look: Look) -> bool:
    return not await look.pending() and not await look.active()
