"""`app.inspector()`: over the app's own Redis, beside its workers."""

from __future__ import annotations

import asyncio

from tests.support.waiting import until
from veredus import App, Inspector, Query


async def test_the_common_path(app: App) -> None:
    release = asyncio.Event()

    @app.task(name="wait", max_retry=0)
    async def wait(n: int) -> None:
        await release.wait()
        raise ValueError(f"number {n}")

    await wait.enqueue(1)
    inspector = app.inspector()
    assert await inspector.queues() == ["default"]
    async with app.worker(concurrency=2):
        await until(lambda: _active(inspector))
        (lease,) = await inspector.leases()
        assert (lease.task_type, lease.ours, lease.expired) == ("wait", True, False)
        (server,) = await until(inspector.servers)
        assert server.queues == {"default": 1}
        release.set()
        await until(lambda: _archived(inspector))
    found = [task async for task in inspector.search("default", "archived", error="number 1")]
    assert [task.type for task in found] == ["wait"]
    assert (await inspector.run_all("default", "archived", where=Query(type="wait"))).done == 1
    assert (await inspector.queue("default")).pending == 1


async def _active(inspector: Inspector) -> int:
    return (await inspector.queue("default")).active


async def _archived(inspector: Inspector) -> int:
    return (await inspector.queue("default")).archived


async def test_for_any_redis(url: str) -> None:
    async with Inspector.at(url) as inspector:
        assert await inspector.stats() == []
