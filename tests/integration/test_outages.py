"""The server goes away and comes back: what was earned is written, nothing runs twice, nothing is enqueued twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis.asyncio

from tests.integration.support import FAST, Look
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, forever, until
from veredus import App, AuthError, ConnectionLost
from veredus.wire import keys


def _look(server: RealServer) -> Look:
    return Look(redis.asyncio.Redis(unix_socket_path=server.socket))


@pytest.mark.parametrize("outcome", ["done", "result", "retry", "archive"])
async def test_settlements_refused_while_the_server_is_down_are_written_later(
    durable_server: RealServer, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(durable_server.url)
    go, runs = asyncio.Event(), []

    @app.task(max_retry=0 if outcome == "archive" else 5, retry_delay=1000)
    async def work() -> str | None:
        runs.append(1)
        await go.wait()
        if outcome in ("retry", "archive"):
            raise ValueError("boom")
        return "ok" if outcome == "result" else None

    look = _look(durable_server)
    worker = app.worker(lease=6, sweep=0.3)
    async with worker:
        handle = await work.enqueue()
        await until(lambda: runs)
        durable_server.kill()
        go.set()
        await until(lambda: not worker._execution.syncer.idle)
        durable_server.start()
        state = {"done": "gone", "result": "completed", "retry": "retry", "archive": "archived"}[outcome]
        await look.ends(handle.id, state)
        await until(lambda: worker._execution.syncer.idle and not worker._in_flight.held())
        await until(lambda: "available again" in caplog.text)
    assert len(runs) == 1
    assert await look.active() == []
    assert await look.counters() == (1, int(outcome in ("retry", "archive")))
    outage = [record.getMessage() for record in caplog.records if "Redis is" in record.getMessage()]
    told = ["available again" in text for text in outage]
    assert all(one != other for one, other in pairwise(told)), "an outage is told when it begins and when it ends"
    assert any("not available" in text for text in outage)
    assert any("available again" in text for text in outage)
    await look.client.aclose()
    await app.close()


async def test_a_worker_goes_on_after_a_restart_also_with_delays_and_cancels(durable_server: RealServer) -> None:
    app = App(durable_server.url, patience=20)
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    @app.task
    async def hang() -> None:
        await forever()

    look = _look(durable_server)
    async with app.worker(**FAST):
        await note.enqueue(1)
        await note.using(delay=1).enqueue(2)
        await until(lambda: ran == [1])
        durable_server.kill()
        durable_server.start()
        await note.enqueue(3)
        await note.using(delay=0.5).enqueue(4)
        await until(lambda: sorted(ran) == [1, 2, 3, 4])
        handle = await hang.enqueue()
        await until(look.active)

        async def cancelled() -> bool:
            await look.client.publish(keys.CANCEL_CHANNEL, handle.id)
            return await look.state(handle.id) == "retry"

        await until(cancelled)
    await look.client.aclose()
    await app.close()


@pytest.mark.parametrize("delay", [None, 3600], ids=["now", "later"])
async def test_enqueue_survives_a_restart_and_does_not_enqueue_twice(
    durable_server: RealServer, delay: float | None
) -> None:
    app = App(durable_server.url, patience=20)
    sent: list[Any] = []
    look = _look(durable_server)

    async def produce() -> None:
        for n in range(300):
            sent.append(await app.enqueue("t", {"n": n}, delay=delay))

    producing = asyncio.create_task(produce())
    for _ in range(2):
        target = len(sent) + 20
        await until(lambda: len(sent) > target or producing.done())  # noqa: B023 - awaited at once
        durable_server.kill()
        durable_server.start()
    await asyncio.wait_for(producing, 60)
    stored = await look.pending() if delay is None else list(await look.scores("scheduled"))
    assert sorted(stored) == sorted(handle.id for handle in sent)
    assert all(handle.created for handle in sent)
    await look.client.aclose()
    await app.close()


async def test_an_unreachable_server_is_a_clear_error_in_bounded_time() -> None:
    port = free_port()
    app = App(f"redis://127.0.0.1:{port}/0", patience=0.5, timeout=1)
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await app.enqueue("t")
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        async with app:
            pass
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await asyncio.to_thread(app.enqueue_sync, "t")
    await app.close()
    app.close_sync()


async def test_a_server_that_does_not_answer_is_a_clear_error_in_bounded_time(
    new_server: Callable[..., RealServer],
) -> None:
    server = new_server()
    app = App(server.url, patience=1, timeout=1)
    await app.enqueue("t")
    server.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            await app.enqueue("t")
        assert time.monotonic() - began < PATIENCE
    finally:
        server.thaw()
    await app.close()


async def test_a_wrong_password_is_told_at_once(new_server: Callable[..., RealServer]) -> None:
    server = new_server("--requirepass", "right", port=free_port())
    where = f"127.0.0.1:{server.port}/0"
    for url in (f"redis://:wrong@{where}", f"redis://{where}"):
        app = App(url, patience=2 * PATIENCE)
        began = time.monotonic()
        with pytest.raises(AuthError):
            await app.enqueue("t")
        assert time.monotonic() - began < PATIENCE, "no patience for what patience cannot mend"
        await app.close()
    async with App(f"redis://:right@{where}") as app:
        assert (await app.enqueue("t")).created


async def test_the_health_check_hears_of_good_and_bad(durable_server: RealServer) -> None:
    app = App(durable_server.url, timeout=1)
    app.task(name="x")(lambda: None)
    heard: list[BaseException | None] = []

    async def check(error: BaseException | None) -> None:
        heard.append(error)
        raise SystemExit("a health check must not end the worker")

    async with app.worker(**FAST, health_check=check, health_check_interval=0.1):
        await until(lambda: len(heard) > 1)
        assert heard == [None] * len(heard)
        durable_server.kill()
        await until(lambda: isinstance(heard[-1], ConnectionLost))
        durable_server.start()
        await until(lambda: heard[-1] is None)
    await app.close()
