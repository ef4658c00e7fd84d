"""A worker takes only what it can start: types that it knows, in pools that have room. The rest stays pending."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.integration import process_tasks
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, current
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.wire import keys
from veredus.worker.roles import processor

pytestmark = VALKEY_ONLY


async def test_tasks_of_unknown_types_stay_pending_in_order_and_no_attempt_is_counted(app: App, look: Look) -> None:
    ran: list[str] = []

    @app.task(name="known")
    async def known() -> None:
        ran.append(current().id)

    foreign = [await app.enqueue("go:work") for _ in range(3)]
    mine = await known.enqueue()
    foreign.append(await app.enqueue("go:work"))
    async with app.worker(**FAST):
        await look.ends(mine.id, "gone")
        later = await known.enqueue()
        await look.ends(later.id, "gone")
    assert ran == [mine.id, later.id]
    assert await look.pending() == [handle.id for handle in foreign]
    assert await look.counters() == (2, 0)


async def test_whoever_knows_the_type_gets_the_task_that_another_worker_passes_over(
    app: App, url: str, look: Look
) -> None:
    other = App(url)
    ran: list[str] = []

    @app.task(name="a")
    async def a() -> None:
        ran.append("a")

    @other.task(name="b")
    async def b() -> None:
        ran.append("b")

    async with other, app.worker(**FAST), other.worker(**FAST):
        handles = [await app.enqueue(name) for name in "abbaab"]
        for handle in handles:
            await look.ends(handle.id, "gone")
    assert sorted(ran) == ["a", "a", "a", "b", "b", "b"]
    assert await look.counters() == (6, 0)


async def test_what_comes_behind_a_foreign_task_is_found_though_nothing_wakes_the_worker(app: App, look: Look) -> None:
    ran = asyncio.Event()

    @app.task(name="mine")
    async def mine() -> None:
        ran.set()

    await app.enqueue("foreign")
    async with app.worker(**FAST) as worker:
        await until(lambda: worker._roles.processor._scans["default"].is_at_end)
        await mine.enqueue()
        await asyncio.wait_for(ran.wait(), 5)


async def test_a_task_that_is_given_back_to_the_front_is_found_too(
    app: App, look: Look, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPUSH puts it before the cursor, where nobody looks but now and then."""
    monkeypatch.setattr(processor, "SCANS_BETWEEN", 3)
    ran = asyncio.Event()

    @app.task(name="mine")
    async def mine() -> None:
        ran.set()

    for _ in range(3):
        await app.enqueue("foreign")
    async with app.worker(**FAST) as worker:
        await until(lambda: worker._roles.processor._scans["default"].is_at_end)
        await app.inspector().pause("default")
        handle = await mine.enqueue()
        await redis_client.lrem(keys.pending("default"), 1, handle.id)
        await redis_client.rpush(keys.pending("default"), handle.id)
        await app.inspector().resume("default")
        await asyncio.wait_for(ran.wait(), 5)


async def test_a_full_thread_pool_holds_up_neither_the_loop_nor_the_order(app: App, look: Look) -> None:
    release, ran = threading.Event(), list[int]()

    @app.task(name="slow")
    def slow(n: int) -> None:
        ran.append(n)
        release.wait(30)

    @app.task(name="quick")
    async def quick() -> None:
        ran.append(-1)

    handles = [await slow.enqueue(n) for n in range(3)]
    fast = await quick.enqueue()
    async with app.worker(**FAST, threads=1):
        await look.ends(fast.id, "gone")
        assert [await look.state(handle.id) for handle in handles] == ["active", "pending", "pending"]
        release.set()
        for handle in handles:
            await look.ends(handle.id, "gone")
    assert [n for n in ran if n >= 0] == [0, 1, 2]
    assert await look.counters() == (4, 0)


async def test_a_full_process_pool_holds_up_neither_threads_nor_the_loop(url: str, look: Look, tmp_path: Path) -> None:
    app, release = process_tasks.app, tmp_path / "release"
    app.use(url)
    look = look.of("cpu")
    handles = [await process_tasks.until.enqueue(str(release)) for _ in range(3)]
    others = [await process_tasks.quick.enqueue(), await process_tasks.quick_thread.enqueue()]
    async with app, app.worker("cpu", **FAST, process_pool=1):
        for other in others:
            await look.ends(other.id, "gone")
        await until(lambda: list(tmp_path.iterdir()))
        assert [await look.state(handle.id) for handle in handles] == ["active", "pending", "pending"]
        release.touch()
        for handle in handles:
            await look.ends(handle.id, "gone")
    assert await look.counters() == (5, 0)


async def test_time_spent_waiting_for_a_slot_is_not_run_time(app: App, look: Look) -> None:
    """Two seconds in all, with a timeout of one: each task runs for half a second on the only thread."""

    @app.task(name="half", timeout=1, max_retry=0)
    def half() -> None:
        current().wait_cancelled(0.5)
        assert not current().cancelled

    handles = [await half.enqueue() for _ in range(4)]
    async with app.worker(**FAST, threads=1):
        for handle in handles:
            await look.ends(handle.id, "gone")
    assert await look.counters() == (4, 0)


async def test_a_burst_ends_when_only_tasks_are_left_that_it_cannot_start(app: App, look: Look) -> None:
    app.task(name="mine")(lambda: None)
    foreign = await app.enqueue("foreign")
    mine = await app.enqueue("mine")
    worker = app.worker(**FAST, burst=True)
    async with worker:
        await asyncio.wait_for(worker.wait(), 10)
    assert await look.state(mine.id) == "gone"
    assert await look.state(foreign.id) == "pending"


async def test_a_worker_of_several_queues_takes_no_more_than_its_pool_can_start(app: App, look: Look) -> None:
    release = threading.Event()

    @app.task(name="held")
    def held() -> None:
        release.wait(30)

    @app.task(name="quick")
    async def quick() -> None:
        """The loop has room for many more: they are shared among the queues."""

    names = ["one", "two", "three"]
    for name in names:
        await app.enqueue_many(held.using(queue=name).call() for _ in range(5))
    async with app.worker(",".join(names), **FAST, threads=2) as worker:
        await until(lambda: worker._in_flight.busy == 2)
        await pause(0.2, proves="no more is taken while the threads are busy")
        assert worker._in_flight.busy == 2
        release.set()
        await until(lambda: worker._in_flight.busy == 0 and worker._roles.processor.all_empty)


async def test_a_type_that_no_live_worker_serves_is_reported_once_and_found_by_the_doctor(
    app: App, look: Look, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "SCANS_BETWEEN", 3)
    app.task(name="mine")(lambda: None)
    await app.enqueue("nobody:knows")
    with caplog.at_level(logging.WARNING):
        async with app.worker(lease=0.6, sweep=0.1):
            await until(lambda: "nobody:knows" in caplog.text)
            found = await app.inspector().doctor.diagnose()
            await app.enqueue("nobody:knows")
            await pause(1.0, proves="it is not told again")
    lines = [record.getMessage() for record in caplog.records if "nobody:knows" in record.getMessage()]
    assert len(lines) == 1
    assert "queue default" in lines[0]
    assert [(one.kind, one.level, one.repairable) for one in found if "nobody:knows" in one.text] == [
        ("unserved", "warn", False)
    ]


async def test_a_type_that_another_live_worker_serves_is_no_news(app: App, url: str, look: Look) -> None:
    other = App(url)
    other.task(name="b")(lambda: None)
    other.handler("c:*")(lambda: None)
    app.task(name="a")(lambda: None)
    roll = LiveProcesses(app.inspector()._redis)
    assert await roll.unserved("default", ["a", "b"]) == []
    async with other, app.worker(**FAST):
        await until(lambda: roll_sees(roll, ["a", "b", "c:1", "d"], ["b", "c:1", "d"]))
        async with other.worker(**FAST):
            await until(lambda: roll_sees(roll, ["a", "b", "c:1", "d"], ["d"]))
        await until(lambda: roll_sees(roll, ["a", "b", "c:1", "d"], ["b", "c:1", "d"]))


async def roll_sees(roll: LiveProcesses, types: list[str], expected: list[str]) -> bool:
    return await roll.unserved("default", types) == expected


async def test_beside_a_go_worker_nobody_can_say_that_a_type_is_not_served(
    app: App, look: Look, redis_client: Any
) -> None:
    app.task(name="a")(lambda: None)
    roll = LiveProcesses(app.inspector()._redis)
    async with app.worker(**FAST):
        await until(lambda: roll_sees(roll, ["x"], ["x"]))
        (name,) = await redis_client.keys(f"{keys.PREFIX}:types:*")
        await redis_client.delete(name)  # what is left is what a Go worker writes
        assert await roll.unserved("default", ["x"]) == []
