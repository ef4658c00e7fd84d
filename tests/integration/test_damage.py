"""One bad item never stops the rest: damaged tasks and damaged containers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.waiting import until
from veredus import App
from veredus.events import ItemDropped
from veredus.wire import keys

GARBAGE = b"\xff\xfe not protobuf"


async def _undecodable(look: Look) -> None:
    await look.client.hset(look.task("bad"), mapping={"msg": GARBAGE, "state": "pending", "pending_since": 1})


async def _dangling(look: Look) -> None:
    pass  # an id without a hash


async def _stub(look: Look) -> None:
    await look.client.hset(look.task("bad"), "state", "pending")


async def _wrong_type(look: Look) -> None:
    await look.client.set(look.task("bad"), "a string")


@pytest.mark.parametrize(
    ("plant", "reason"),
    [(_undecodable, "undecodable"), (_dangling, "dangling"), (_stub, "dangling"), (_wrong_type, "wrongtype")],
)
async def test_a_damaged_task_is_put_aside_told_once_and_the_rest_runs(
    app: App, redis_client: Any, plant: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    look = Look(redis_client)
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    await note.enqueue(1)
    await plant(look)
    await redis_client.lpush(keys.pending("default"), "bad")
    await note.enqueue(2)
    events: list[Any] = []
    worker = app.worker(**FAST)
    worker.bus.subscribe(events.append)
    with caplog.at_level(logging.WARNING):
        async with worker:
            await until(lambda: ran == [1, 2])
            await until(lambda: [event for event in events if isinstance(event, ItemDropped)])
            if reason == "undecodable":
                message = await look.ends("bad", "archived")
                assert message is not None
                assert (message.id, message.queue, message.payload) == ("bad", "default", GARBAGE)
                assert "not a TaskMessage" in message.error_msg
                assert (await look.fields("bad"))["original"] == GARBAGE
            await asyncio.sleep(0.4)
    dropped = [event for event in events if isinstance(event, ItemDropped)]
    assert dropped == [ItemDropped("default", "bad", reason)]
    assert len([record for record in caplog.records if "task bad" in record.getMessage()]) == 1
    assert await look.pending() == []
    assert await look.active() == []


@pytest.mark.parametrize("container", ["pending", "active", "lease", "scheduled", "retry", "due", "completed"])
async def test_a_damaged_queue_does_not_slow_another(
    app: App, redis_client: Any, container: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    @app.task(queue="good")
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(queue="damaged")
    async def other() -> None: ...

    await redis_client.sadd(keys.QUEUES, "damaged")
    await redis_client.set(keys.queue_prefix("damaged") + container, "a string")
    async with app.worker(["damaged", "good"], **{**FAST, "janitor_interval": 0.3, "forward_interval": 0.3}):
        before = (await redis_client.info("stats"))["total_commands_processed"]
        for n in range(10):
            await note.enqueue(n)
            await note.using(delay=0.02).enqueue(100 + n)
            await until(lambda n=n: 100 + n in ran and n in ran)
        await asyncio.sleep(0.7)
        after = (await redis_client.info("stats"))["total_commands_processed"]
    assert after - before < 1500, "no loop may spin on the damage"
    lines = [record for record in caplog.records if "damaged" in record.getMessage() and record.levelno >= 30]
    assert len(lines) <= 6, [record.getMessage() for record in lines]


async def test_an_id_that_stands_twice_runs_once(app: App, redis_client: Any) -> None:
    look, ran = Look(redis_client), []

    @app.task
    async def note() -> None:
        ran.append(1)
        await asyncio.sleep(0.1)

    handle = await note.enqueue()
    await redis_client.lpush(keys.pending("default"), handle.id)
    async with app.worker(**FAST):
        await look.ends(handle.id, "gone")
        await asyncio.sleep(0.1)
    assert ran == [1]
    assert await look.pending() == []
