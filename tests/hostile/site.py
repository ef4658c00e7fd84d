"""The app of the gateway that is attacked: it answers, and tells how late its event loop is."""

from __future__ import annotations

import asyncio
import os
import time

from veredus import App

app = App(os.environ.get("VEREDUS_REDIS_URL", "redis://127.0.0.1:1/0"), queue="hostile")
EVERY = 0.005
_late: list[tuple[float, float]] = []
_sampling: list[asyncio.Task[None]] = []


def _starved(file: int) -> float:
    """Seconds for which this thread was ready to run and other work had all processors."""
    return int(os.pread(file, 100, 0).split()[1]) / 1e9


async def _sample() -> None:
    file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    while True:
        due, used, starved = time.perf_counter() + EVERY, time.thread_time(), _starved(file)
        await asyncio.sleep(EVERY)
        late = time.perf_counter() - due - (_starved(file) - starved)
        _late.append((max(0.0, late), time.thread_time() - used))


def _shares(found: list[float]) -> list[float]:
    found = sorted(found) or [0.0]
    return [round(found[min(len(found) - 1, int(len(found) * share))] * 1000, 2) for share in (0.99, 0.999, 1)]


@app.action("lateness", where="gateway")
async def lateness() -> list[list[float]]:
    """Since the last question, in milliseconds: how late the loop was, without the time for which it had no processor,
    and how long it worked between two looks of the sampler, both as p99, p99.9 and most."""
    if not _sampling:
        _sampling.append(asyncio.create_task(_sample()))
    if _sampling[0].done():
        _sampling[0].result()  # nothing is measured any more: say why
    taken = _late.copy()
    _late.clear()
    return [_shares([late for late, _ in taken]), _shares([worked for _, worked in taken])]


@app.action("echo", where="gateway")
async def echo(text: str) -> str:
    return text
