"""Real Go Asynq as a process that does what it is told: the program in `go/`, one JSON object per line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import until

SOURCE = Path(__file__).parent / "go"


def build(folder: Path) -> Path:
    """The program, compiled; Go keeps what it has compiled before, so that the second time is quick."""
    program = folder / "peer"
    go = shutil.which("go")
    assert go is not None
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(
        [go, "build", "-o", str(program), "."], cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return program


class GoProcess:
    """One process with a client and, once told so, a server. `ran` has a record of every task that it ran."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.ran: list[dict[str, Any]] = []

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            fact = json.loads(line)
            if "ran" in fact:
                self.ran.append(fact)
            else:
                self._answers.put_nowait(fact)

    async def do(self, what: str, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **order}).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), 60)
        assert answer == {"did": what}

    async def serve(self, *types: str, queue: str, concurrency: int = 10, sleep_ms: int = 0) -> None:
        await self.do("serve", types=types, queues={queue: 1}, concurrency=concurrency, sleep_ms=sleep_ms)

    async def enqueue(self, task_type: str, count: int, *, queue: str, max_retry: int = 25) -> None:
        await self.do("enqueue", type=task_type, count=count, queue=queue, max_retry=max_retry)


@asynccontextmanager
async def go_process(program: Path, url: str) -> AsyncIterator[GoProcess]:
    """Stopped gracefully at the end: it finishes what it runs."""
    process = await asyncio.create_subprocess_exec(
        str(program),
        url.replace("unix://", "redis-socket://"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=1 << 24,
    )
    peer = GoProcess(process)
    reading = asyncio.create_task(peer.read())
    try:
        yield peer
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await until(lambda: process.returncode is not None, seconds=20)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading
