"""Which queue comes first, how much runs at once, and queues that are paused."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Job
from veredus.store.tasks.work import Work
from veredus.wire import keys

pytestmark = VALKEY_ONLY


async def _order(app: App, look: Look, count: int, **settings: Any) -> list[str]:
    """The order in which one hand takes tasks from three full queues."""
    order: list[str] = []

    @app.task(name="t")
    async def note() -> None:
        from veredus import current

        order.append(current().queue)

    for queue in ("low", "default", "critical"):
        await app.enqueue_many(note.using(queue=queue).call() for _ in range(count))
    worker = app.worker({"low": 1, "critical": 6, "default": 3}, **FAST, concurrency=1, **settings)
    async with worker:
        worker._roles.processor._rng = random.Random(7)
        await until(lambda: len(order) == 3 * count)
    return order


async def test_strict_priority_empties_the_heaviest_first(app: App, look: Look) -> None:
    assert await _order(app, look, 20, strict=True) == ["critical"] * 20 + ["default"] * 20 + ["low"] * 20


async def test_weights_share_in_proportion_and_starve_nobody(app: App, look: Look) -> None:
    order = await _order(app, look, 200)
    first = order[:300]  # none of the queues can be empty before
    assert 140 <= first.count("critical") <= 200  # expected 180
    assert 60 <= first.count("default") <= 125  # expected 90
    assert 12 <= first.count("low") <= 55  # expected 30


@pytest.mark.parametrize("names", ["a", "a,b,c"])
async def test_the_next_question_leaves_before_the_handlers_of_the_last_answer_run(
    app: App, look: Look, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that Redis works while they do."""
    events: list[str] = []
    real = Work.dequeue_each

    async def asked(self: Work, wanted: Any) -> Any:
        events.append("asked")
        answers = await real(self, wanted)
        events.append("answered")
        return answers

    @app.task(name="t")
    async def note() -> None:
        events.append("ran")

    for queue in names.split(","):
        await app.enqueue_many(note.using(queue=queue).call() for _ in range(40))
    monkeypatch.setattr(Work, "dequeue_each", asked)
    total = 40 * len(names.split(","))
    async with app.worker(names, **FAST, concurrency=20):
        await until(lambda: events.count("ran") == total)
    assert "ran" in events
    assert events[: events.index("ran")] == ["asked", "answered", "asked"]


@pytest.mark.parametrize(("concurrency", "kind"), [(1, "loop"), (3, "loop"), (3, "thread")])
async def test_never_more_than_concurrency_at_once(app: App, look: Look, concurrency: int, kind: str) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    @app.task(name="loop", queue="a")
    async def on_loop() -> None:
        enter(1)
        await asyncio.sleep(0.005)
        enter(-1)

    @app.task(name="thread", queue="b")
    def in_thread() -> None:
        enter(1)
        threading.Event().wait(0.005)
        enter(-1)

    task: Any = on_loop if kind == "loop" else in_thread
    await app.enqueue_many(task.using(queue=queue).call() for queue in ("a", "b") for _ in range(30))
    worker = app.worker(["a", "b"], **FAST, concurrency=concurrency, burst=True)
    async with worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert most == concurrency
    assert (await look.of("a").counters())[0] + (await look.of("b").counters())[0] == 60


async def test_no_more_is_taken_than_free_hands_can_hold(app: App, look: Look) -> None:
    release = asyncio.Event()

    @app.task
    async def wait() -> None:
        await release.wait()

    handles = await app.enqueue_many(wait.call() for _ in range(20))
    async with app.worker(**FAST, concurrency=4):
        await until(lambda: _length(look, 4))
        await pause(0.1, proves="no fifth is taken")
        assert len(await look.active()) == 4
        assert await look.pending() == [handle.id for handle in handles[4:]]
        release.set()
        await look.ends(handles[-1].id, "gone")


async def _length(look: Look, count: int) -> bool:
    return len(await look.active()) == count


async def test_a_full_pool_does_not_keep_other_queues_waiting(app: App, look: Look) -> None:
    release = threading.Event()

    @app.task(queue="slow")
    def slow() -> None:
        release.wait(PATIENCE)

    @app.task(queue="quick")
    async def quick() -> None: ...

    async with app.worker({"slow": 1000, "quick": 1}, **FAST, threads=1, concurrency=3):
        await app.enqueue_many(slow.call() for _ in range(5))
        await until(look.of("slow").active)
        for _ in range(10):
            handle = await quick.enqueue()
            await look.of("quick").ends(handle.id, "gone")
        assert len(await look.of("slow").active()) == 1
        release.set()


async def test_a_paused_queue_stops_and_resumes(app: App, look: Look) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(queue="other")
    async def other() -> None:
        ran.append(-1)

    async with app.worker(**FAST):
        await note.enqueue(1)
        await until(lambda: ran == [1])
        await look.client.set(keys.paused("default"), 1)
        handle = await note.enqueue(2)
        await other.enqueue()
        await until(lambda: ran == [1, -1])
        await pause(0.5, proves="nothing is taken from a queue that is paused")
        assert await look.pending() == [handle.id]
        await look.client.delete(keys.paused("default"))
        await until(lambda: ran == [1, -1, 2])


async def test_a_paused_queue_costs_little(app: App, look: Look) -> None:
    @app.task
    async def note() -> None: ...

    await look.client.set(keys.paused("default"), 1)
    handle = await note.enqueue()

    async def commands_per_second() -> float:
        began, before = time.monotonic(), (await look.client.info("stats"))["total_commands_processed"]
        await pause(1.2, proves="no loop spins")  # longer than the time after which a paused queue is looked at again
        after = (await look.client.info("stats"))["total_commands_processed"]
        return float(after - before) / (time.monotonic() - began)

    async with app.worker(**FAST):
        await until(lambda: look.client.exists(keys.SERVERS))
        paused = await commands_per_second()
        await look.client.delete(keys.paused("default"))
        await look.ends(handle.id, "gone")
        idle = await commands_per_second()
    assert paused < 3 * idle + 30


async def test_a_worker_serves_every_queue_that_the_app_names(app: App, look: Look) -> None:
    ran: list[str] = []

    @app.task(queue="mail")
    async def mail() -> None:
        ran.append("mail")

    @app.topic("orders")
    async def orders(order: Any) -> None:
        ran.append("orders")

    @app.handler("go:*", queue="foreign")
    async def foreign(job: Job) -> None:
        ran.append("foreign")

    async with app.worker(**FAST):
        await mail.enqueue()
        await app.produce("orders", 1)
        await app.enqueue("go:x", queue="foreign")
        await until(lambda: len(ran) == 3)
