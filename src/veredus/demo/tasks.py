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


@app.action("deliver_letters", deadline=60)
async def deliver_letters(letters: int) -> dict[str, int]:
    """A client's request: every letter is a numbered message; one more precedes and one follows the response."""
    client = current().client
    for number in range(1, letters + 1):
        await client.notify({"letter": number}, type="letter")
        await asyncio.sleep(0.01)
    await client.notify(type="last call", when="before")
    await client.notify(type="receipt", when="after")
    return {"delivered": letters}
