"""Real Go Asynq as a process that does what it is told: the program in `go/`, one JSON object per line."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import until

SOURCE = Path(__file__).parent / "go"


@dataclass(frozen=True)
class Release:
    """A release of Asynq, and how the program is built with it."""

    version: str
    flags: tuple[str, ...] = ()
    headers: bool = True


RELEASES = (
    Release("0.26.0"),
    Release("0.25.1", ("-modfile=asynq025.mod", "-tags=asynq025"), headers=False),
)


def build(folder: Path, release: Release) -> Path:
    return compiled(SOURCE, folder / f"peer-{release.version}", *release.flags)


def compiled(source: Path, program: Path, *flags: str) -> Path:
    """The program in this folder, compiled; Go keeps what it has compiled before, so that the second time is quick."""
    go = shutil.which("go")
    assert go is not None
    done = subprocess.run(
        [go, "build", "-ldflags=-s -w", *flags, "-o", str(program), "."],
        cwd=source,
        env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return program


class GoError(Exception):
    """What Asynq answered instead of doing it."""


class GoPeer:
    """One process with a client, an inspector and, once told so, a server and a scheduler.

    `began` and `ran` have a record of every attempt, `aggregated` of every group that it made one task of.
    """

    def __init__(self, program: Path, url: str) -> None:
        self._command = (str(program), url.replace("unix://", "redis-socket://"))
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.began: list[dict[str, Any]] = []
        self.ran: list[dict[str, Any]] = []
        self.aggregated: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            fact = json.loads(line)
            if "did" in fact:
                waiting = self._answers.pop(fact["seq"])
                if waiting.done():
                    continue
                if "error" in fact:
                    waiting.set_exception(GoError(fact["error"]))
                else:
                    waiting.set_result(fact["answer"])
                continue
            fact["payload"] = base64.b64decode(fact["payload"] or "")
            for name, facts in (("ran", self.ran), ("began", self.began), ("aggregated", self.aggregated)):
                if name in fact:
                    facts.append(fact)

    async def do(self, what: str, **order: Any) -> Any:
        """One order; its answer, or GoError with Asynq's own words."""
        assert self._process is not None
        assert self._process.stdin is not None
        seq = next(self._numbers)
        future = self._answers[seq] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"do": what, "seq": seq, **order}).encode() + b"\n")
        return await asyncio.wait_for(future, 60)

    async def serve(self, *types: str, queue: str = "", queues: dict[str, int] | None = None, **settings: Any) -> None:
        served = {"types": types, "queues": queues or {queue: 1}, "concurrency": 10, "check_ms": 100, **settings}
        await self.do("serve", serve=served)

    async def enqueue(
        self, task_type: str, payload: bytes | dict[str, Any] = b"", *, count: int = 1, **options: Any
    ) -> list[dict[str, Any]]:
        """Tasks as Asynq's client sends them; options by the names of `Options` in client.go."""
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        order = {"type": task_type, "payload": base64.b64encode(raw).decode(), "count": count, "options": options}
        return [_decoded(fact) for fact in await self.do("enqueue", **order)]

    async def send_struct(self, name: str, task_type: str, **options: Any) -> str:
        """One of the Go values in payloads.go, as encoding/json writes it. Returns the task's id."""
        (fact,) = await self.do("send_struct", id=name, type=task_type, options=options)
        return str(fact["id"])

    async def schedule(self, cron: str, task_type: str, payload: bytes = b"", **options: Any) -> str:
        raw = base64.b64encode(payload).decode()
        return str(await self.do("schedule", cron=cron, type=task_type, payload=raw, options=options))

    async def task(self, queue: str, task_id: str) -> dict[str, Any]:
        return _decoded(await self.do("task", queue=queue, id=task_id))

    async def list(self, queue: str, state: str, group: str = "") -> list[dict[str, Any]]:
        return [_decoded(fact) for fact in await self.do("list", queue=queue, state=state, group=group)]

    async def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._ended()

    def freeze(self) -> None:
        """It stands still, and does not know."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> None:
        """Gracefully: it finishes what it runs."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await until(lambda: self._process is None or self._process.returncode is not None, seconds=20)
        finally:
            if self._process.returncode is None:
                self._process.kill()
            await self._ended()

    async def _ended(self) -> None:
        assert self._process is not None
        assert self._reading is not None
        await self._process.wait()
        await self._reading
        self._process = None
        for waiting in self._answers.values():
            waiting.cancel()
        self._answers.clear()


def _decoded(fact: dict[str, Any]) -> dict[str, Any]:
    """Go writes bytes as base64, and nil for none."""
    decoded = {name: base64.b64decode(fact[name] or "") for name in ("payload", "result")}
    return {**fact, **decoded, "headers": fact["headers"] or {}}


@asynccontextmanager
async def go_peer(program: Path, url: str) -> AsyncIterator[GoPeer]:
    peer = GoPeer(program, url)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()
