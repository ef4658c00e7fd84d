"""Workers that wait for work: one task wakes one of them, and none is overlooked."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.integration.support import FAST, Look, go_message
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App
from veredus.wire import keys
from veredus.wire.messages import encode_task
from veredus.worker.roles import pending_watcher
from veredus.worker.roles.pending_watcher import MOST_WATCHED
from veredus.worker.worker import Worker

pytestmark = VALKEY_ONLY


async def all_idle(client: Any, number: int, queue: str = "default") -> bool:
    return bool(await client.zcard(keys.idle(queue)) == number)


async def start(stack: AsyncExitStack, app: App, number: int, **settings: Any) -> list[Worker]:
    return [await stack.enter_async_context(app.worker(**settings)) for _ in range(number)]


async def test_single_tasks_wake_one_of_many_idle_workers_each_in_turn(app: App, look: Look) -> None:
    ran: list[str] = []
    client = look.client

    @app.task(name="t")
    async def task() -> None:
        ran.append("t")

    async with AsyncExitStack() as stack:
        workers = await start(stack, app, 6)
        await until(lambda: all_idle(client, 6))
        await client.config_resetstat()
        for number in range(30):
            await app.enqueue("t")
            await until(lambda: len(ran) > number)  # noqa: B023 - awaited at once
            await until(lambda: all_idle(client, 6))
        calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        started = [worker._execution.attempt_runner.started for worker in workers]
    assert calls < 30 * 4 + 60, "three or four scripts for each task, not some for each worker"
    assert sum(started) == 30
    assert min(started) >= 3, "in turn, but for what the one takes that blocks on the queue"


async def test_a_batch_that_one_worker_cannot_take_wakes_as_many_as_it_needs(app: App, look: Look) -> None:
    running, go = 0, asyncio.Event()

    @app.task(name="t")
    async def task() -> None:
        nonlocal running
        running += 1
        await go.wait()

    async with AsyncExitStack() as stack:
        await start(stack, app, 4, concurrency=1, **FAST)
        await until(lambda: all_idle(look.client, 4))
        began = time.monotonic()
        await app.enqueue_many([app.call("t") for _ in range(4)])
        await until(lambda: running == 4)
        assert time.monotonic() - began < pending_watcher.LOOK, "not found by looking"
        go.set()


async def test_a_worker_that_dies_after_it_was_told_keeps_no_task_from_the_others(app: App, look: Look) -> None:
    """It has taken itself out of those that are idle, and will never dequeue. Also of more queues than are watched."""
    queues = [f"q{number}" for number in range(MOST_WATCHED + 2)]
    ran: list[str] = []

    @app.task(name="t")
    async def task() -> None:
        ran.append("t")

    async with app.worker(queues), look.client.pubsub() as dead:
        await dead.subscribe("asynq:wake:dead:0")
        for number, queue in enumerate((queues[0], queues[-1])):
            await until(lambda: all_idle(look.client, 1, queue))  # noqa: B023 - awaited at once
            await look.client.zadd(keys.idle(queue), {"asynq:wake:dead:0": 1})
            await app.enqueue("t", queue=queue)
            await until(lambda: len(ran) > number)  # noqa: B023 - awaited at once
            assert await look.client.zscore(keys.idle(queue), "asynq:wake:dead:0") is None


async def test_the_connections_of_a_worker_do_not_grow_with_its_queues(app: App, look: Look) -> None:
    queues = [f"q{number}" for number in range(200)]
    ran: list[str] = []

    @app.task(name="t")
    async def task() -> None:
        ran.append("t")

    before = len(await look.client.client_list())
    async with app.worker(queues):
        await until(lambda: all_idle(look.client, 1, queues[-1]))
        await until(lambda: look.client.exists(keys.watcher(queues[MOST_WATCHED - 1])))
        assert len(await look.client.client_list()) - before <= 16
        began = time.monotonic()
        for number in range(0, 200, 20):
            await app.enqueue("t", queue=queues[number])
        await until(lambda: len(ran) == 10)
        assert time.monotonic() - began < pending_watcher.LOOK, "woken, not found by looking"
        await look.of(queues[150]).push_like_go(go_message("t", queue=queues[150]))
        await until(lambda: len(ran) == 11)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_one_worker_watches_for_producers_that_wake_nobody(app: App, look: Look, busy: bool) -> None:
    """Another one takes over when it has gone, or has no time for it."""
    ran, go = [], asyncio.Event()

    @app.task(name="t")
    async def task() -> None:
        ran.append("t")

    @app.task(name="long")
    async def long() -> None:
        await go.wait()

    async with AsyncExitStack() as stack:
        (first,) = await start(stack, app, 1, concurrency=1)
        await until(lambda: look.client.exists(keys.watcher("default")))
        assert await look.client.get(keys.watcher("default")) == first.worker_id.encode()
        if busy:
            await app.enqueue("long")
            await until(lambda: first._in_flight.held())
        (second,) = await start(stack, app, 1, concurrency=1)
        if not busy:
            await first.stop()

        async def taken_over() -> bool:
            return bool(await look.client.get(keys.watcher("default")) == second.worker_id.encode())

        await until(taken_over)
        await look.push_like_go(go_message("t"))
        await until(lambda: ran)
        go.set()


async def test_what_a_stopping_worker_was_told_of_is_for_another_one(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_watcher, "LOOK", 600.0)
    queues = [f"q{number}" for number in range(MOST_WATCHED + 1)]
    last, other = look.of(queues[-1]), "asynq:wake:other:0"
    app.task(name="t")(lambda: None)
    async with app.worker(queues) as worker, look.client.pubsub() as channel:
        await until(lambda: all_idle(look.client, 1, last.queue))
        await channel.subscribe(other)
        assert await channel.get_message(timeout=10)
        # Somebody has taken it out of those that are idle, and the message is on its way.
        ((own, _),) = await look.client.zrange(keys.idle(last.queue), 0, -1, withscores=True)
        await look.client.zrem(keys.idle(last.queue), own)
        await look.client.zadd(keys.idle(last.queue), {other: 1})
        await last.push_like_go(go_message("t", queue=last.queue))
        worker._roles.processor.stop()
        message = await channel.get_message(timeout=10)
        assert message["data"] == keys.queue_prefix(last.queue).encode()


async def test_sweeps_of_many_queues_visit_those_that_have_something(app: App, look: Look) -> None:
    queues = [f"q{number}" for number in range(100)]
    ran: list[str] = []

    @app.task(name="t")
    async def task() -> None:
        ran.append("t")

    async with app.worker(queues, forward_interval=0.3, **FAST):
        await until(lambda: all_idle(look.client, 1, queues[-1]))
        # What Go scheduled, and what a dead worker held, are found among all the empty ones.
        late, lost = go_message("t", task_id="late", queue="q40"), go_message("t", task_id="lost", queue="q70")
        for message, place in ((late, "scheduled"), (lost, "lease")):
            there = look.of(message.queue)
            fields = {"msg": encode_task(message), "state": "active" if place == "lease" else place}
            await look.client.hset(there.task(message.id), mapping=fields)
            await look.client.zadd(keys.queue_prefix(message.queue) + place, {message.id: time.time() - 60})
        await look.client.lpush(keys.active("q70"), "lost")
        await until(lambda: len(ran) == 2)
        await until(lambda: all_idle(look.client, 1, "q70"))
        await look.client.config_resetstat()
        await pause(1.2, proves="four looks for due tasks and four for leases do not visit every queue")
        calls = (await look.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert calls < 60, "about twenty, and not some hundred"
