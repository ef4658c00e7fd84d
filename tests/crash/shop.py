"""The app under test, copied into a folder of its own: handlers that write down when they start and how they end."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import time
from pathlib import Path

from veredus import App, current

app = App()
HERE = Path(__file__).parent
FACTS = os.open(HERE / "facts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str) -> None:
    """One line in one write: whole, or not at all if the process is killed."""
    context = current()
    fact = {
        "what": what,
        "id": context.id,
        "queue": context.queue,
        "attempt": context.attempt,
        "pid": os.getpid(),
        "at": time.time(),
    }
    os.write(FACTS, json.dumps(fact).encode() + b"\n")


def is_open(gate: str) -> bool:
    """A test opens a gate by making the file; `{n}` in the name stands for the attempt."""
    return not gate or (HERE / f"gate.{gate.replace('{n}', str(current().attempt))}").exists()


@app.task(name="job", retry_delay=0.1)
async def job(
    seconds: float = 0.0,
    block: float = 0.0,
    gate: str = "",
    kills: int = 0,
    fails: int = 0,
    result: bool = False,
) -> str | None:
    """Sleep, block the loop, wait for a gate; kill the worker or fail in the first so many attempts."""
    note("start")
    try:
        if current().attempt <= kills:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(seconds)
        if block:
            time.sleep(block)
        while not is_open(gate):
            await asyncio.sleep(0.02)
        if current().attempt <= fails:
            raise RuntimeError("told to fail")
    except BaseException as exc:
        note(type(exc).__name__)
        raise
    note("finish")
    return str(os.getpid()) if result else None


@app.task(name="mark")
async def mark(n: str = "") -> None:
    """Nothing but the fact."""
    note("start")


@app.task(name="threaded", retry_delay=1.0)
def threaded(seconds: float = 0.0, gate: str = "") -> None:
    """The same in a thread, deaf to being cancelled."""
    note("start")
    time.sleep(seconds)
    while not is_open(gate):
        time.sleep(0.02)
    note("finish")


@app.task(name="frozen", retry_delay=0.1)
async def frozen(seconds: float = 0.0) -> None:
    """C code that holds the GIL: no thread of the process moves."""
    note("start")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note("finish")


@app.task(name="stubborn", retry_delay=1.0)
async def stubborn(gate: str = "") -> None:
    """An async handler that ignores being cancelled."""
    note("start")
    while not is_open(gate):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note("ignored")
    note("finish")
