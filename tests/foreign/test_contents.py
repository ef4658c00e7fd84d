"""Keys of the right type whose values another program has changed: every number, every text, every score.

A worker has left what real work leaves. Then one change goes through all of it at once. Beside it good tasks run, no
role ends, and every view shows what is there or says why not.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.foreign.readers import ask_commands, ask_dashboard, ask_inspector
from tests.foreign.support import work_beside
from tests.support.servers import RealServer
from tests.support.waiting import forever, until
from veredus import App, Limit, current
from veredus.wire import keys

QUEUES = ("q", "kids")
WHOLE = {b"msg", b"state"}
"""Fields of a task that are changed elsewhere, in test_items.py."""
DIGITS = re.compile(rb"-?\d+(\.\d+)?")
WORDS = re.compile(rb"[a-zA-Z]+")


class Left(NamedTuple):
    """One key."""

    name: bytes
    kind: str
    value: Any


def _declare(app: App) -> None:
    @app.task(name="child", queue="kids", retention=600)
    async def child(n: int) -> int:
        return n

    @app.task(name="waiting_child", queue="kids")
    async def waiting_child() -> None:
        await current().wait_for("never")

    @app.task(name="parent", queue="q")
    async def parent() -> None:
        await current().step(_one)
        await current().gather("pages", [child.call(1), waiting_child.call()])

    @app.task(name="waits", queue="q")
    async def waits() -> None:
        await current().wait_for("shipped")

    @app.task(name="fails", queue="q", retry_delay=100)
    async def fails() -> None:
        raise ValueError("no")

    @app.task(name="limited", queue="q", limit=Limit(concurrency=1))
    async def limited() -> None:
        await forever()

    @app.task(name="long", queue="q")
    async def long() -> None:
        await current().progress(0.5, "half")
        await forever()


async def _one() -> int:
    return 1


async def _work(app: App) -> None:
    """Something of everything that a task may ask for."""
    tasks = app.tasks
    for name in ("waits", "fails", "parent"):
        await tasks[name].using(task_id=name).enqueue()
    await tasks["fails"].using(task_id="dies", max_retry=0).enqueue()
    await tasks["parent"].using(task_id="cancelled").enqueue()
    for number in range(3):
        await tasks["limited"].using(task_id=f"limited{number}").enqueue()
        await tasks["long"].using(task_id=f"ordered{number}", order_key="k").enqueue()
    await tasks["child"].using(queue="q", group="g", task_id="member").enqueue(5)
    await tasks["child"].using(queue="q", unique_for=600, delay=100, task_id="unique").enqueue(5)


async def _leave(server: RealServer) -> list[Left]:
    """What a worker and a scheduler in the middle of their work have in Redis."""
    async with App(server.url) as app:
        _declare(app)
        app.schedule("@every 1s", app.tasks["child"].call(0))
        with server.client() as client:

            async def is_there() -> bool:
                waits = client.zcard(keys.waits("q")) == 3 and client.zcard(keys.waits("kids")) == 2
                stats = client.keys(keys.error_minutes("q", "*")) and client.keys(keys.type_minutes("kids", "*"))
                ticks = client.keys(keys.scheduler_history("*"))
                running = [client.hlen(name) for name in client.keys("asynq:workers:*")]
                return bool(waits and stats and ticks and running == [2])

            async with app.scheduler(), app.worker(list(QUEUES), lease=1.5, shutdown_timeout=0.1):
                await _work(app)
                await until(is_there, what="all that shall be left")
                record = json.dumps(["archive", [["pages", '2 0a [["kids", 2, true]]']]])
                client.hset(keys.orphans("q"), "cancelled mark", record)
                client.hset(keys.JUDGED, "worker", 3)
                left = [read_key(client, name) for name in client.keys("*")]
            client.flushall()
    return left


def read_key(client: Any, name: bytes) -> Left:
    kind = client.type(name).decode()
    if kind == "string":
        return Left(name, kind, client.get(name))
    if kind == "list":
        return Left(name, kind, client.lrange(name, 0, -1))
    if kind == "set":
        return Left(name, kind, list(client.smembers(name)))
    if kind == "zset":
        return Left(name, kind, dict(client.zrange(name, 0, -1, withscores=True)))
    return Left(name, kind, client.hgetall(name))


Change = Callable[[bytes], bytes]


def _write(client: Any, left: Left, change: Change, score: str | None) -> None:
    name, kind, value = left
    if kind == "string":
        client.set(name, change(value))
    elif kind == "list":
        client.rpush(name, *value)
    elif kind == "set":
        client.sadd(name, *value)
    elif kind == "zset":
        is_due = name in {keys.waits(queue).encode() for queue in QUEUES}
        scores = {one: 0 if is_due else at for one, at in value.items()}
        client.zadd(name, scores if score is None else dict.fromkeys(value, score))
    else:
        client.hset(name, mapping={field: one if field in WHOLE else change(one) for field, one in value.items()})


def _numbers(instead: bytes) -> Change:
    return lambda value: DIGITS.sub(instead, value)


NUMBERS = ("9223372036854775807", "-9223372036854775808", "-1", "0", "nan", "inf", "1e300", "0.5", "²", "1 2")
CHANGES: dict[str, Change] = {
    **{f"numbers are {number}": _numbers(number.encode()) for number in NUMBERS},
    "numbers are long": _numbers(b"9" * 5000),
    "empty": lambda value: b"",
    "one byte": lambda value: b"\xff",
    "cut": lambda value: value[: len(value) // 2],
    "words are null": lambda value: WORDS.sub(b"null", value),
    "words are bytes": lambda value: WORDS.sub(b"\xff\x00", value),
    "an empty list": lambda value: b"[]",
    "an empty object": lambda value: b"{}",
    "nested": lambda value: b"[" * 2000,
    "repeated": lambda value: value + b" " + value,
}
SCORES = ("inf", "-inf", "0", "-1", "0.5", "1e300", "9223372036854775807", "-9223372036854775808")


@pytest.fixture(scope="module")
def left() -> list[Left]:
    server = RealServer("valkey")
    try:
        return asyncio.run(_leave(server))
    finally:
        server.close()


def _play(server: RealServer, left: list[Left], change: Change, score: str | None) -> None:
    async def damage(app: App) -> None:
        _declare(app)
        with server.client() as client:
            for one in left:
                _write(client, one, change, score)
        await look(app)

    async def look(app: App) -> None:
        await ask_inspector(app, [*QUEUES, "good"])
        await ask_dashboard(app, QUEUES)

    asyncio.run(work_beside(server.url, QUEUES, damage, after=look))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_values_that_another_program_has_changed(
    valkey_server: RealServer, left: list[Left], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    _play(valkey_server, left, change, None)
    ask_commands(valkey_server.url, ["q"], monkeypatch)


@pytest.mark.parametrize("score", SCORES)
def test_scores_that_another_program_has_changed(valkey_server: RealServer, left: list[Left], score: str) -> None:
    """In every sorted set, also in those that are no containers of tasks."""
    _play(valkey_server, left, lambda value: value, score)
