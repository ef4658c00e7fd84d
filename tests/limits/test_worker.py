"""Limits with real workers: kept over all of them, without polling, and without holding up what is not limited."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.interop.go_peer import GoPeer
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App, ConfigError, Inspector, Limit

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


class Log:
    """What ran, when, and how many at once."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.starts: list[tuple[str, float]] = []

    async def run(self, key: str, seconds: float = 0.005) -> None:
        self.starts.append((key, time.monotonic()))
        self.running[key] = self.running.get(key, 0) + 1
        self.most[key] = max(self.most.get(key, 0), self.running[key])
        await asyncio.sleep(seconds)
        self.running[key] -= 1


async def empty(client: Any) -> bool:
    return not await client.keys("asynq:{default}:t:*")


async def test_per_type_per_key_and_per_queue(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.task(name="typed", limit=Limit(concurrency=3))
    async def typed() -> None:
        await log.run("typed")

    @app.task(name="keyed", limit=Limit(concurrency=1, per="key"))
    async def keyed(key: str) -> None:
        await log.run(key)

    @app.task(name="free")
    async def free() -> None:
        await log.run("free", 0.02)

    await app.enqueue_many([typed.call() for _ in range(60)])
    await app.enqueue_many([keyed.using(limit_key=f"k{n % 4}").call(f"k{n % 4}") for n in range(40)])
    await app.enqueue_many([free.call() for _ in range(20)])
    async with app.worker(concurrency=20), app.worker(concurrency=20):
        await until(lambda: empty(redis_client), what="the end of all tasks")
        assert await check_invariant(redis_client) == []
    assert log.most["typed"] == 3
    assert [log.most[f"k{n}"] for n in range(4)] == [1, 1, 1, 1]
    assert log.most["free"] > 3, "what has no limit is not held up"
    left = [name.decode() for name in await redis_client.keys("asynq:{default}:*")]
    assert not [name for name in left if ":slots:" in name or ":waiting:" in name or name.endswith(":limited")]
    await app.close()


async def test_a_queue_with_room_again_is_told_to_all(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.task(name="t")
    async def t() -> None:
        await log.run("t")

    app.limit("default", Limit(concurrency=2))
    await app.enqueue_many([t.call() for _ in range(100)])
    began = time.monotonic()
    async with app.worker(concurrency=10), app.worker(concurrency=10), app.worker(concurrency=10):
        await until(lambda: empty(redis_client), what="the end of all tasks")
    assert log.most["t"] == 2
    assert time.monotonic() - began < 11, "they wait for their leases to end instead of being told"
    await app.close()


async def test_what_go_enqueued_is_limited_too(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.handler("go:*", limit=Limit(concurrency=2))
    async def serve() -> None:
        await log.run("go")

    peer = GoPeer(redis_client)
    for n in range(20):
        await peer.enqueue(f"go:{n % 3}", b"")
    async with app.worker(concurrency=10):
        await until(lambda: empty(redis_client), what="the end of all tasks")
    assert log.most["go"] == 2
    await app.close()


async def test_a_rate_is_kept_and_used_up(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.task(name="t", limit=Limit(rate="20/200ms"))
    async def t() -> None:
        await log.run("t", 0)

    await app.enqueue_many([t.call() for _ in range(100)])
    began = time.monotonic()
    async with app.worker(concurrency=10), app.worker(concurrency=10):
        await until(lambda: empty(redis_client), what="the end of all tasks")
    times = [at for _, at in log.starts]
    assert times[-1] - began >= 0.8
    assert times[-1] - times[0] < 4.5, "0.8 s is what the rate allows; looking again every 5 s is not using it up"
    await app.close()


async def test_two_limits_that_are_both_used_up_do_not_send_tasks_to_and_fro(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.task(name="t", limit=[Limit(rate="20/200ms"), Limit(concurrency=2, per="key")])
    async def t(key: str) -> None:
        await log.run(key, 0.02)

    await app.enqueue_many([t.using(limit_key=f"k{n % 3}").call(f"k{n % 3}") for n in range(120)])
    began = time.monotonic()
    async with app.worker(concurrency=20), app.worker(concurrency=20):
        await until(lambda: empty(redis_client), what="the end of all tasks")
    times = [at for _, at in log.starts]
    assert max(log.most.values()) == 2
    assert times[-1] - began >= 1.0
    assert times[-1] - times[0] < 4.5, "1.0 s is what the rate allows"
    await app.close()


async def test_a_burst_ends_only_when_those_who_waited_are_done(url: str, redis_client: Any) -> None:
    app, log = App(url), Log()

    @app.task(name="t", limit=Limit(rate="5/100ms"))
    async def t() -> None:
        await log.run("t", 0)

    @app.task(name="o")
    async def o() -> None:
        await log.run("o", 0)

    await app.enqueue_many([t.call() for _ in range(20)])
    await app.enqueue_many([o.using(order_key="k").call() for _ in range(50)])
    async with app.worker(concurrency=10, burst=True) as worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert len(log.starts) == 70
    await app.close()


async def test_the_last_worker_to_start_says_what_the_limits_are(url: str, redis_client: Any) -> None:
    async def declared(limit: Limit | None, queue_limit: Any = "none given") -> dict[bytes, bytes]:
        app = App(url)
        app.task(name="t", limit=limit)(_nothing)
        if queue_limit != "none given":
            app.limit("default", queue_limit)
        async with app.worker():
            found: dict[bytes, bytes] = await redis_client.hgetall("asynq:{default}:limits")
        await app.close()
        return found

    assert await declared(Limit(concurrency=2), Limit(rate="9/s")) == {b"task:t": b"2 0 0", b"queue": b"0 9 1000"}
    assert await declared(Limit(concurrency=3)) == {b"task:t": b"3 0 0", b"queue": b"0 9 1000"}
    assert await declared(None) == {b"queue": b"0 9 1000"}, "an app that has the task and no limit for it takes it away"
    assert await declared(None, None) == {}


async def test_limits_that_redis_has_forgotten_are_declared_again(url: str, redis_client: Any) -> None:
    app = App(url)
    app.task(name="t", limit=Limit(concurrency=2))(_nothing)
    async with app.worker() as worker:
        await redis_client.delete("asynq:{default}:limits")
        await worker._roles.limiter.step()
        assert await redis_client.hgetall("asynq:{default}:limits") == {b"task:t": b"2 0 0"}
        await redis_client.hset("asynq:{default}:limits", "task:t", "7 0 0")
        await worker._roles.limiter.step()
        assert await redis_client.hget("asynq:{default}:limits", "task:t") == b"7 0 0", "a newer worker is right"
    await app.close()


async def _nothing() -> None: ...


async def test_the_inspector_shows_limits_and_removes_them(url: str, redis_client: Any) -> None:
    app = App(url)
    gate = asyncio.Event()

    @app.task(name="t", limit=[Limit(concurrency=1, rate="50/s"), Limit(concurrency=9, per="key")])
    async def t() -> None:
        await gate.wait()

    app.limit("default", Limit(rate="100/m"))
    async with app.worker(concurrency=5), Inspector.at(url) as inspector:
        await app.enqueue_many([t.call() for _ in range(4)])

        async def waiting() -> bool:
            return any(row.waiting == 3 for row in await inspector.limits("default"))

        await until(waiting, what="three that wait")
        rows = {row.scope: row for row in await inspector.limits("default")}
        counted = {"running": 1, "begun": 1, "waiting": 3}
        assert rows["task:t"].as_dict() == {
            "queue": "default", "scope": "task:t", "concurrency": 1, "rate": "50/s", **counted
        }  # fmt: skip
        assert (rows["queue"].rate, rows["queue"].begun) == ("100/m", 1)
        assert rows["task-key:t"].concurrency == 9
        with pytest.raises(ConfigError, match="did you mean 'task:t'"):
            await inspector.remove_limit("default", "task:tt")
        await inspector.remove_limit("default", "task:t")

        async def all_run() -> bool:
            return bool(await redis_client.llen("asynq:{default}:active") == 4)

        await until(all_run, what="all of them running")
        gate.set()
    await app.close()
