"""Pausing: Asynq's key, honoured and lifted within a second."""

from __future__ import annotations

import asyncio
import time

from tests.integration.support import FAST, Look
from tests.support import golden
from tests.support.waiting import PATIENCE, pause, until
from veredus import App
from veredus.wire import keys
from veredus.worker.roles.pending_watcher import BLOCK


async def test_the_key_is_asynqs(app: App, look: Look) -> None:
    row = next(row for row in golden.load("paused")["redis"]["keys"] if row["key"].endswith(":paused"))
    assert (row["type"], row["ttl_s"]) == ("string", -1)
    assert await app.pause("q1") is True
    key = keys.paused("q1")
    assert key == row["key"]
    value = await look.client.get(key)
    assert abs(int(value) - time.time()) < 5
    assert len(value) == len(golden.raw(row["value"]))
    assert await look.client.ttl(key) == -1
    assert await app.pause("q1") is False
    assert await look.client.get(key) == value
    assert await app.resume("q1") is True
    assert await app.resume("q1") is False
    assert await look.client.exists(key) == 0


async def test_nothing_is_handed_out_while_paused_and_all_of_it_soon_after(app: App, look: Look) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with app.worker(**FAST):
        await note.enqueue(0)
        await until(lambda: ran == [0])
        await app.pause("default")
        for n in range(1, 4):
            await note.enqueue(n)
        await pause(0.5, proves="nothing is handed out while the queue is paused")
        assert ran == [0]
        began = time.monotonic()
        await app.resume("default")
        await until(lambda: ran == [0, 1, 2, 3])
        assert time.monotonic() - began < BLOCK
        assert await asyncio.to_thread(app.pause_sync, "default")
        assert await asyncio.to_thread(app.resume_sync, "default")


async def test_what_runs_goes_on(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def slow() -> int:
        await go.wait()
        return 1

    async with app.worker(**FAST):
        handle = await slow.enqueue()
        await until(look.active)
        await app.pause("default")
        go.set()
        assert await handle.result(PATIENCE) == 1
