"""The app that the benchmarks serve."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from veredus import App, current
from veredus.worker.type_counts import TypeCounts

app = App()

if os.environ.get("BENCH_STATISTICS") == "off":
    setattr(TypeCounts, "note", lambda self, *attempt: None)  # noqa: B010  (what the statistics cost is measured beside it)


@app.task(name="noop", queue="bench")
async def noop(data: str) -> None:
    """Nothing: what is measured is everything around it."""


def note(value: float) -> None:
    """Append one line to the file in BENCH_STAMPS."""
    with open(os.environ["BENCH_STAMPS"], "ab", buffering=0) as stamps:
        stamps.write(f"{value:.6f}\n".encode())


@app.task(name="stamp", queue="bench")
async def stamp(due: float) -> None:
    """How late it began."""
    note(time.time() - due)


async def same(value: Any) -> Any:
    """A step that does nothing."""
    return value


@app.task(name="steps", queue="bench")
async def steps(count: int) -> None:
    note(time.time())
    job = current()
    for number in range(count):
        await job.step(same, number)
    note(time.time())


@app.task(name="waits", queue="bench")
async def waits(number: int, kept: str = "") -> None:
    """How late it has the event, whose payload is the time at which it was emitted."""
    job = current()
    if kept:
        await job.step(same, kept, name="first")
        await job.step(same, kept, name="second")
    emitted = await job.wait_for(f"bench:{number}")
    note(time.time() - emitted)


@app.task(name="naps", queue="bench")
async def naps(seconds: float) -> None:
    """How long after the end of its sleep it goes on. The end is what Redis has stored."""
    job = current()
    await job.sleep("nap", seconds)
    assert job.durable is not None
    note(time.time() - int(job.durable.fields["z:nap"]) / 1000)


@app.task(name="fan_out", queue="bench", retention=60, timeout=600)
async def fan_out(count: int) -> int:
    return len(await current().gather("children", [noop.call("") for _ in range(count)]))


@app.task(name="hold", queue="bench")
async def hold(data: str) -> None:
    """Runs until the worker ends."""
    await asyncio.Event().wait()


@app.task(name="hang", queue="bench")
async def hang(due: float) -> None:
    """When it began; the first attempt never ends."""
    note(time.time())
    if current().attempt == 1:
        await asyncio.Event().wait()
