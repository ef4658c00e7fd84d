"""The app that the benchmarks serve."""

from __future__ import annotations

import os
import time

from veredus import App

app = App()


@app.task(name="noop", queue="bench")
async def noop(data: str) -> None:
    """Nothing: what is measured is everything around it."""


@app.task(name="stamp", queue="bench")
async def stamp(due: float) -> None:
    """Append how late it began to the file in BENCH_STAMPS."""
    late = time.time() - due
    with open(os.environ["BENCH_STAMPS"], "ab", buffering=0) as stamps:
        stamps.write(f"{late}\n".encode())
