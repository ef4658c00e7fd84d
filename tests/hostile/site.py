"""The app of the gateway that is attacked: it answers, and tells how late its event loop is."""

from __future__ import annotations

import asyncio
import os
import time

from veredus import App

app = App(os.environ.get("VEREDUS_REDIS_URL", "redis://127.0.0.1:1/0"), queue="hostile")
EVERY = 0.005
_late: list[float] = []
_sampling: list[asyncio.Task[None]] = []


async def _sample() -> None:
    while True:
        due = time.perf_counter() + EVERY
        await asyncio.sleep(EVERY)
        _late.append(max(0.0, time.perf_counter() - due))


@app.action("lateness", where="gateway")
async def lateness() -> list[float]:
    """Milliseconds that the loop was late since the last question: median, p99, p99.9, most."""
    if not _sampling:
        _sampling.append(asyncio.create_task(_sample()))
    found = sorted(_late) or [0.0]
    _late.clear()
    return [round(found[min(len(found) - 1, int(len(found) * share))] * 1000, 2) for share in (0.5, 0.99, 0.999, 1)]


@app.action("echo", where="gateway")
async def echo(text: str) -> str:
    return text
