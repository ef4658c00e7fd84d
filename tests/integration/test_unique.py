"""Unique tasks whose lock is shorter than their life: nobody else gets in before they have ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, TaskIdConflict
from veredus.wire import keys

pytestmark = VALKEY_ONLY
UNIQUE_FOR = 1


async def test_refused_while_it_runs_waits_for_its_retry_and_runs_again(app: App, look: Look) -> None:
    """The lock lives a second; the task runs, waits and runs again for longer than that each time."""
    runs: list[int] = []
    fail, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="report", unique_for=UNIQUE_FOR, retry_delay=2.5, retention=60)
    async def report(day: str) -> None:
        runs.append(1)
        if len(runs) == 1:
            await fail.wait()
            raise RuntimeError("once more")
        await go_on.wait()

    async def refused() -> None:
        handle = await report.enqueue("monday")
        assert not handle.created

    async with app.worker(**FAST):
        first = await report.enqueue("monday")
        assert first.created
        lock = keys.unique("default", "report", b'{"day":"monday"}')
        await look.ends(first.id, "active")
        await pause(1.6, proves="the lock does not end with its second while the task runs")
        await refused()
        fail.set()
        await look.ends(first.id, "retry")
        await pause(1.6, proves="nor while the task waits for its retry")
        await refused()
        await until(lambda: len(runs) == 2)
        await refused()
        assert await look.client.get(lock) == first.id.encode()
        go_on.set()
        await look.ends(first.id, "completed")
        assert await look.client.get(lock) is None
        assert (await report.enqueue("monday")).created
        await until(lambda: len(runs) == 3)


async def test_a_go_client_is_refused_as_well(app: App, look: Look) -> None:
    """What Go does for a unique task: SET NX with the same key; the value is the id of the task that has it."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="report", unique_for=UNIQUE_FOR)
    async def report() -> None:
        started.set()
        await go_on.wait()

    async with app.worker(**FAST):
        handle = await report.enqueue()
        await started.wait()
        await pause(1.6, proves="the lock does not end with its second")
        lock = keys.unique("default", "report", b"{}")
        assert await look.client.set(lock, "from-go", nx=True, ex=UNIQUE_FOR) is None
        assert await look.client.get(lock) == handle.id.encode()
        go_on.set()
        await look.ends(handle.id, "gone")
        assert await look.client.set(lock, "from-go", nx=True, ex=UNIQUE_FOR)
        await look.client.delete(lock)


async def test_a_lapsed_lock_is_taken_again_when_the_task_starts(app: App, look: Look) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="report", unique_for=UNIQUE_FOR)
    async def report() -> None:
        started.set()
        await go_on.wait()

    handle = await report.enqueue()
    lock = keys.unique("default", "report", b"{}")

    async def lapsed() -> Any:
        return not await look.client.exists(lock)

    await until(lapsed)
    async with app.worker(**FAST):
        await started.wait()
        assert await look.client.get(lock) == handle.id.encode()
        assert not (await report.enqueue()).created
        with pytest.raises(TaskIdConflict):
            await report.using(task_id=handle.id).enqueue()
        go_on.set()
        await look.ends(handle.id, "gone")


async def test_the_handle_of_a_refused_one_is_that_of_the_task_that_has_the_lock(app: App, look: Look) -> None:
    @app.task(name="report", unique_for=60)
    async def report(day: str) -> None: ...

    for kind, state in (
        ({}, "pending"),
        ({"delay": 60}, "scheduled"),
        ({"group": "g"}, "aggregating"),
        ({"order_key": "k"}, "pending"),
    ):
        task = report.using(**kind)
        day = f"{kind}"
        first = await task.enqueue(day)
        twin = await task.enqueue(day)
        assert (first.created, twin.created) == (True, False)
        assert (twin.id, twin.state, twin.queue, twin.type) == (first.id, state, "default", "report")
        own, other = await app.enqueue_many([task.call(f"{day} again"), task.call(day)])
        assert (own.created, other.created, other.id, other.state) == (True, False, first.id, state)
        (third, fourth) = await app.enqueue_many([task.call(f"{day} twice"), task.call(f"{day} twice")])
        assert (third.created, fourth.created, fourth.id) == (True, False, third.id)


async def test_the_holder_may_be_gos_or_gone_or_no_task_at_all(app: App, look: Look) -> None:
    @app.task(name="report", unique_for=60)
    async def report(day: str) -> None: ...

    lock = keys.unique("default", "report", b'{"day":"monday"}')
    await look.client.set(lock, "from-go", ex=60)
    gone = await report.enqueue("monday")
    assert (gone.created, gone.id, gone.state) == (False, "from-go", "gone")
    await look.client.hset(keys.task("default", "from-go"), mapping={"msg": b"", "state": "archived"})
    kept = await report.enqueue("monday")
    assert (kept.created, kept.id, kept.state) == (False, "from-go", "archived")
    await look.client.delete(lock, keys.task("default", "from-go"))
    await look.client.lpush(lock, "damaged")
    odd = await report.enqueue("monday")
    assert not odd.created
    assert odd.id not in ("", "from-go")
    await look.client.delete(lock)


async def test_who_is_refused_although_it_would_replace_an_ended_task_is_told_as_well(app: App, look: Look) -> None:
    @app.task(name="report", unique_for=60)
    async def report(day: str) -> None: ...

    first = await report.enqueue("monday")
    ended = await report.using(task_id="mine").enqueue("tuesday")
    await app.inspector().archive("default", ended.id)
    twin = await report.using(task_id="mine", replace=True).enqueue("monday")
    assert (twin.created, twin.id, twin.state) == (False, first.id, "pending")
