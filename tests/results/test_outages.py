"""A result is waited for through a killed worker, a killed server and a frozen one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Handle, ResultGone
from veredus.client import task_listener
from veredus.model.settlement import Complete, Done
from veredus.model.task_status import write_progress
from veredus.store.tasks.results import TaskReport
from veredus.store.tasks.work import Work

SHOP = """
import asyncio, os, sys
from pathlib import Path
from veredus import App, current

app = App(sys.argv[1])

@app.task(name="slow", retry_delay=0)
async def slow(gate: str) -> int:
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    return current().attempt

if __name__ == "__main__":
    app.worker(lease=1.5, sweep=0.3).run()
"""


@pytest.fixture
def shop(tmp_path: Path, server: RealServer) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def start(shop: Path, url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "shop.py", url], cwd=shop)


async def waited(look: Look, handle: Handle[object]) -> bool:
    return bool(await look.client.hexists(look.task(handle.id), "waited"))


async def test_a_worker_killed_while_its_task_is_waited_for(app: App, look: Look, shop: Path, url: str) -> None:
    gate = shop / "gate"
    first, second = start(shop, url), None
    try:
        handle = await app.enqueue("slow", {"gate": str(gate)})
        waiter = asyncio.create_task(handle.result(PATIENCE))
        await until(lambda: waited(look, handle))
        await until(look.active)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        gate.touch()
        second = start(shop, url)
        assert await waiter == 2
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()


async def test_a_server_killed_and_started_again_while_somebody_waits(durable_server: RealServer) -> None:
    app = App(durable_server.url)
    look = Look(redis.asyncio.Redis(unix_socket_path=durable_server.socket))
    go = asyncio.Event()

    @app.task
    async def held() -> int:
        await go.wait()
        return 9

    try:
        async with app.worker(**FAST):
            handle = await held.enqueue()
            waiter = asyncio.create_task(handle.result(60))
            await until(lambda: waited(look, handle))
            durable_server.kill()
            await pause(0.5, proves="an outage does not end the wait")
            durable_server.start()
            await pause(0.5, proves="nor does the server's return")
            assert not waiter.done()
            go.set()
            assert await waiter == 9
    finally:
        await look.client.aclose()
        await app.close()


async def test_a_server_that_forgot_everything_makes_the_result_gone(new_server: Callable[..., RealServer]) -> None:
    server = new_server()
    app = App(server.url)
    look = Look(redis.asyncio.Redis(unix_socket_path=server.socket))
    try:
        handle = await app.enqueue("nobody:runs:it")
        waiter = asyncio.create_task(handle.result(60))
        await until(lambda: waited(look, handle))
        server.kill()
        server.start()
        with pytest.raises(ResultGone):
            await waiter
    finally:
        await look.client.aclose()
        await app.close()


async def _taken(app: App, handle: Handle[Any]) -> tuple[Work, str]:
    """A worker that has the task, and the owner that it is."""
    work = Work(app._client().store.redis, "w", lease_ms=60_000)
    batch = await work.dequeue("default", 1)
    assert [task_id for task_id, _ in batch.rows] == [handle.id]
    return work, batch.owner


@VALKEY_ONLY
async def test_an_end_that_was_told_while_nobody_listened_is_seen_when_listening_again(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_listener, "LOOK", 3600.0)
    handle = await app.enqueue("t")
    work, owner = await _taken(app, handle)
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: look.client.hexists(look.task(handle.id), "waited"))
    subscription = app._client().listener._subscription
    open_now, gate = subscription.open, asyncio.Event()

    async def open_later(on_close: Callable[[], None]) -> None:
        await gate.wait()
        await open_now(on_close)

    subscription.open = open_later  # type: ignore[method-assign]
    await look.client.client_kill_filter(_type="pubsub")
    await until(lambda: not app._client().listener._open.is_set())
    message = (await look.fields(handle.id))["msg"]
    assert await work.settle("default", [Complete(handle.id, owner, "", message, 60, b"7")]) == []
    gate.set()
    assert await waiter == 7


@VALKEY_ONLY
async def test_a_task_that_is_gone_may_still_be_announced_as_done(app: App, look: Look) -> None:
    """The look and the message travel on two connections: the look may come first."""
    handle = await app.enqueue("t")
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: look.client.hexists(look.task(handle.id), "waited"))
    listener, key = app._client().listener, look.task(handle.id)
    listener._deliver(key, TaskReport("gone"))
    await asyncio.sleep(0.01)
    listener._deliver(key, TaskReport("done"))
    assert await waiter is None


@VALKEY_ONLY
async def test_a_step_that_is_seen_again_is_not_told_again(app: App, look: Look) -> None:
    handle = await app.enqueue("t")
    work, owner = await _taken(app, handle)
    steps: list[float] = []

    async def follow() -> None:
        async for step in handle.progress():
            steps.append(step.share)

    following = asyncio.create_task(follow())
    await until(lambda: look.client.hexists(look.task(handle.id), "waited"))
    listener, results = app._client().listener, app._client().store.results
    for share in (0.2, 0.7):
        data = write_progress(share, "", 1.0 + share)
        assert await results.progress("default", handle.id, owner, data)
        await until(lambda share=share: share in steps)
        await listener._look_at_all()
    assert await work.settle("default", [Done(handle.id, owner, "")]) == []
    await asyncio.wait_for(following, PATIENCE)
    assert steps == [0.2, 0.7]


@VALKEY_ONLY
async def test_who_waits_for_nothing_any_more_stops_listening(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_listener, "LOOK", 0.05)
    handle = await app.enqueue("t")
    with pytest.raises(TimeoutError):
        await handle.result(0.2)
    keeper = app._client().listener._keeper
    assert keeper is not None
    await until(keeper.done)

    async def is_silent() -> bool:
        return not await look.client.pubsub_channels("*")

    await until(is_silent)
