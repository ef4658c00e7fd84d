"""What a type checker says of calls: right ones pass, wrong ones are reported, each on its line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """\
from datetime import timedelta
from typing import assert_type

from veredus import App, Call, Handle, Job, Retry, Router, Task, current

app = App("redis://localhost")


@app.task
async def plain(user_id: int, lang: str = "en") -> str:
    return lang


@app.task(queue="mail", max_retry=5, timeout=timedelta(seconds=30), retry_delay=[1, 2])
async def welcome(user_id: int, lang: str = "en") -> str:
    return lang


@app.task(run_in="thread")
def compute(n: int) -> float:
    return n / 2


@app.cron("@daily", tz="Europe/Paris", queue="low", retry_on=OSError)
async def nightly() -> int:
    return 1


router = Router(queue="mail", max_retry=3, no_retry_on=[ValueError])


@router.task(order_key="user:{user_id}", unique_key=lambda user_id: user_id, unique_for=60)
async def routed(user_id: int) -> str:
    return "sent"


app.include(router)
defaulted = App(defaults={"timeout": timedelta(seconds=5), "retry_delay": [1, 2]}, include=["shop.tasks"])


@app.on_error
async def report(error: BaseException, job: Job) -> None: ...


@app.topic("orders", max_retry=2)
async def on_order(order: dict[str, int]) -> None: ...


@app.handler("go:*")
async def foreign(job: Job) -> None: ...


async def good() -> None:
    assert_type(await welcome.enqueue(1), Handle[str])
    assert_type(await plain.enqueue(1, lang="zh"), Handle[str])
    assert_type(await compute.enqueue(1), Handle[float])
    assert_type(compute.enqueue_sync(n=1), Handle[float])
    assert_type(welcome.call(1, "en"), Call[str])
    assert_type(compute(3), float)
    assert_type(await welcome(3), str)
    assert_type(await routed.enqueue(1), Handle[str])
    assert_type(await app.enqueue_many([welcome.call(1), routed.call(2)]), list[Handle[str]])
    assert_type(app.enqueue_many_sync(compute.call(n) for n in range(3)), list[Handle[float]])
    assert_type(await app.send(compute.call(1)), Handle[float])
    app.handle("an id")
    raise Retry(after=timedelta(seconds=3), counts=False)
    await welcome.using(delay=0.25, unique_for=3600, headers={"a": "b"}).enqueue(42, lang="zh")
    await app.enqueue_many(welcome.call(i) for i in range(10))
    await app.enqueue("go:type", {"a": 1}, queue="q", at=None)
    await app.produce("orders", {"id": 7}, delay=60)
    async with app, app.worker(queues={"mail": 3}, concurrency=5):
        print(current().attempt)


async def bad() -> None:
    await welcome.enqueue("one")  # error
    app.cron("@daily", queue=5)  # error
    app.topic("orders", max_rety=5)  # error
    app.worker(concurency=5)  # error
    app.worker(concurrency="many")  # error
    app.test(start="now")  # error
    Router(max_retry="many")  # error
    App(defaults={"max_rety": 5})  # error
    await app.enqueue_many([1, 2])  # error
    await welcome.enqueue()  # error
    await welcome.enqueue(1, langs="en")  # error
    await welcome.using(dealy=3).enqueue(1)  # error
    await welcome.using(max_retry="many").enqueue(1)  # error
    compute.call(1, 2)  # error
    await app.enqueue("t", queue=5)  # error
    text: int = (await plain.enqueue(1)).id  # error
"""


def test_mypy_accepts_right_calls_and_reports_every_wrong_one(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", ".mypy_cache_test", str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=110,
        check=False,
    )
    reported = {int(line) for line in re.findall(r"shop\.py:(\d+): error", found.stdout)}
    planted = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}
    assert reported == planted, found.stdout + found.stderr
