"""A graceful stop: running handlers finish, the rest goes back to the front, nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App, WorkerStopped
from veredus.wire import keys


async def test_running_handlers_finish(app: App, look: Look) -> None:
    release, finished = asyncio.Event(), []

    @app.task
    async def on_loop() -> None:
        await release.wait()
        finished.append("loop")

    @app.task
    def in_thread() -> None:
        time.sleep(0.3)
        finished.append("thread")

    worker = app.worker(**FAST)
    async with worker:
        await on_loop.enqueue()
        await in_thread.enqueue()
        await until(lambda: worker._hands.busy == 2)
        asyncio.get_running_loop().call_later(0.2, release.set)
    assert sorted(finished) == ["loop", "thread"]
    assert await look.counters() == (2, 0)
    assert await look.active() == []


@pytest.mark.parametrize("count", [5, 450], ids=["few", "more than one batch"])
async def test_what_does_not_finish_goes_back_to_the_front_in_order(app: App, look: Look, count: int) -> None:
    @app.task
    async def hang(n: int) -> None:
        await asyncio.Event().wait()

    handles = await app.enqueue_many(hang.call(n) for n in range(count))
    settings = {**FAST, "shutdown_timeout": 0.1, "lease": 10}
    async with app.worker(**settings, concurrency=count):
        await until(lambda: _all_active(look, count))
        later = [await hang.enqueue(1000 + n) for n in range(3)]
    assert await look.pending() == [handle.id for handle in [*handles, *later]]
    assert await look.active() == []
    assert await look.scores("lease") == {}
    assert await look.counters() == (0, 0)
    message = await look.message(handles[0].id)
    assert (message.retried, message.error_msg) == (0, "")


async def _all_active(look: Look, count: int) -> bool:
    return bool(await look.client.llen(keys.active("default")) == count)


async def test_a_thread_that_cannot_be_stopped_is_given_back_and_its_late_end_is_void(app: App, look: Look) -> None:
    release, ended = threading.Event(), threading.Event()

    @app.task
    def stubborn() -> str:
        release.wait(20)
        ended.set()
        return "late"

    async with app.worker(**{**FAST, "shutdown_timeout": 0.1}):
        handle = await stubborn.enqueue()
        await until(look.active)
    assert await look.pending() == [handle.id]
    release.set()
    assert await asyncio.to_thread(ended.wait, 5)
    await asyncio.sleep(0.05)
    assert await look.state(handle.id) == "pending"


async def test_a_stop_asked_for_twice_gives_back_at_once(app: App, look: Look) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    worker = app.worker(**{**FAST, "shutdown_timeout": 60})
    await worker.start()
    handle = await hang.enqueue()
    await until(look.active)
    began = time.monotonic()
    worker.request_stop()
    stopping = asyncio.create_task(worker.stop())
    worker.request_stop()
    await asyncio.wait_for(stopping, 15)
    assert time.monotonic() - began < 15
    assert await look.pending() == [handle.id]


async def test_the_records_of_a_stopped_worker_are_gone(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    async with app.worker(**FAST):
        await until(lambda: look.client.exists(keys.SERVERS))
        assert await look.client.keys("asynq:servers:*")
    assert await look.client.keys("asynq:servers*") == []
    assert await look.client.keys("asynq:workers*") == []


async def test_a_worker_starts_once_and_another_can_follow(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    worker = app.worker(**FAST)
    async with worker:
        with pytest.raises(WorkerStopped, match="started before"):
            await worker.start()
    with pytest.raises(WorkerStopped):
        await worker.start()
    await worker.stop()  # nothing left to do
    async with app.worker(**FAST):
        handle = await app.enqueue("x")
        await look.ends(handle.id, "gone")


async def test_a_worker_that_is_quiet_takes_nothing_new_but_finishes_its_work(app: App, look: Look) -> None:
    release = asyncio.Event()

    @app.task
    async def wait() -> None:
        await release.wait()

    worker = app.worker(**FAST)
    async with worker:
        running = await wait.enqueue()
        await until(look.active)
        worker.quiet()
        waiting = await wait.enqueue()
        release.set()
        await look.ends(running.id, "gone")
        await asyncio.sleep(0.3)
        assert await look.pending() == [waiting.id]


async def test_a_burst_ends_when_everything_is_done_also_what_was_due(app: App, look: Look) -> None:
    done: list[int] = []

    @app.task(queue="a", retry_delay=0)
    async def first(n: int) -> None:
        done.append(n)
        if n < 3:
            await second.enqueue(n)

    @app.task(queue="b")
    def second(n: int) -> None:
        done.append(100 + n)

    for n in range(5):
        await first.enqueue(n)
    await first.using(delay=0.01).enqueue(7)
    await asyncio.sleep(0.05)
    worker = app.worker(**FAST, burst=True)
    async with worker:
        await asyncio.wait_for(worker.wait(), 20)
    assert sorted(done) == [0, 1, 2, 3, 4, 7, 100, 101, 102]


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_stop_while_redis_is_away_does_not_hang(new_server: Callable[..., RealServer], how: str) -> None:
    server = new_server()
    app = App(server.url, timeout=1)
    hold = asyncio.Event()

    @app.task
    async def wait() -> None:
        await hold.wait()

    worker = app.worker(**{**FAST, "shutdown_timeout": 0.5})
    await worker.start()
    await wait.enqueue()
    await until(lambda: worker._hands.busy == 1)
    server.kill() if how == "killed" else server.freeze()
    try:
        began = time.monotonic()
        await asyncio.wait_for(worker.stop(), 45)
        assert time.monotonic() - began < 45
        await app.close()
    finally:
        if how == "frozen":
            server.thaw()


async def test_an_error_in_the_lifespan_stops_the_start(app: App, look: Look) -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def broken(app: Any) -> Any:
        raise RuntimeError("no database")
        yield

    app.lifespan = broken
    app.task(name="x")(lambda: None)
    handle = await app.enqueue("x")
    with pytest.raises(RuntimeError, match="no database"):
        await app.worker(**FAST).start()
    assert await look.pending() == [handle.id]

    async def left() -> bool:
        return not [row for row in await look.client.client_list() if row["name"].startswith("veredus-worker")]

    await until(left, what="the end of its connection")
