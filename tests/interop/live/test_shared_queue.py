"""A queue that live Go servers and a Veredus worker share, each with handlers of its own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App

pytestmark = VALKEY_ONLY

GO_TASKS = 780
MINE = 400


async def test_a_worker_that_joins_go_servers_leaves_their_tasks_alone_and_finds_its_own_between_them(
    program: Path, url: str, redis_client: Any
) -> None:
    """passes-over."""
    look, app = Look(redis_client, "shared"), App(url)
    waits: list[float] = []

    @app.task(name="py:work", queue="shared")
    async def work(sent_at: float) -> None:
        waits.append(time.time() - sent_at)

    async with app, go_peer(program, url) as one, go_peer(program, url) as two:
        await one.enqueue("go:work", count=GO_TASKS, queue="shared", max_retry=0)
        before = [await work.enqueue(time.time()) for _ in range(10)]  # behind all of them
        async with app.worker(**FAST):
            for handle in before:
                await look.ends(handle.id, "gone")
            assert await redis_client.llen("asynq:{shared}:pending") == GO_TASKS, "nothing of Go's was taken"
            waits.clear()
            began = time.monotonic()
            for peer in (one, two):
                await peer.serve("go:work", queue="shared", concurrency=10, sleep_ms=150)
            for _ in range(MINE):
                await work.enqueue(time.time())
                await asyncio.sleep(0.01)
            await until(lambda: len(one.ran) + len(two.ran) == GO_TASKS and len(waits) == MINE, seconds=60)
            seconds = time.monotonic() - began
    assert {fact["retried"] for fact in one.ran + two.ran} == {0}
    assert len({fact["id"] for fact in one.ran + two.ran}) == GO_TASKS
    assert len(one.ran) > 0 < len(two.ran)
    counters = await look.counters()
    assert counters == (GO_TASKS + MINE + 10, 0)
    p99 = sorted(waits)[int(len(waits) * 0.99)]
    print(
        f"\n{GO_TASKS} Go tasks on two Go servers in {seconds:.1f} s ({len(one.ran)} + {len(two.ran)}), {MINE} of ours "
        f"between them: pick-up p50 {sorted(waits)[len(waits) // 2] * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms"
    )
    assert p99 < 1.0, "ours waited for Go's"
