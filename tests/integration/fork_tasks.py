"""Handlers that fork, and whose fork does not end itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from veredus import App, current

app = App("redis://127.0.0.1:1")  # every test points it at its own server


def _fork(body: Callable[[], object]) -> int | None:
    """The exit code of the fork; None in the fork, once it has run this."""
    pid = os.fork()
    if pid == 0:
        body()
        return None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _ways(path: str) -> list[Callable[[], object]]:
    def leave() -> None:
        sys.exit(3)

    def fail() -> None:
        raise ValueError("in the fork")

    def report() -> None:
        try:
            current().progress_sync(0.9, "from the fork")
        except RuntimeError as exc:
            Path(path).write_text(str(exc))
            sys.exit(4)

    return [lambda: None, leave, fail, report]


def come_back(path: str) -> list[int]:
    """The exit codes of forks that return, exit, fail, and report progress."""
    codes = []
    for body in _ways(path):
        code = _fork(body)
        if code is None:
            return []
        codes.append(code)
    return codes


@app.task(name="thread")
def in_thread(path: str) -> list[int]:
    return come_back(path)


@app.task(name="process", run_in="process")
def in_process(path: str) -> list[int]:
    return come_back(path)


@app.task(name="loop")
async def on_loop(path: str) -> list[int]:
    return come_back(path)


@app.task
async def go_on_in_the_loop() -> int:
    """The fork waits, and so comes back to the event loop of its parent."""
    await asyncio.sleep(0.001)  # from now on in an asyncio task of its own
    pid = os.fork()
    if pid == 0:
        while True:
            await asyncio.sleep(0)
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])


@app.task
async def count(n: int) -> int:
    return n
