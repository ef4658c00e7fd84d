"""One bad item never stops the rest: damaged tasks and damaged containers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.waiting import pause, until
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
            await pause(0.4, proves="it is told once: several rounds later there is no second word of it")
    dropped = [event for event in events if isinstance(event, ItemDropped)]
    assert dropped == [ItemDropped("default", "bad", reason)]
    assert len([record for record in caplog.records if "task bad" in record.getMessage()]) == 1
    assert await look.pending() == []
    assert await look.active() == []


@pytest.mark.parametrize("container", ["pending", "active", "lease", "scheduled", "retry", "due", "completed"])
async def test_a_damaged_queue_does_not_slow_another(
    app: App, redis_client: Any, container: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Compared with the same worker's work after the repair, on the same machine."""
    ran: list[int] = []

    @app.task(queue="good")
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(queue="damaged")
    async def other() -> None: ...

    async def work() -> float:
        """Ten tasks at once and ten with a delay, one after the other; the seconds that it takes."""
        began = time.monotonic()
        for count in range(2, 22, 2):
            await note.enqueue(count)
            await note.using(delay=0.02).enqueue(count)
            await until(lambda: len(ran) == count)  # noqa: B023 - awaited at once
        ran.clear()
        return time.monotonic() - began

    async def commands_per_second() -> float:
        began, before = time.monotonic(), (await redis_client.info("stats"))["total_commands_processed"]
        await pause(0.5, proves="no loop spins while there is nothing to do")
        after = (await redis_client.info("stats"))["total_commands_processed"]
        return float(after - before) / (time.monotonic() - began)

    damaged = keys.queue_prefix("damaged") + container
    await redis_client.sadd(keys.QUEUES, "damaged")
    await redis_client.set(damaged, "a string")
    began = time.monotonic()
    async with app.worker(["damaged", "good"], **{**FAST, "janitor_interval": 0.3, "forward_interval": 0.3}):
        seconds, rate = await work(), await commands_per_second()
        lines = [record for record in caplog.records if "damaged" in record.getMessage() and record.levelno >= 30]
        periods = 1 + (time.monotonic() - began) // 3  # at most one line of a kind in three seconds
        await redis_client.delete(damaged)
        usual_seconds, usual_rate = await work(), await commands_per_second()
    assert seconds < 5 * usual_seconds + 3
    assert rate < 3 * usual_rate + 100, "no loop may spin on the damage"
    told = Counter(record.getMessage().partition(":")[0] for record in lines)
    assert all(count <= periods for count in told.values()), told


async def test_an_id_that_stands_twice_runs_once(app: App, redis_client: Any) -> None:
    look, ran, release = Look(redis_client), [], asyncio.Event()

    @app.task
    async def note() -> None:
        ran.append(1)
        await release.wait()

    handle = await note.enqueue()
    await redis_client.lpush(keys.pending("default"), handle.id)
    async with app.worker(**FAST):
        await until(lambda: ran)
        await pause(0.1, proves="the second does not run beside the first")
        release.set()
        await look.ends(handle.id, "gone")
        await pause(0.1, proves="nor after it")
    assert ran == [1]
    assert await look.pending() == []
