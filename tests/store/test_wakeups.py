"""What wakes a sleeping worker: a plain push by anybody, and messages on channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus.errors import ConnectionLost
from veredus.store.store import Store, Subscription, Watch, connect


async def blocked(client: Any, count: int) -> bool:
    return bool((await client.info("clients"))["blocked_clients"] == count)


async def test_a_plain_push_wakes_every_waiting_worker_and_changes_nothing(store: Store, redis_client: Any) -> None:
    watches = [Watch(store.redis, "q") for _ in range(5)]
    waits = [asyncio.ensure_future(watch.wait(PATIENCE)) for watch in watches]
    await until(lambda: blocked(redis_client, 5))
    await redis_client.lpush("asynq:{q}:pending", "a", "b", "c")
    assert await asyncio.gather(*waits) == [b"a"] * 5
    assert await redis_client.lrange("asynq:{q}:pending", 0, -1) == [b"c", b"b", b"a"]
    for watch in watches:
        watch.close()


async def test_what_is_there_already_is_seen_at_once_and_nothing_after_the_time(
    store: Store, redis_client: Any
) -> None:
    watch = Watch(store.redis, "q")
    assert await watch.wait(0.05) is None
    await redis_client.lpush("asynq:{q}:pending", "a")
    assert await watch.wait(PATIENCE) == b"a"
    watch.close()


async def test_a_watch_opens_anew_after_its_connection_broke(new_server: Callable[..., RealServer]) -> None:
    server = new_server()
    redis = connect(server.url)
    watch = Watch(redis, "q")
    waiting = asyncio.ensure_future(watch.wait(PATIENCE))
    client = server.client()
    await until(lambda: asyncio.to_thread(lambda: client.info("clients")["blocked_clients"] == 1))
    server.kill()
    with pytest.raises(ConnectionLost):
        await waiting
    await asyncio.to_thread(server.start)
    server.client().lpush("asynq:{q}:pending", "a")
    assert await watch.wait(PATIENCE) == b"a"
    watch.close()


async def test_messages_of_all_channels_arrive_in_order(store: Store, redis_client: Any) -> None:
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    subscription = Subscription(store.redis, ["one", "two"], lambda *message: heard.put_nowait(message))
    await subscription.open(lambda: None)
    await subscription.ping()
    for i in range(20):
        await redis_client.publish("one" if i % 2 else "two", f"{i}")
    await redis_client.publish("three", "x")
    async with asyncio.timeout(PATIENCE):
        messages = [await heard.get() for _ in range(20)]
    assert messages == [("one" if i % 2 else "two", str(i).encode()) for i in range(20)]
    await subscription.ping()
    subscription.close()
    assert heard.empty()


async def test_a_broken_subscription_says_so_once_and_a_closed_one_does_not(store: Store, redis_client: Any) -> None:
    closed = asyncio.Event()
    calls = []

    def on_close() -> None:
        calls.append(1)
        closed.set()

    subscription = Subscription(store.redis, ["one"], lambda *_: None)
    await subscription.open(on_close)
    await redis_client.client_kill_filter(_type="pubsub")
    await until(closed.is_set)
    with pytest.raises(ConnectionLost):
        await subscription.ping()
    await subscription.open(on_close)
    await subscription.ping()
    subscription.close()
    assert calls == [1]


async def test_the_end_of_a_connection_is_told_once(store: Store) -> None:
    connection = await store.redis.open("")
    told: list[bool] = []
    connection.on_close = lambda: told.append(connection.alive)
    connection.close()
    await pause(0.05, proves="what asyncio says of the end is no second one")
    assert told == [False]
