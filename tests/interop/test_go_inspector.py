"""Go's tools on our tasks, in every state, with all our fields: they succeed, and our side goes on from there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.interop.go_inspector import GoInspector
from tests.interop.go_peer import GoPeer
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, Handle, Job
from veredus.wire import keys

pytestmark = VALKEY_ONLY
WAITING = ("pending", "scheduled", "retry", "archived", "completed", "aggregating")


class Shop:
    """An app whose handler notes what it ran, and fails where the payload says so."""

    def __init__(self, url: str, client: Any) -> None:
        self.app, self.client = App(url), client
        self.ran: list[bytes] = []

        @self.app.handler("*", retry_delay=3600)
        async def any_type(job: Job) -> None:
            self.ran.append(job.payload)
            if job.payload == b"fail":
                raise RuntimeError("no")

    async def bring(self, state: str, delay: float = 1.0) -> Handle[Any]:
        """A unique task of ours in this state."""
        options: dict[str, Any] = {"unique_for": 600}
        if state == "scheduled":
            return await self.app.enqueue("t", b"scheduled", delay=delay, **options)
        if state == "aggregating":
            return await self.app.enqueue("t", b"aggregating", group="g:1", **options)
        if state == "pending":
            return await self.app.enqueue("t", b"pending", **options)
        failing = state in ("retry", "archived")
        options |= {"max_retry": 0 if state == "archived" else 5, "retention": 600}
        handle = await self.app.enqueue("t", b"fail" if failing else b"well", **options)
        await self.work(lambda: self.is_in(handle, state))
        self.ran.clear()
        return handle

    async def is_in(self, handle: Handle[Any], state: str) -> bool:
        return bool(await self.client.hget(keys.task("default", handle.id), "state") == state.encode())

    async def work(self, goal: Callable[[], Any]) -> None:
        async with self.app.worker({"default": 1}, lease=1.5, sweep=0.3):
            await until(goal, what="what the worker was to do")

    async def state(self, handle: Handle[Any]) -> str:
        return (await self.app.inspector().task("default", handle.id)).state


@pytest.fixture
async def shop(url: str, redis_client: Any) -> AsyncIterator[Shop]:
    shop = Shop(url, redis_client)
    yield shop
    await shop.app.close()
    assert await check_invariant(redis_client) == []


@pytest.fixture
def go(redis_client: Any) -> GoInspector:
    return GoInspector(redis_client)


@pytest.mark.parametrize("state", [state for state in WAITING if state != "pending"])
async def test_run(shop: Shop, go: GoInspector, state: str) -> None:
    handle = await shop.bring(state)
    assert await go.run(handle.id) == 1
    assert await shop.state(handle) == "pending"
    assert await check_invariant(shop.client) == []
    await shop.work(lambda: _has(shop.ran))
    if state == "scheduled":
        await pause(1.2, proves="it does not run again at its old due time")
    await shop.app.enqueue("t", b"last")
    await shop.work(lambda: _has(b"last" in shop.ran))
    assert len(shop.ran) == 2


@pytest.mark.parametrize("state", [state for state in WAITING if state != "archived"])
async def test_archive_and_back(shop: Shop, go: GoInspector, state: str) -> None:
    handle = await shop.bring(state)
    assert await go.archive(handle.id) == 1
    assert await shop.state(handle) == "archived"
    assert await check_invariant(shop.client) == []
    await shop.app.inspector().run("default", handle.id)
    await shop.work(lambda: _has(shop.ran))
    assert len(shop.ran) == 1


@pytest.mark.parametrize("state", WAITING)
async def test_delete_takes_the_lock_along(shop: Shop, go: GoInspector, state: str) -> None:
    handle = await shop.bring(state)
    assert await go.delete(handle.id) == 1
    assert await shop.client.keys("asynq:{default}:t:*") == []
    assert await shop.client.keys("asynq:{default}:unique:*") == []
    await shop.app.enqueue("t", b"next")
    await shop.work(lambda: _has(shop.ran))
    assert shop.ran == [b"next"]


async def test_active_tasks_are_refused(shop: Shop, go: GoInspector) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @shop.app.task(name="slow")
    async def slow() -> None:
        started.set()
        await go_on.wait()

    async with shop.app.worker({"default": 1}):
        handle = await slow.enqueue()
        await started.wait()
        assert [await verb(handle.id) for verb in (go.run, go.archive, go.delete)] == [-1, -2, -1]
        assert await go.remove_queue() == -2
        go_on.set()


@pytest.mark.parametrize("state", ["scheduled", "retry", "archived"])
async def test_run_all(shop: Shop, go: GoInspector, state: str) -> None:
    await shop.bring(state)
    assert await go.run_all(state) == 1
    await shop.work(lambda: _has(shop.ran))
    assert len(shop.ran) == 1


async def test_update_payload(shop: Shop, go: GoInspector) -> None:
    handle = await shop.bring("scheduled")
    assert await go.update_payload(handle.id, b"edited") == 1
    await shop.work(lambda: _has(shop.ran))
    assert shop.ran == [b"edited"]


async def test_a_queue_that_go_removed_serves_again(
    shop: Shop, go: GoInspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go leaves our index, our batch numbers and the locks behind: they are in nobody's way."""
    for state in ("scheduled", "retry", "archived"):
        await shop.bring(state, delay=60)
        await shop.client.delete("none", *await shop.client.keys("asynq:{default}:unique:*"))
    assert await go.remove_queue() == 1
    assert await shop.client.zcard("asynq:{default}:due") == 2
    monkeypatch.setattr("veredus.store.intake.REGISTER_AGAIN", 0.0)
    await shop.app.enqueue("t", b"new")
    assert await shop.client.smembers("asynq:queues") == {b"default"}
    await shop.work(lambda: _has(shop.ran))
    assert shop.ran == [b"new"]


async def test_stats_and_memory(shop: Shop, go: GoInspector) -> None:
    for state in sorted(WAITING, key=lambda name: name in ("pending", "scheduled")):
        await shop.bring(state, delay=60)
        await shop.client.delete("none", *await shop.client.keys("asynq:{default}:unique:*"))
    seen = await go.stats()
    ours = await shop.app.inspector().queue("default", memory=True)
    assert {name: getattr(ours, name) for name in seen if name != "since"} == {
        name: count for name, count in seen.items() if name != "since"
    }
    assert abs(seen["since"] / 1e9 - time.time()) < 10
    assert await go.memory() > 0


async def test_go_aggregates_our_group(shop: Shop, go: GoInspector) -> None:
    first = await shop.app.enqueue("item", b"1", group="g:1", unique_for=600)
    second = await shop.app.enqueue("item", b"2", group="g:1", headers={"k": "v"})
    set_id, members = await go.stage("g:1")
    assert {member["id"] for member in members} == {first.id, second.id}
    assert {member["payload"] for member in members} == {b"1", b"2"}
    await GoPeer(shop.client).enqueue("sum", b"3")
    await go.delete_set("g:1", set_id)
    await shop.work(lambda: _has(shop.ran))
    assert shop.ran == [b"3"]
    assert await shop.client.keys("asynq:{default}:[gt]*") == []


async def test_a_set_that_go_left_behind_comes_back_to_its_group(shop: Shop, go: GoInspector) -> None:
    seen: list[int] = []

    @shop.app.aggregate("g:1", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> list[Any]:
        seen.append(len(jobs))
        return []

    await shop.app.enqueue("item", b"1", group="g:1")
    set_id, _ = await go.stage("g:1")
    await shop.client.zadd(
        "asynq:{default}:aggregation_sets", {f"asynq:{{default}}:g:g:1:{set_id}": time.time() // 1 - 1}
    )
    await shop.work(lambda: _has(seen))
    assert seen == [1]


async def _has(value: object) -> bool:
    return bool(value)
