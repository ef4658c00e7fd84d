"""What the Veredus workers of the mixed fleet serve: the handlers of the Go program, and a file with what they did."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from tests.interop.live.python_side import behave
from veredus import App, Call, Job, Limit

app = App()
FACTS = os.open(os.environ["STORM_FACTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
LIMITS = [Limit(rate="400/s"), Limit(concurrency=3, per="key")]


def note(what: str, payload: bytes, *, task_id: str = "", failed: str = "") -> None:
    """One line in one write: whole, or not at all if the process is killed."""
    fact = {"what": what, "id": task_id, "payload": payload.decode(), "failed": failed, "at": time.time()}
    os.write(FACTS, json.dumps({**fact, "pid": os.getpid()}).encode() + b"\n")


async def run(job: Job) -> Any:
    note("began", job.payload, task_id=job.id)
    try:
        result = await behave(job)
    except BaseException as exc:
        note("ran", job.payload, task_id=job.id, failed=f"{type(exc).__name__}: {exc}")
        raise
    note("ran", job.payload, task_id=job.id)
    return result


@app.handler("storm:work", retry_delay=0.3)
async def work(job: Job) -> Any:
    return await run(job)


@app.handler("aggregated:*", retry_delay=0.3)
async def aggregated(job: Job) -> Any:
    return await run(job)


@app.handler("storm:limited", queue="slow", retry_delay=0.3, limit=LIMITS)
async def limited(job: Job) -> Any:
    return await run(job)


@app.aggregate("g*", grace=1, max_size=20, max_delay=5)
def join(group: str, jobs: list[Job]) -> Call[Any]:
    payload = b",".join(job.payload for job in jobs)
    note("aggregated", payload)
    return app.call(f"aggregated:{group}", payload)
