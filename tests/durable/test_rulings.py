"""Rulings of durable handlers that no other file is about; and that each of the twenty has a test that names it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from tests.durable.test_waits import parked
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever, until
from veredus import App, current
from veredus.events import Event, TaskOverran
from veredus.model.durable import CHILD_RETENTION
from veredus.wire import keys

SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}
TESTS = Path(__file__).parents[1]


def test_every_ruling_has_a_test_that_names_it() -> None:
    files = [*TESTS.glob("durable/*.py"), TESTS / "testing/test_durable.py", TESTS / "gateway/test_durable_requests.py"]
    found = {int(number) for path in files for number in re.findall(r"def test_ruling_(\d\d)_", path.read_text())}
    assert found == set(range(1, 21))


@VALKEY_ONLY
async def test_ruling_07_a_handler_that_never_leaves_keeps_its_task_and_counts_as_stuck(app: App, look: Look) -> None:
    """It swallows its cancellation. Nobody else may run the task until it ends, or until its lease does if that is
    asked for; then another attempt finds the outcome of the wait."""
    leaving, release, overran = asyncio.Event(), asyncio.Event(), list[Event]()
    begun: list[int] = []

    @app.task(timeout=1.0)
    async def order() -> Any:
        begun.append(current().attempt)
        try:
            return await current().wait_for("approved")
        except asyncio.CancelledError:
            leaving.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            raise

    settings = {**SETTINGS, "deadline_grace": 0.2, "retry_while_running": True}
    worker = app.worker(**settings)
    worker.bus.subscribe(lambda event: overran.append(event) if isinstance(event, TaskOverran) else None)
    async with worker:
        handle = await order.enqueue()
        await leaving.wait()
        assert await look.state(handle.id) == "active", "it is not parked while its handler runs"
        await app.emit("approved", "yes")
        await until(lambda: bool(overran))
        assert await handle.result(timeout=30) == "yes"
        release.set()
    assert begun == [1, 2]


@VALKEY_ONLY
async def test_ruling_07_a_cancelled_handler_that_waits_while_it_cleans_up_ends(app: App, look: Look) -> None:
    cleaning = asyncio.Event()

    @app.task
    async def order() -> None:
        await current().step(asyncio.sleep, 0)
        try:
            await forever()
        finally:
            cleaning.set()
            await current().wait_for("never")

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()

        async def begun() -> bool:
            return "run" in await look.fields(handle.id)

        await until(begun)
        await handle.cancel()
        await cleaning.wait()
        await look.ends(handle.id, "archived")


async def test_ruling_10_looks_become_rarer_the_longer_a_task_waits() -> None:
    app = App()

    @app.task
    async def order() -> None:
        await current().wait_for("never")

    pauses = []
    async with app.test() as q:
        handle = await order.enqueue()
        await q.drain()
        redis = app.inspector()._redis
        key = keys.waits("default")
        for _ in range(8):
            at = round(float(await redis.command("ZSCORE", key, handle.id, key=key)))
            now = q.clock.now_ms
            pauses.append(at - now)
            await q.advance((at - now) / 1000)
    assert pauses == [1000, 5000, 5000, 30000, 30000, 300000, 300000, 300000]


@VALKEY_ONLY
async def test_ruling_12_children_keep_their_results_for_a_day_at_least(app: App, look: Look) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> None:
        elsewhere = child.using(queue="other")
        calls = [elsewhere.call(), *[elsewhere.using(retention=kept).call() for kept in (60, 200_000)]]
        await current().gather("all", calls)

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()
        await parked(look, handle.id)
        other = look.of("other")
        kept = [(await other.message(one)).retention for one in sorted(await other.pending())]
        await handle.cancel(then="delete")
    assert kept == [CHILD_RETENTION, CHILD_RETENTION, 200_000]


@VALKEY_ONLY
async def test_ruling_14_waiting_for_oneself_is_refused_over_generations(app: App, look: Look) -> None:
    """Covered in detail by test_children.py; here a child of another queue may have the same order key."""

    @app.task
    async def child() -> str:
        return "ran"

    @app.task
    async def parent() -> str:
        return await current().run(child.using(queue="other", order_key="k").call())

    async with app.worker(["default", "other"], **SETTINGS):
        assert await (await parent.using(order_key="k").enqueue()).result(timeout=20) == "ran"
