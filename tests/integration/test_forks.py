"""Forks: connections belong to the process that opened them, and a fork of a worker is not a second worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fork_tasks
from tests.integration.support import FAST, Look
from tests.support.forks import in_a_fork
from tests.support.processes import running, veredus
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE
from veredus import App
from veredus.errors import ConnectionLost
from veredus.store.connection.redis import SingleServer
from veredus.store.store import connect

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    fork_tasks.app.use(url)
    yield fork_tasks.app
    await fork_tasks.app.close()


async def test_a_connection_is_closed_in_a_fork_and_goes_on_in_its_parent(url: str) -> None:
    redis = connect(url, name="parent")
    assert isinstance(redis, SingleServer)
    connection = await redis.open("")
    waiting = connection.call("BLPOP", "list", 0, timeout=PATIENCE)

    def use() -> list[str]:
        said = [str(connection.alive)]
        try:
            connection.call("SET", "from", "fork")
        except ConnectionLost as exc:
            said.append(str(exc))
        connection.close()
        return said

    try:
        alive, error = await in_a_fork(use)
        assert alive == "False"
        assert f"belongs to process {os.getpid()}" in error
        assert connection.alive
        await redis.command("LPUSH", "list", "x", key="list")
        assert await waiting == [b"list", b"x"]
        assert await connection.call("GET", "from") is None
    finally:
        connection.close()
        await redis.close()


async def test_a_server_that_a_fork_uses_gets_a_connection_of_its_own(url: str) -> None:
    redis = connect(url, name="both")
    mine = await redis.command("CLIENT", "ID", key="")
    replies = asyncio.gather(*[redis.command("ECHO", f"{n}", key="") for n in range(200)])
    await asyncio.sleep(0)  # they are under way

    async def echo() -> list[Any]:
        try:
            said = await asyncio.gather(*[redis.command("ECHO", f"fork {n}", key="") for n in range(50)])
            return [await redis.command("CLIENT", "ID", key=""), [one.decode() for one in said]]
        finally:
            await redis.close()

    try:
        other, said = await in_a_fork(lambda: asyncio.run(echo()))
        assert said == [f"fork {n}" for n in range(50)]
        assert other != mine
        assert await replies == [f"{n}".encode() for n in range(200)]
        assert await redis.command("CLIENT", "ID", key="") == mine
    finally:
        await redis.close()


async def test_a_store_with_writes_under_way_works_in_a_fork(url: str) -> None:
    app = App(url)
    sending = asyncio.gather(*[app.enqueue("t", {"n": n}) for n in range(300)])
    await asyncio.sleep(0)
    client = app._client()

    async def send() -> bool:
        handle = await client.enqueue(app.call("t", {"n": -1}))
        await client.close()
        return handle.created

    try:
        assert await in_a_fork(lambda: asyncio.run(send())) is True
        assert len(await sending) == 300
        assert (await app.inspector().queue("default")).pending == 301
    finally:
        await app.close()


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_a_fork_that_comes_back_from_its_handler_ends_and_the_handler_goes_on(
    app: App, look: Look, tmp_path: Path, where: str
) -> None:
    """It is no second worker, which would answer for the first and read its replies."""
    file = tmp_path / "error"
    async with app.worker(**FAST, process_pool=1):
        handle = await app.enqueue(where, {"path": str(file)}, max_retry=0)
        await look.ends(handle.id, "completed")
        counted = [await fork_tasks.count.enqueue(n) for n in range(20)]
        assert [await one.result() for one in counted] == [*range(20)]
        assert await handle.result() == [0, 3, 1, 4]
    assert "not in a fork of it" in file.read_text()
    assert await look.counters() == (21, 0)


async def test_a_fork_that_waits_in_the_event_loop_of_its_parent_ends(app: App, url: str, look: Look) -> None:
    handle = await fork_tasks.go_on_in_the_loop.using(max_retry=0).enqueue()
    counted = [await fork_tasks.count.enqueue(n) for n in range(5)]
    command = veredus("worker", "tests.integration.fork_tasks:app", "--redis", url, "--burst")
    with running(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE) as worker:
        _, said = await asyncio.to_thread(worker.communicate, timeout=PATIENCE)
    assert worker.returncode == 0, said
    assert said.count("a fork returned to the event loop of its parent and is ended") == 1
    assert await handle.result() == 1
    assert [await one.result() for one in counted] == [*range(5)]
