"""The demo's tasks: an ordinary app, served by `veredus worker veredus.demo.tasks:app`."""

from __future__ import annotations

import asyncio
import time

from veredus import App, current
from veredus.demo.journal import note

app = App()


@app.task
async def work(number: int) -> None:
    """One of thousands."""
    note("work", number=number)


@app.task
async def on_time(number: int, due: float) -> None:
    """Due at a random millisecond."""
    note("on_time", number=number, late=time.time() - due)


@app.task(max_retry=3, retry_delay=0.5)
async def flaky(number: int) -> None:
    """Fails the first time."""
    note("flaky_attempt", number=number)
    if current().attempt == 1:
        raise RuntimeError("the mail server is busy")
    note("flaky", number=number)


@app.task
async def long_job(number: int, seconds: float) -> None:
    """Long enough to be killed in the middle."""
    note("long_job_started", number=number, attempt=current().attempt)
    if current().attempt == 1:
        await asyncio.sleep(seconds)
    note("long_job", number=number, attempt=current().attempt)
