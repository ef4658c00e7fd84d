"""A task goes to and fro between live Go and us; time-outs, results and waiting follow it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import Release, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import SLOW, key
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import Limit, TaskFailed

pytestmark = VALKEY_ONLY
OPTIONS: tuple[Any, ...] = ("order_key", "limit_key")


@pytest.mark.parametrize("what", ["timeout", "deadline", "deadline over"])
async def test_an_attempt_that_takes_too_long_ends_alike_on_both_sides(
    program: Path, url: str, redis_client: Any, what: str
) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        options: dict[str, Any] = {"timeout_ms": 1000}
        if what != "timeout":
            options = {"deadline_at": int(time.time()) + (2 if what == "deadline" else -5)}
        rows = []
        for by in ("go", "us"):
            (sent,) = await peer.enqueue("py:work", SLOW, queue="shared", **options)
            if what == "deadline":
                options["deadline_at"] += 4
            if by == "go":
                await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
                await look.ends(sent["id"], "retry")
                await peer.do("stop")
            else:
                async with app.worker("shared", **FAST):
                    await look.ends(sent["id"], "retry")
            row = await peer.task("shared", sent["id"])
            rows.append({name: row[name] for name in ("state", "error", "retried", "timeout", "max_retry")})
        assert rows[0] == rows[1]
        assert await look.counters() == (2, 2)
    assert await check_invariant(redis_client) == []


async def test_the_retries_of_a_task_are_used_up_by_both_together(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        (sent,) = await peer.enqueue("py:work", {"behave": "fail"}, queue="shared", max_retry=3)
        for turn, state in enumerate(("retry", "retry", "retry", "archived")):
            if turn % 2:
                await app.inspector().run("shared", sent["id"])
                async with app.worker("shared", **FAST):
                    await look.ends(sent["id"], state)
            else:
                if turn:
                    await peer.do("run", queue="shared", id=sent["id"])
                await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
                await look.ends(sent["id"], state)
                await peer.do("stop")
        row = await peer.task("shared", sent["id"])
        assert (row["retried"], row["max_retry"], len(side.ran), len(peer.ran)) == (3, 3, 2, 2)
        assert await look.counters() == (4, 4)
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("verb", ["archive_all", "delete_all"])
async def test_pending_tasks_that_go_takes_away_let_those_behind_them_in(
    program: Path, url: str, redis_client: Any, verb: str
) -> None:
    side = PythonSide(url)
    side.app.limit("shared", Limit(concurrency=1, per="key"))
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        await app.inspector().pause("shared")
        for name in OPTIONS * 3:
            await app.enqueue("py:work", queue="shared", **{name: name})
        for taken in (4, 1, 1):  # a limit counts when a worker takes a task
            await until(lambda: redis_client.llen(key("pending")))
            assert await peer.do(verb, queue="shared", state="pending") == taken
        await app.inspector().resume("shared")
        handles = [await app.enqueue("py:work", queue="shared", **{name: name}) for name in OPTIONS]
        await until(lambda: {one.id for one in handles} <= {job.id for job in side.ran})
        if verb == "archive_all":
            await peer.do("run_all", queue="shared", state="archived")
            await until(lambda: len(side.ran) == 8)
    assert await check_invariant(redis_client) == []


async def test_whoever_waits_learns_of_what_go_archived(program: Path, url: str, redis_client: Any) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        skipped = await app.enqueue("go:work", {"behave": "skip"}, queue="for-go", delay=0.5)
        with pytest.raises(TaskFailed, match="told to skip"):
            await skipped.result(timeout=20)
        by_hand = await app.enqueue("go:work", {}, queue="for-go", delay=3600)
        waiting = asyncio.ensure_future(by_hand.result(timeout=20))
        await until(lambda: redis_client.hexists(key(f"t:{by_hand.id}", "for-go"), "waited"))
        await peer.do("archive", queue="for-go", id=by_hand.id)
        with pytest.raises(TaskFailed):
            await waiting
    assert await check_invariant(redis_client) == []


async def test_headers_survive_a_retry_by_go_from_the_release_on_that_has_them(
    program: Path, release: Release, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=1000)
        handle = await app.enqueue("py:work", {"behave": "fail", "times": 1}, queue="shared", headers={"a": "1"})
        await look.ends(handle.id, "retry")
        await peer.do("stop")
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [dict(job.headers) for job in side.ran] == [{"a": "1"} if release.headers else {}]
    assert await check_invariant(redis_client) == []
