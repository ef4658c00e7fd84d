"""A worker that runs durable tasks until it is killed; what its steps do is written to a file."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from veredus import App, current

app = App(os.environ.get("STORM_URL", "redis://127.0.0.1:1"))
EFFECTS = os.environ.get("STORM_EFFECTS", os.devnull)


def note(text: str) -> None:
    descriptor = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


async def effect(run: int, number: int) -> int:
    note(f"step {run} {number} {current().step_key}")
    await asyncio.sleep(0.002)
    return number


@app.task(max_retry=100, retry_delay=0.05)
async def child(run: int, number: int) -> int:
    note(f"child {run} {number} {current().id}")
    return number


@app.task(max_retry=100, retry_delay=0.05, retention=3600)
async def storm(run: int, steps: int, children: int) -> list[int]:
    job = current()
    found = [await job.step(effect, run, number) for number in range(steps)]
    kids = await job.gather("kids", [child.call(run, number) for number in range(children)])
    await job.sleep("nap", 0.2)
    answer = await job.wait_for(f"storm:{run}")
    return [sum(found), sum(kids), answer]


async def main() -> None:
    settings: dict[str, Any] = {"lease": 1.5, "sweep": 0.3, "concurrency": 50, "max_crashes": 0}
    async with app, app.worker(**settings) as worker:
        await worker.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
