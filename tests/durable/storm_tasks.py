"""A worker that runs durable tasks until it is killed. What it does is written to a file, line by line, in the order in
which it happens on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from veredus import App, current

STEPS, CHILDREN, LEASE = 5, 10, float(os.environ.get("STORM_LEASE", "2"))
app = App(os.environ.get("STORM_URL", "redis://127.0.0.1:1"))
EFFECTS = os.open(os.environ.get("STORM_EFFECTS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, run: int, number: int, key: str = "-") -> None:
    """One line in one write: whole, or not at all if the process is killed."""
    os.write(EFFECTS, f"{what} {run} {number} {os.getpid()} {time.time():.6f} {key}\n".encode())


async def effect(run: int, number: int) -> int:
    note("step", run, number, current().step_key)
    await asyncio.sleep(0.002)
    return number


@app.task(name="storm:child", retry_delay=0.05)
async def child(run: int, number: int, result: str) -> int:
    note("child", run, number, current().id)
    return int(result)


@app.task(name="storm", max_retry=100, retry_delay=0.05, retention=3600)
async def storm(run: int, child_type: str, child_queue: str) -> list[int]:
    job = current()
    found = []
    for number in range(STEPS):
        found.append(await job.step(effect, run, number))
        note("kept", run, number)
    calls = [
        app.call(child_type, {"run": run, "number": n, "result": str(n)}, queue=child_queue, max_retry=100)
        for n in range(CHILDREN)
    ]
    kids = await job.gather("kids", calls)
    await job.sleep("nap", 0.2)
    answer = await job.wait_for(f"storm:{run}")
    note("end", run, 0)
    return [sum(found), sum(kids), answer]


async def main() -> None:
    settings: dict[str, Any] = {"lease": LEASE, "sweep": 0.3, "concurrency": 50, "max_crashes": 0}
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with app, app.worker(os.environ["STORM_QUEUES"].split(","), **settings):
        await told.wait()


if __name__ == "__main__":
    asyncio.run(main())
