"""A result is waited for through a killed worker, a killed server and a frozen one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis.asyncio

from tests.integration.support import FAST, Look
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Handle, ResultGone

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
