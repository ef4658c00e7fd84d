"""Tasks that run in processes of their own: these must be importable by a child."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from veredus import App, Depends, RevokeTask, SkipRetry, current
from veredus.errors import PayloadError

app = App("redis://127.0.0.1:1")  # every test points it at its own server


@app.task(run_in="process", max_retry=3)
def compute(n: int, scale: float = 1.0) -> float:
    return n * n * scale


@app.task(run_in="process")
def raw_result() -> bytes:
    return b"\x00\xff"


@app.task(run_in="process")
def no_result() -> None: ...


@app.task(run_in="process")
def behave(how: str) -> None:
    if how == "skip":
        raise SkipRetry("no more")
    if how == "wrapped skip":
        raise ValueError("wrapped") from SkipRetry()
    if how == "revoke":
        raise RevokeTask
    if how == "fail":
        raise ValueError("boom")
    if how == "own payload error":
        raise PayloadError("of another task")
    if how == "exit":
        raise SystemExit("bye")
    if how == "die":
        os._exit(7)


@app.task(run_in="process", timeout=1)
def overrun(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()  # until it is killed


@app.task(queue="cpu")
async def quick() -> None: ...


@app.task(queue="cpu")
def quick_thread() -> None: ...


@app.task(run_in="process", queue="cpu")
def until(path: str) -> None:
    """Runs until the file exists."""
    Path(f"{path}.{current().id}").touch()
    while not Path(path).exists():
        time.sleep(0.01)


@app.task(run_in="process", timeout=100, headers={"h": "1"})
def about_me() -> dict[str, object]:
    context = current()
    return {
        "id": context.id,
        "queue": context.queue,
        "attempt": context.attempt,
        "headers": dict(context.headers),
        "left": context.deadline.timestamp() - time.time(),
        "pid": os.getpid(),
    }


async def _base() -> int:
    return 40


@app.task(run_in="process")
def with_dependency(n: int, base: int = Depends(_base)) -> int:
    return base + n


@app.task(run_in="process")
def with_a_loop_of_its_own(n: int, base: int = Depends(_base)) -> int:
    async def add() -> int:
        return base + n

    return asyncio.run(add())


async def _opened() -> AsyncIterator[Path]:
    """Says in a file beside it how it was closed."""
    path = Path(current().headers["notes"])
    try:
        yield path
    except ValueError as exc:
        path.write_text(f"closed after {exc}")
        raise
    else:
        path.write_text("closed")


@app.task(run_in="process", max_retry=0)
def with_resource(fails: bool, path: Path = Depends(_opened)) -> None:  # noqa: B008
    assert not path.exists(), "closed too early"
    if fails:
        raise ValueError("boom")
