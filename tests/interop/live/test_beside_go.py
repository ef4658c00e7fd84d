"""What only shows beside a live Go server: marks, indexes and waiting that Go knows nothing of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoError, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import key, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import ResultGone
from veredus.client import task_listener

pytestmark = VALKEY_ONLY
SLOW = {"behave": "wait", "ms": 60_000, "times": 1}


async def test_the_index_of_due_times_is_empty_after_go_ran_our_delayed_tasks(
    program: Path, url: str, redis_client: Any
) -> None:
    """due-index, of a queue that no Veredus worker serves: any Veredus worker on this server sweeps it."""
    side, look = PythonSide(url), Look(redis_client, "for-go")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        handles = await app.enqueue_many([app.call("go:work", {}, queue="for-go", delay=0.1) for _ in range(600)])
        await until(lambda: len(peer.ran) == len(handles), seconds=60)
        assert await redis_client.zcard("asynq:{for-go}:due") == 600
        command = [sys.executable, "-m", "veredus", "doctor", "--redis", url]
        shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert shown.stdout.count("stale") == 6, "a few lines, however many entries"
        assert "595 more of kind stale_due" in shown.stdout
        async with app.worker("shared", **FAST):

            async def swept() -> bool:
                return bool(await redis_client.zcard("asynq:{for-go}:due") == 0)

            await until(swept)
    assert await look.counters() == (600, 0)
    assert await check_invariant(redis_client) == []


async def test_a_cancel_counts_for_the_attempt_of_go_that_it_was_made_for(
    program: Path, url: str, redis_client: Any
) -> None:
    """cancel-mark: Go retries what is cancelled. The next attempt, which is ours, runs."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=1000)
        handle = await app.enqueue("py:work", SLOW, queue="shared")
        await until(lambda: peer.began)
        await app.inspector().cancel("shared", handle.id)
        await look.ends(handle.id, "retry")
        await peer.do("stop")
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [job.retried for job in side.ran] == [1]
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("by", ["go", "us"])
async def test_a_task_that_go_archived_after_a_cancel_runs_when_it_is_run_by_hand(
    program: Path, url: str, redis_client: Any, by: str
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared")
        handle = await app.enqueue("py:work", {"behave": "wait", "ms": 2000}, queue="shared", max_retry=0)
        await until(lambda: peer.began)
        await app.inspector().cancel("shared", handle.id)
        await look.ends(handle.id, "archived")
        await peer.do("stop")
        await (peer.do("run", queue="shared", id=handle.id) if by == "go" else app.inspector().run("shared", handle.id))
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert len(side.ran) == 1
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("waits", ["before it runs", "while it runs"])
async def test_whoever_waits_for_a_task_that_go_runs_is_told_soon(
    program: Path, url: str, redis_client: Any, waits: str
) -> None:
    """waiting-fields."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        delay = 2 if waits == "before it runs" else None
        handle = await app.enqueue("go:work", {"behave": "sleep", "ms": 1500}, queue="for-go", delay=delay)
        if waits == "while it runs":
            await until(lambda: peer.began)
        value, ended = await _result(handle)
        assert value is None
        (ran,) = peer.ran
        assert ended - ran["at"] < 5, "Go tells nobody: those who wait look every second"
    assert await check_invariant(redis_client) == []


async def test_a_result_that_go_wrote_reaches_whoever_waits_without_a_retention(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        handle = await app.enqueue("go:work", {"result": '{"n":7}'}, queue="for-go", delay=1.5)
        assert await handle.result(timeout=20) == {"n": 7}


@pytest.mark.parametrize("payload", [{"result": '{"n":7}'}, {}], ids=["a result", "nothing"])
async def test_whoever_waits_is_told_soon_by_a_go_server_that_starts_later(
    program: Path, url: str, redis_client: Any, payload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody serves the queue when the waiting begins."""
    monkeypatch.setattr(task_listener, "CHECK_FOR_GO", 0.3)
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        handle = await app.enqueue("go:work", payload, queue="for-go")
        waiting = _result(handle)
        await until(lambda: redis_client.hexists(f"asynq:{{for-go}}:t:{handle.id}", "waited"))
        await peer.serve("go:work", queue="for-go")
        value, ended = await waiting
        assert value == ({"n": 7} if payload else None)
        assert ended - peer.ran[0]["at"] < 5
    assert await check_invariant(redis_client) == []


async def test_what_is_kept_for_whoever_waits_is_not_kept_if_we_run_it(
    program: Path, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        handles = [await app.enqueue("py:work", {"result": result}, queue="shared") for result in ("", "r")]
        waiting = [_result(handle) for handle in handles]
        for handle in handles:
            await until(lambda id=handle.id: redis_client.hexists(f"asynq:{{shared}}:t:{id}", "waited"))
            assert (await peer.task("shared", handle.id))["retention"] == 60
        async with app.worker("shared", **FAST):
            assert [(await wait)[0] for wait in waiting] == [None, "r"]
        assert await look.state(handles[0].id) == "gone"
        assert (await peer.task("shared", handles[1].id))["retention"] == 600
    assert await check_invariant(redis_client) == []


async def test_waiting_for_a_task_does_not_change_the_retention_that_it_was_sent_with(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        handle = await app.enqueue("go:work", {"result": "7"}, queue="for-go", delay=1.5, retention=90)
        assert await handle.result(timeout=20) == 7
        assert (await peer.task("for-go", handle.id))["retention"] == 90


async def test_a_task_that_was_deleted_while_somebody_waits_is_gone(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:other", queue="for-go")
        handle = await app.enqueue("go:work", {}, queue="other")
        waiting = _result(handle)
        await until(lambda: app.inspector().queues())
        await peer.do("delete", queue="other", id=handle.id)
        with pytest.raises(ResultGone):
            await waiting


@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"order_key": "k"}, {"group": "g"}, {"replace": True}], ids=str)
async def test_a_result_that_go_writes_after_its_task_is_gone_does_not_take_the_id(
    program: Path, url: str, redis_client: Any, options: dict[str, Any]
) -> None:
    """late-result: it stood still, and meanwhile we have run the task."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared")
        await app.enqueue("py:work", {"behave": "write late", "ms": 100}, queue="shared", task_id="same")
        await until(lambda: peer.began)
        peer.freeze()
        try:
            await redis_client.zadd(key("lease"), {"same": await now_of(redis_client) - 31})
            async with app.worker("shared", **FAST):
                await look.ends("same", "gone")
        finally:
            peer.thaw()
        await until(lambda: redis_client.exists(look.task("same")))
        assert await look.fields("same") == {"result": b"late"}
        with pytest.raises(GoError, match="conflicts"):
            await peer.enqueue("py:work", queue="shared", task_id="same")
        again = await app.enqueue("py:other", {}, queue="shared", task_id="same", **options)
        assert again.created
        assert "result" not in await look.fields("same")
    assert await check_invariant(redis_client) == []


async def test_a_retention_that_go_asked_for_is_kept_as_it_is(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        (sent,) = await peer.enqueue("py:work", {"result": "r"}, queue="shared", retention_ms=90_000)
        await look.ends(sent["id"], "completed")
        assert (await peer.task("shared", sent["id"]))["retention"] == 90


def _result(handle: Any) -> Any:
    async def wait() -> tuple[Any, float]:
        value = await handle.result(timeout=40)
        return value, time.time()

    return asyncio.ensure_future(wait())
