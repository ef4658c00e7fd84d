"""What children leave for their parent: it is kept until the parent has ended, and may still lapse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.test_children import SETTINGS, declare
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.store.store import Store
from veredus.store.tasks.runs import JoinRow
from veredus.wire import keys

pytestmark = VALKEY_ONLY


async def test_outcomes_that_have_lapsed_are_read_from_the_children(app: App, look: Look) -> None:
    double, ran = declare(app)

    @app.task
    async def later() -> list[Any]:
        job = current()
        found = await job.gather("pages", [double.call(n) for n in range(3)], return_errors=True)
        await job.wait_for("go")
        return [one if isinstance(one, int) else str(one) for one in found]

    async with app.worker(**SETTINGS):
        handle = await later.enqueue()
        await until(lambda: _waits_for_event(look, handle.id))
        (kids,) = await look.client.keys("*:kids:*")
        await look.client.delete(kids)
        gone = (await look.client.zrange(keys.completed("default"), 0, 0))[0].decode()
        await app.inspector().delete("default", gone)
        await app.emit("go")
        found = await handle.result(timeout=20)
    assert [one for one in found if isinstance(one, int)] == [2 * n for n in range(3) if not gone.endswith(f":{n}")]
    assert sum("unknown: it is gone" in str(one) for one in found) == 1
    assert len(ran) == 3


async def test_a_child_whose_outcome_has_lapsed_and_who_was_run_again_is_unknown(app: App, look: Look) -> None:
    """Its parent has had the outcome before, and does not wait again."""
    double, _ = declare(app)

    @app.task
    async def later() -> list[Any]:
        job = current()
        calls = [double.using(queue="other").call(n) for n in range(3)]
        found = await job.gather("pages", calls, return_errors=True)
        await job.wait_for("go")
        return [one if isinstance(one, int) else str(one) for one in found]

    async with app.worker("default", **SETTINGS):
        handle = await later.enqueue()
        async with app.worker("other", **SETTINGS):
            await until(lambda: _waits_for_event(look, handle.id))
        (kids,) = await look.client.keys("*:kids:*")
        await look.client.delete(kids)
        (again,) = [name for name in await look.of("other").scores("completed") if name.endswith(":1")]
        await app.inspector().run("other", again)
        await app.emit("go")
        found = await handle.result(timeout=20)
    assert (found[0], found[2]) == (0, 4)
    assert found[1].endswith("unknown: its result is no longer kept")


async def _waits_for_event(look: Look, task_id: str) -> bool:
    return (await look.fields(task_id)).get("waiting", b"").startswith(b"event ")


async def test_a_worker_that_lost_the_parent_leaves_its_children_alone(
    app: App, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker runs the parent now, and needs what they returned."""
    double, _ = declare(app)
    gathered, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def parent() -> None:
        await current().gather("pages", [double.call(n) for n in range(3)])
        gathered.set()
        await go_on.wait()

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        await asyncio.wait_for(gathered.wait(), 20)
        key = keys.task("default", handle.id)
        held = await look.client.hget(key, "held")
        await look.client.hset(key, "held", b"another:1:" + held.rpartition(b":")[2])
        go_on.set()
        await until(lambda: "another owner" in caplog.text)
    assert len(await look.client.keys("*:kids:*")) == 1
    assert len(await look.scores("completed")) == 3
    await look.client.hset(key, "held", held)


async def test_an_outcome_that_comes_when_the_parent_has_ended_is_dropped(app: App, look: Look, store: Store) -> None:
    """A look and a relay may bring the same one. The parent has freed them all, and is kept for its result."""
    double, _ = declare(app)

    @app.task(retention=60)
    async def parent() -> list[int]:
        return await current().gather("pages", [double.call(n) for n in range(3)])

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        assert await handle.result(timeout=20) == [0, 2, 4]
    mark = (await look.fields(handle.id))["run"].decode()
    await store.runs.join("default", [JoinRow(handle.id, mark, "pages", 0, b"+")])
    assert await look.client.keys("*:kids:*") == []
