"""Order keys with real workers and clients: options, batches, results, and a Go worker on the same queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.interop.go_peer import GoPeer
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App, ConfigError, Inspector, OrderKeyNotHeld, QueueNotFound, SkipRetry

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


async def left(client: Any) -> int:
    return len(await client.keys("asynq:{default}:t:*"))


async def test_in_order_through_failures_and_two_workers(url: str, redis_client: Any) -> None:
    app = App(url)
    done: dict[str, list[int]] = {}
    running: set[str] = set()

    @app.task(name="t", retry_delay=0.01)
    async def t(key: str, n: int, fails: bool) -> None:
        assert key not in running
        running.add(key)
        await asyncio.sleep(0.001)
        running.discard(key)
        if fails and n not in failed:
            failed.add(n)
            raise RuntimeError("told to")
        done.setdefault(key, []).append(n)

    failed: set[int] = set()
    calls = [t.using(order_key=f"k{n % 5}").call(f"k{n % 5}", n, n % 9 == 4) for n in range(1200)]
    handles = await app.enqueue_many(calls)
    assert all(handle.created for handle in handles)
    async with app.worker(concurrency=10), app.worker(concurrency=10):

        async def ended() -> bool:
            return not await left(redis_client)

        await until(ended, what="the end of all tasks")
    assert done == {f"k{k}": list(range(k, 1200, 5)) for k in range(5)}
    assert len(failed) > 100
    assert await check_invariant(redis_client) == []
    await app.close()


async def test_one_call_after_the_other_keeps_its_order(url: str) -> None:
    app = App(url)
    done: list[int] = []

    @app.task(name="t", order_key="only")
    async def t(n: int) -> int:
        done.append(n)
        return n

    async with app.worker(concurrency=10):
        handles = [await t.enqueue(n) for n in range(30)]
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == list(range(30))
    assert done == list(range(30))
    await app.close()


async def test_hold_and_release(url: str, redis_client: Any) -> None:
    app = App(url)
    done: list[int] = []

    @app.task(name="t", order_key="k", order_hold=True)
    async def t(n: int) -> None:
        if n == 1:
            raise SkipRetry("broken")
        done.append(n)

    async with app.worker(), Inspector.at(url) as inspector:
        await app.enqueue_many([t.call(n) for n in range(4)])

        async def held() -> bool:
            return bool(await inspector.order_keys("default", held=True))

        await until(held, what="a lane that is held up")
        assert done == [0]
        with pytest.raises(OrderKeyNotHeld, match="did you mean 'k'"):
            await inspector.release_order_key("default", "kk")
        with pytest.raises(QueueNotFound):
            await inspector.release_order_key("defoult", "k")
        await inspector.release_order_key("default", "k")

        async def went_on() -> bool:
            return done == [0, 2, 3]

        await until(went_on, what="the others")
    await app.close()


async def test_a_go_worker_on_the_same_queue_stops_no_lane(url: str, redis_client: Any) -> None:
    """It takes the first of a lane and finishes it; our sweep gives the turn to the next."""
    app = App(url)
    done: list[int] = []

    @app.task(name="t", order_key="k")
    async def t(n: int) -> None:
        done.append(n)

    await app.enqueue_many([t.call(n) for n in range(5)])
    peer = GoPeer(redis_client)
    message = await peer.dequeue()
    assert message is not None
    assert await peer.dequeue() is None, "a Go worker sees only the first"
    await peer.done(message)
    async with app.worker(sweep=0.2):

        async def ended() -> bool:
            return done == [1, 2, 3, 4]

        await until(ended, what="the others")
    await app.close()


def test_what_does_not_go_together() -> None:
    app = App("redis://localhost")
    with pytest.raises(ConfigError, match="order_key"):
        app.task(order_key="k", group="g")(lambda: None)
    with pytest.raises(ConfigError, match="order_key"):
        app.task(order_key=" ")(lambda: None)
    with pytest.raises(ConfigError, match="order_hold"):
        app.task(order_hold="yes")(lambda: None)  # type: ignore[call-overload]
