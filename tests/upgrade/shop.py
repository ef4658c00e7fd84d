"""The app of both versions, copied into a folder of its own: its handlers write down what they do."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from veredus import App, Call, Job, Limit, current

app = App()
HERE = Path(__file__).parent
FACTS = os.open(HERE / "facts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str) -> None:
    """One line in one write: whole, or not at all if the process is killed."""
    context = current()
    fact = {
        "what": what,
        "id": context.id,
        "queue": context.queue,
        "attempt": context.attempt,
        "pid": os.getpid(),
        "at": time.time(),
    }
    os.write(FACTS, json.dumps(fact).encode() + b"\n")


async def work(seconds: float, fails: int, gate: str) -> None:
    note("start")
    try:
        await asyncio.sleep(seconds)
        while gate and not (HERE / f"gate.{gate}").exists():
            await asyncio.sleep(0.02)
        if current().attempt <= fails:
            raise RuntimeError("told to fail")
    except BaseException as exc:
        note(type(exc).__name__)
        raise
    note("finish")


@app.task(name="job", retry_delay=0.1)
async def job(n: int = 0, seconds: float = 0.0, fails: int = 0, gate: str = "", result: bool = False) -> Any:
    """Returns something only if told to: a result would keep the task in Redis."""
    await work(seconds, fails, gate)
    return {"n": n, "pid": os.getpid()} if result else None


@app.task(name="lane", queue="lanes", retry_delay=0.1)
async def lane(n: int = 0, fails: int = 0) -> None:
    await work(0.01, fails, "")


@app.task(name="limited", queue="limited", limit=Limit(concurrency=2))
async def limited(seconds: float = 0.05) -> None:
    await work(seconds, 0, "")


@app.task(name="summary", queue="grouped")
async def summary(members: list[int]) -> None:
    (HERE / "summaries").open("a").write(json.dumps(sorted(members)) + "\n")


@app.aggregate("team*", queue="grouped", grace=1, max_size=5)
async def digest(group: str, jobs: list[Job]) -> Call[Any]:
    return summary.call([one.json() for one in jobs])


@app.action("double", queue="actions", deadline=60)
async def double(n: int) -> int:
    await current().client.notify({"n": n}, type="progress")
    return 2 * n
