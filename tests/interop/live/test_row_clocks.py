"""Rows of docs/asynq-differences.md beside live Go whose clock is not that of the Redis server."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.crash.faults import ClockedServer
from tests.integration.support import FAST, Look
from tests.interop.live.compile import SEMAPHORE
from tests.interop.live.peer import compiled, go_peer
from tests.interop.live.python_side import PythonSide
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Job

AHEAD = 3600
"""Seconds by which the server's clock is ahead of Go's, and of ours."""


@pytest.fixture
def ahead(go: None, tmp_path: Path) -> Iterator[ClockedServer]:
    server = ClockedServer(tmp_path)
    try:
        if not server.has_clock:
            pytest.skip("no C compiler: the clock of a server cannot be set")
        server.set_clock(AHEAD)
        yield server
    finally:
        server.close()


@pytest.fixture
async def client(ahead: ClockedServer) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis(port=ahead.port) as client:
        yield client


async def test_each_side_forwards_by_its_own_clock(program: Path, ahead: ClockedServer, client: Any) -> None:
    """server-clock: Go's process goes by its own, our scripts by the server's."""
    side, look = PythonSide(ahead.url), Look(client, "shared")
    async with side.app as app, go_peer(program, ahead.url) as peer:
        (theirs,) = await peer.enqueue("py:work", queue="shared", process_in_ms=1_800_000)
        assert 1790 < (await look.scores("scheduled"))[theirs["id"]] - time.time() <= 1800
        async with app.worker("shared", **FAST):
            await look.ends(theirs["id"], "gone")  # by the server's clock it was due half an hour ago
        ours = await app.enqueue("go:work", {}, queue="for-go", delay=1)
        score = (await look.of("for-go").scores("scheduled"))[ours.id]
        assert AHEAD - 5 < score - time.time() <= AHEAD + 2
        await peer.serve("go:work", queue="for-go")
        await pause(2.5, proves="by Go's clock it is due in an hour")
        assert await look.of("for-go").state(ours.id) == "scheduled"
        ahead.set_clock(0)
        async with app.worker("shared", **FAST):
            await app.inspector().reschedule("for-go", ours.id, delay=0.5)
            await until(lambda: peer.ran)


class Holders:
    """A Go server whose tasks take tokens of the semaphore "s", of which there are two, and keep them."""

    def __init__(self, program: Path, url: str) -> None:
        self._command = (program, url, "s")

    async def __aenter__(self) -> Holders:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    async def take(self) -> tuple[str, bool]:
        """A task: its id, and whether it has got a token."""
        task_id, taken = await self._told("take")
        return task_id, taken == "true"

    async def end(self, task_id: str) -> None:
        assert await self._told(f"end {task_id}") == [task_id, "released"]

    async def _told(self, line: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.readline()).decode().split()

    async def __aexit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await self._process.wait() == 0


async def test_the_tokens_of_asynqs_semaphore_count_for_both(
    go: None, ahead: ClockedServer, client: Any, tmp_path: Path
) -> None:
    """semaphore-clock: a token lapses by the clock of who asks, which is the server's for us."""
    app = App(ahead.url)
    got: dict[str, bool] = {}
    may_end = asyncio.Event()

    @app.handler("py:*", queue="ours")
    async def take(job: Job) -> None:
        tokens = app.semaphore("s", 2)
        got[job.id] = taken = await tokens.acquire()
        if job.type == "py:hold":
            await may_end.wait()
        if taken:
            await tokens.release()

    async def takes() -> bool:
        task_id = (await app.enqueue("py:take", queue="ours")).id
        await until(lambda: task_id in got)
        return got[task_id]

    async def holders() -> set[str]:
        return {name.decode() for name in await client.zrange("asynq:sema:s", 0, -1)}

    program = compiled(SEMAPHORE, tmp_path / "semaphore")
    ahead.set_clock(0)
    async with app, app.worker("ours", **FAST), Holders(program, ahead.url) as theirs:
        ours = await app.enqueue("py:hold", queue="ours")
        await until(lambda: got.get(ours.id))
        one, taken = await theirs.take()
        assert taken
        assert await holders() == {ours.id, one}
        assert not (await theirs.take())[1]
        assert not await takes()
        await theirs.end(one)
        assert await takes()
        other, taken = await theirs.take()
        assert taken
        ahead.set_clock(AHEAD)  # all tokens are over by the server's clock, none by Go's
        assert not (await theirs.take())[1]
        assert await takes()
        assert await holders() == set()
        ahead.set_clock(0)
        may_end.set()
        await client.zadd("asynq:sema:s", {other: time.time() + 600})
        await theirs.end(other)
