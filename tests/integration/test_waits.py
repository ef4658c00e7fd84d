"""Why a task waits, in words and values."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Limit
from veredus.errors import TaskNotFound
from veredus.wire import keys

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


async def test_each_reason(url: str, look: Look) -> None:
    app, gate = App(url, unserved="ignore"), asyncio.Event()

    @app.task(name="held")
    async def held() -> None:
        await gate.wait()

    @app.task(name="limited", limit=Limit(concurrency=1))
    async def limited() -> None:
        await gate.wait()

    async with app:
        inspector = app.inspector()

        async def reasons(task_id: str) -> list[str]:
            return [one.reason for one in await inspector.waits("default", task_id)]

        lone = await held.enqueue()
        assert await reasons(lone.id) == ["no worker"]
        (nobody,) = await inspector.waits("default", lone.id)
        assert str(nobody) == "no live worker serves queue default"
        later = await held.using(delay=3600).enqueue()
        due, _ = await inspector.waits("default", later.id)
        assert due.reason == "due"
        assert 3_500_000 < due.until_ms - await look.now_ms() <= 3_600_001
        async with app.worker(["default"], **FAST):
            first = await held.using(order_key="a").enqueue()
            second = await held.using(order_key="a").enqueue()
            for _ in range(2):
                behind = await limited.enqueue()
            stranger = await app.enqueue("stranger", b"")
            await until(lambda: look.client.zscore("asynq:{default}:lease", first.id))

            async def is_limited() -> bool:
                return await look.state(behind.id) == "scheduled"

            await until(is_limited)
            (wait,) = await inspector.waits("default", second.id)
            assert (wait.reason, wait.name, wait.held_by, wait.holder_state) == ("order key", "a", first.id, "active")
            assert 0 < wait.since_ms <= await look.now_ms()
            assert f"order key a, held by task {first.id} (active), since 20" in str(wait)
            (wait,) = await inspector.waits("default", behind.id)
            assert (wait.reason, wait.name) == ("limit", "task:limited")
            assert wait.until_ms > wait.since_ms > 0
            assert str(wait).startswith("limit task:limited is used up, since 20")
            assert ", looked at again by 20" in str(wait), "it may be used up again then"
            (unknown,) = await inspector.waits("default", stranger.id)
            assert str(unknown) == "no live worker of the queue has a handler for type stranger"
            assert await reasons(stranger.id) == ["unknown type"]
            minutes = str(int(wait.since_ms * 1_000_000 - 25 * 60 * 10**9))
            await look.client.hset(look.task(second.id), "pending_since", minutes)
            assert (await inspector.queue("default")).latency.total_seconds() >= 25 * 60, "a key held for 25 minutes"
            await look.client.hset(look.task(second.id), "pending_since", str(await look.now_ms() * 1_000_000))
            await look.client.hset(look.task(behind.id), "pending_since", minutes)
            assert (await inspector.queue("default")).latency.total_seconds() >= 25 * 60, "behind a limit"
            await inspector.pause("default")
            assert await reasons(stranger.id) == ["paused", "unknown type"]
            assert await reasons(first.id) == []
            with pytest.raises(TaskNotFound):
                await inspector.waits("default", "nothing")
            await inspector.resume("default")
            gate.set()
            await look.ends(second.id, "gone")


@pytest.mark.parametrize("damage", ["emptied", "of another type"])
async def test_a_damaged_order_key_leaves_out_who_holds_it(url: str, look: Look, damage: str) -> None:
    app = App(url)

    @app.task(name="held")
    async def held() -> None: ...

    async with app:
        first, second = [await held.using(order_key="a").enqueue() for _ in range(2)]
        lane = keys.lane("default", "a")
        (wait, _) = await app.inspector().waits("default", second.id)
        assert (wait.held_by, wait.holder_state) == (first.id, "pending")
        await look.client.delete(lane)
        if damage == "of another type":
            await look.client.set(lane, "x")
        (wait, _) = await app.inspector().waits("default", second.id)
        assert (wait.reason, wait.name, wait.held_by, wait.holder_state) == ("order key", "a", "", "")
        await look.client.delete(lane)
        await app.inspector().doctor.repair_all()
