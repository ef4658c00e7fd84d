"""One command line run in this process, and a server full of tasks in every state for it to look at."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.support.processes import end
from tests.support.servers import RealServer, raw
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.cli.main import main
from veredus.inspector.inspector import Inspector

T = TypeVar("T")
MOMENTARY = ("timestamp", "latency_ms", "next_process_at", "seconds_left", "memory_usage")
"""What differs between two looks."""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refused(self, code: int, *parts: str) -> None:
        """One line on stderr that says all this, and nothing on stdout."""
        assert self.code == code, self
        assert self.out == ""
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("veredus: ")
        for part in parts:
            assert part in self.err


class Command:
    """`veredus("task", "list", ...)` is `veredus task list ...` with nobody at the keyboard."""

    def __init__(self, server: RealServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.redis = server.url, server.client()
        self._capsys = capsys

    def __call__(self, *args: str) -> Ended:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(list(args))
        written = self._capsys.readouterr()
        first, _, rest = written.err.partition("\n")
        return Ended(int(exit.value.code or 0), written.out, rest if first.startswith("server: ") else written.err)

    def do(self, line: str) -> Ended:
        """The same, from a line as people type it."""
        return self(*shlex.split(line))

    def look(self, ask: Callable[[Inspector], Awaitable[T]]) -> T:
        """What the inspector itself says."""

        async def run() -> T:
            async with Inspector.at(self.url) as inspector:
                return await ask(inspector)

        return asyncio.run(run())

    def everything(self) -> dict[bytes, bytes | None]:
        """Every key with its content."""
        return {key: self.redis.dump(key) for key in sorted(raw(name) for name in self.redis.keys("*"))}

    def states(self, queue: str = "mail") -> dict[str, int]:
        """How many tasks are in which state, without those that have none."""
        info = self.look(lambda inspector: inspector.queue(queue))
        names = ("active", "pending", "aggregating", "scheduled", "retry", "archived", "completed")
        return {name: getattr(info, name) for name in names if getattr(info, name)}


class Terminal:
    """`veredus` with somebody at the keyboard."""

    def __init__(self, shop: Any, line: str) -> None:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "veredus", *shlex.split(line)]
        environment = shop.environment(TERM="xterm")
        self._process = subprocess.Popen(
            command,
            cwd=shop.folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._end = ours
        self.shown = ""

    def is_waiting(self) -> bool:
        """Whether the command sleeps, as one does that waits for a key."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def read_until(self, text: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < give_up, self.shown
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._end, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended: {self.shown}") from None

    def write(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def ended(self) -> int:
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        end(self._process)
        os.close(self._end)


def fill(url: str) -> None:
    """The queue mail with tasks in every state but active, and the queue other with one."""

    async def run() -> None:
        app = App(url)

        @app.task(name="email:fail", queue="mail", max_retry=3, retry_delay=lambda *_: 3600)
        async def fail(n: int) -> None:
            raise ValueError(f"timeout of [host] {n}\nsecond line")

        @app.task(name="email:done", queue="mail", retention=3600)
        async def done(n: int) -> int:
            return n * 2

        async with app:
            first = await fail.using(task_id="failed").enqueue(1)
            await fail.using(task_id="dead", max_retry=0).enqueue(2)
            await done.using(task_id="done").enqueue(21)
            async with app.worker(queues=["mail"]):
                inspector = app.inspector()

                async def processed() -> bool:
                    return (await inspector.queue("mail")).processed == 3

                await until(processed)
            assert first.id == "failed"
            await app.enqueue("email:send", {"n": 1}, queue="mail", task_id="first")
            await app.enqueue("email:[bold]x[/bold]", b"\x1b[31mred [/nothing]", queue="mail", task_id="[b]odd")
            at = datetime(2040, 1, 1, tzinfo=UTC)
            await app.enqueue("email:send", {"n": 3}, queue="mail", task_id="later", at=at, headers={"trace": "abc"})
            await app.enqueue("sms:send", {"n": 4}, queue="mail", task_id="later-sms", at=at)
            await app.enqueue("email:send", {"n": 5}, queue="mail", task_id="member", group="digest")
            await app.enqueue("other", None, queue="other", task_id="alone")

    asyncio.run(run())


def lasting(shown: Any) -> Any:
    """Without what differs between two looks, but with its names."""
    if isinstance(shown, list):
        return [lasting(one) for one in shown]
    if isinstance(shown, dict):
        return {name: "..." if name in MOMENTARY else lasting(value) for name, value in shown.items()}
    return shown
