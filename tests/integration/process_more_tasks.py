"""More tasks that run in processes of their own: what they send, log, raise, report and start."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from veredus import App, SkipRetry, current


@asynccontextmanager
async def _lifespan(app: App) -> AsyncIterator[str]:
    yield "of the worker"


app = App("redis://127.0.0.1:1", lifespan=_lifespan)  # every test points it at its own server
logger = logging.getLogger("tests.of.processes")


class Declined(Exception):
    """With a constructor of its own, and a field that decides something."""

    def __init__(self, code: int, *, said: str) -> None:
        super().__init__(code, said)
        self.code = code

    def __str__(self) -> str:
        return f"declined with {self.args[0]}: {self.args[1]}"


class Unknowable(Exception):
    """Cannot be made from plain values."""

    def __init__(self) -> None:
        super().__init__(object())

    def __str__(self) -> str:
        return "no way to say"


@app.task(run_in="process")
def follow_up(how: str) -> str:
    """Sends another task, and says where its app is."""
    if how == "sync":
        noted.using(task_id="followed").enqueue_sync(1)
    else:
        asyncio.run(_send())
    return str(app.url)


async def _send() -> None:
    try:
        await noted.using(task_id="followed").enqueue(1)
    finally:
        await app.close()


@app.task(run_in="process")
def follow_up_later() -> float:
    noted.using(delay=timedelta(hours=1), headers={"from": "child"}).enqueue_sync(2)
    return app.clock.time()


@app.task(queue="noted")
async def noted(n: int) -> None: ...


@app.task(run_in="process")
def talk() -> None:
    logging.getLogger("tests.of.processes.quiet").info("not wanted")
    logger.info("at %d%%", 50, extra={"step": 2, "where": Path("here")})
    try:
        raise KeyError("lost")
    except KeyError:
        logger.exception("it went wrong")


@app.task(run_in="process", max_retry=5)
def fail(how: str) -> None:
    if how == "declined":
        raise Declined(402, said="no money")
    if how == "unknowable":
        raise Unknowable
    if how == "missing file":
        Path("/no/such/file").read_text()
    if how == "caused":
        raise RuntimeError("outer") from Declined(1, said="inner")
    if how == "caused by skip":
        raise RuntimeError("outer") from SkipRetry("enough")
    if how == "long":
        raise ValueError("x" * 10_000_000)
    if how == "stop":
        raise StopIteration(3)


@app.task(run_in="process", timeout=100)
def report(path: str) -> None:
    context = current()
    context.progress_sync(0.25, "a quarter")
    asyncio.run(context.progress(0.5, "half"))
    assert context.write_result_sync(b"early") == 5
    Path(path).with_suffix(".told").touch()
    while not Path(path).exists():
        time.sleep(0.01)


@app.task(run_in="process", max_retry=0)
def misuse(what: str) -> None:
    if what == "client":
        _ = current().client
    elif what == "state":
        _ = app.state
    elif what == "share":
        current().progress_sync(2.0)


@app.task(run_in="process", timeout=600, max_retry=0)
def have_children(path: str, memory: int = 0) -> None:
    """Starts processes in every usual way, one of them a grandchild, and waits. Much memory: one of them ends late."""
    sleeper = [sys.executable, "-S", "-c", "import threading; threading.Event().wait()"]
    plain = subprocess.Popen(sleeper)
    large = [*sleeper[:-1], f"memory = b'x' * {memory}; print(flush=True); {sleeper[-1]}"]
    session = subprocess.Popen(large, start_new_session=True, stdout=subprocess.PIPE)
    assert session.stdout is not None
    session.stdout.readline()
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    below = int(shell.stdout.readline())
    forked = multiprocessing.Process(target=threading.Event().wait)
    forked.start()
    pids = [os.getpid(), os.getppid(), plain.pid, session.pid, shell.pid, below, forked.pid]
    Path(path).with_suffix(".new").write_text(json.dumps(pids))
    Path(path).with_suffix(".new").rename(path)
    threading.Event().wait()


@app.task(run_in="process", max_retry=0)
def compute_in_parallel(n: int) -> list[int]:
    with multiprocessing.Pool(2) as pool:
        return pool.map(abs, range(-n, 0))
