"""Durable handlers in `app.test()`: the clock moves over their waits, and their worker dies where the test says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from veredus import App, current
from veredus.errors import ConfigError, TaskFailed


class Shop:
    """An app with one durable task, and what its steps did."""

    def __init__(self) -> None:
        self.app = App()
        self.done: list[str] = []

        async def charge() -> str:
            self.done.append("charge")
            return "receipt"

        async def ship(receipt: str) -> None:
            self.done.append(f"ship {receipt}")

        @self.app.task
        async def pack(n: int) -> int:
            self.done.append(f"pack {n}")
            return n

        @self.app.task(max_retry=3)
        async def order() -> str:
            job = current()
            receipt = await job.step(charge)
            await job.sleep("cool-down", 86400)
            packed = await job.gather("packing", [pack.call(n) for n in range(2)])
            answer = await job.wait_for("approved", timeout=3600)
            await job.step(ship, receipt)
            return f"{len(packed)} parts, {answer}"

        self.order = order


@pytest.mark.parametrize("number", range(1, 6))
async def test_ruling_20_a_crash_after_any_durable_call_loses_and_repeats_nothing(number: int) -> None:
    shop = Shop()
    async with shop.app.test(retry_delay=1.0) as q:
        q.crash(after=number)
        handle = await shop.order.enqueue()
        await q.run_all()
        assert await handle.result() == "2 parts, None"
        assert q.planned_crashes == 0
        assert [run.action for run in q.runs].count("retry") == 1
    assert shop.done == ["charge", "pack 0", "pack 1", "ship receipt"]


async def test_ruling_20_a_crash_inside_a_step_repeats_that_one() -> None:
    shop = Shop()
    async with shop.app.test(retry_delay=1.0) as q:
        q.crash(inside="charge")
        q.crash(after="packing")
        handle = await shop.order.enqueue()
        await q.advance(86500)
        await shop.app.emit("approved", "ada")
        await q.drain()
        assert await handle.result() == "2 parts, ada"
    assert shop.done == ["charge", "charge", "pack 0", "pack 1", "ship receipt"]


async def test_ruling_18_a_crash_counts_as_an_attempt() -> None:
    shop = Shop()
    async with shop.app.test(retry_delay=1.0) as q:
        q.crash(after="charge")
        handle = await shop.order.using(max_retry=0).enqueue()
        await q.drain()
        with pytest.raises(TaskFailed, match="the test ended its worker here"):
            await handle.result()


def test_a_crash_in_a_thread() -> None:
    app, done = App(), []

    def charge() -> None:
        done.append("charge")

    @app.task
    def order() -> str:
        current().step_sync(charge, name="first")
        current().step_sync(charge, name="second")
        return "done"

    with app.test() as q:
        q.crash(after="first")
        handle = order.enqueue_sync()
        q.run_all()
        assert handle.result_sync() == "done"
    assert done == ["charge", "charge"]


@pytest.mark.parametrize("given", [{}, {"after": "a", "inside": "b"}, {"after": 0}, {"after": True}])
async def test_what_a_crash_needs(given: dict[str, Any]) -> None:
    async with App().test() as q:
        with pytest.raises(ConfigError, match="after: got"):
            q.crash(**given)


async def test_a_run_that_began_too_long_ago_is_archived_while_it_waits() -> None:
    app = App()

    @app.task(retention=60)
    async def order(days: float | None) -> str:
        if days is None:
            return str(await current().wait_for("never"))
        await current().sleep("nap", timedelta(days=days))
        return "awake"

    async with app.test(max_run_age=timedelta(days=30).total_seconds()) as q:
        short, long, endless = [await order.enqueue(days) for days in (29, 31, None)]
        await q.advance(timedelta(days=29))
        assert await short.result() == "awake"
        await q.advance(timedelta(days=1, seconds=1))
        for one in (long, endless):
            with pytest.raises(TaskFailed, match="RunTooOld: this run began 2,592,000 s ago; the limit is 2,592,000"):
                await one.result()
            assert (await one.status()).retried == 0
