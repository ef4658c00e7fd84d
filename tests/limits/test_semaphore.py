"""Asynq's semaphore: its key, its members, its scores, from Python."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.faults import PAIRS, REPLY_CUT, REPLY_LOST, REQUEST_LOST, Aim, Fault, faults_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.timed import at
from tests.support.waiting import until
from veredus import App, ConfigError, current
from veredus.errors import ConnectionLost
from veredus.store.store import Store, connect
from veredus.store.tasks.limits import LimitStore

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]
KEY = "asynq:sema:smtp"


async def test_a_handler_takes_a_token_until_its_deadline(url: str, redis_client: Any) -> None:
    app = App(url)
    semaphore = app.semaphore("smtp", 1)
    seen: list[Any] = []

    @app.task(name="t", timeout=100)
    async def t() -> None:
        seen.append(await semaphore.acquire())
        seen.append(await semaphore.acquire())
        seen.append((current().id, await redis_client.zrange(KEY, 0, -1, withscores=True)))
        seen.append(await semaphore.release())
        seen.append(await semaphore.release())

    async with app.worker():
        await t.enqueue()

        async def ended() -> bool:
            return len(seen) == 5

        await until(ended, what="the end")
    first, second, (task_id, [(member, score)]), released, again = seen
    assert (first, second, released, again) == (True, True, True, False)
    assert member.decode() == task_id
    assert score == int(score)
    assert 90 < score - time.time() <= 101
    await app.close()


async def test_what_go_took_counts_and_lapses(store: Store, redis_client: Any) -> None:
    limits = LimitStore(at(store.redis, 1_700_000_000_500))
    await redis_client.zadd(KEY, {"go-task": 1_700_000_000})
    assert await limits.acquire("smtp", 1, "ours", 1_700_000_100) is False
    limits = LimitStore(at(store.redis, 1_700_000_001_000))
    assert await limits.acquire("smtp", 1, "ours", 1_700_000_100) is True
    assert await redis_client.zrange(KEY, 0, -1) == [b"ours"]


async def test_a_task_that_asks_again_keeps_its_token(store: Store, redis_client: Any) -> None:
    limits = LimitStore(at(store.redis, 1_700_000_000_000))
    for deadline in (1_700_000_100, 1_700_000_200):  # of two attempts
        assert await limits.acquire("smtp", 1, "ours", deadline) is True
        assert await limits.acquire("smtp", 1, "another", deadline) is False
        assert await redis_client.zrange(KEY, 0, -1, withscores=True) == [(b"ours", float(deadline))]


@pytest.mark.parametrize("fault", [REQUEST_LOST, REPLY_LOST, REPLY_CUT, *PAIRS[:1]], ids=lambda fault: fault.name)
async def test_a_lost_reply_takes_one_token(server: RealServer, redis_client: Any, fault: Fault) -> None:
    deadline = int(time.time()) + 100
    async with faults_before(server.socket) as proxy:
        behind = Store(connect(proxy.url, timeout=fault.timeout))
        limits = LimitStore(behind.redis)
        proxy.let(fault, Aim("limit-acquire"))
        if fault.then is None:
            assert await limits.acquire("smtp", 1, "ours", deadline) is True
        else:  # a connection that breaks twice is an error, and the task asks again when it is retried
            with pytest.raises(ConnectionLost):
                await limits.acquire("smtp", 1, "ours", deadline)
            proxy.calm()
            assert await limits.acquire("smtp", 1, "ours", deadline) is True
        assert proxy.happened
        assert await redis_client.zrange(KEY, 0, -1) == [b"ours"]
        await behind.close()


@pytest.mark.parametrize(("scope", "most"), [("", 1), (" ", 1), ("s", 0), ("s", True), ("s", "5")])
def test_wrong_arguments(scope: Any, most: Any) -> None:
    with pytest.raises(ConfigError):
        App("redis://localhost").semaphore(scope, most)


async def test_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match="inside a handler"):
        await App("redis://localhost").semaphore("s", 1).acquire()
