"""What stays after a success: results, retention, and the janitor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ("text", b'"text"'),
        (0, b"0"),
        (False, b"false"),
        ([], b"[]"),
        (b"\x00raw", b"\x00raw"),
        (b"", b""),
        (Point(1, 2), b'{"x":1,"y":2}'),
    ],
)
async def test_a_result_is_kept_as_json_and_bytes_as_they_are(app: App, look: Look, value: Any, stored: bytes) -> None:
    @app.task
    async def give() -> Any:
        return value

    async with app.worker(**FAST):
        handle = await give.enqueue()
        message = await look.ends(handle.id, "completed")
    assert message is not None
    assert (await look.fields(handle.id))["result"] == stored
    assert message.retention == 600
    assert abs(message.completed_at - time.time()) < 30


@pytest.mark.parametrize(
    ("retention", "result_ttl", "kept"), [(None, 30, 30), (5, 30, 5), (90, 30, 90), (timedelta(hours=1), 30, 3600)]
)
async def test_a_result_is_kept_as_long_as_its_retention_says_or_else_the_app(
    url: str, look: Look, retention: Any, result_ttl: float, kept: int
) -> None:
    app = App(url, result_ttl=result_ttl)

    @app.task(retention=retention)
    async def give() -> int:
        return 1

    async with app.worker(**FAST):
        handle = await give.enqueue()
        message = await look.ends(handle.id, "completed")
    assert message is not None
    assert message.retention == kept
    assert abs((await look.scores("completed"))[handle.id] - time.time() - kept) < 30
    await app.close()


async def test_completed_tasks_are_cleared_when_their_time_is_over(app: App, look: Look) -> None:
    @app.task(retention=1)
    async def brief() -> None: ...

    @app.task(retention=3600)
    async def long() -> None: ...

    async with app.worker(**FAST, janitor_interval=0.2):
        short, kept = await brief.enqueue(), await long.enqueue()
        await look.ends(short.id, "completed")
        await look.ends(short.id, "gone")
        assert await look.state(kept.id) == "completed"
    assert list(await look.scores("completed")) == [kept.id]


async def test_the_janitor_clears_queues_that_nobody_serves_and_more_than_one_batch(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    other = look.of("other")
    await look.client.sadd(keys.QUEUES, "other")
    past = int(time.time()) - 10
    async with look.client.pipeline() as pipe:
        for n in range(1200):
            pipe.zadd(keys.completed("other"), {f"t{n}": past})
            pipe.hset(other.task(f"t{n}"), mapping={"msg": b"", "state": "completed"})
        await pipe.execute()
    async with app.worker(**FAST, janitor_interval=3600):  # one round has to be enough

        async def cleared() -> bool:
            return not await other.scores("completed")

        await until(cleared)
    assert await other.scores("completed") == {}
    assert await look.client.keys(keys.task_prefix("other") + "*") == []
