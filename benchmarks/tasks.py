"""The app that the benchmarks serve."""

from __future__ import annotations

import asyncio
import os
import time

from veredus import App, current

app = App()


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
