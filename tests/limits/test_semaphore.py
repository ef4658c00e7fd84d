"""Asynq's semaphore: its key, its members, its scores, from Python."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.servers import VALKEY_ONLY
from tests.support.timed import at
from tests.support.waiting import until
from veredus import App, ConfigError, current
from veredus.store.store import Store
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
    assert (first, second, released, again) == (True, False, True, False)
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


@pytest.mark.parametrize(("scope", "most"), [("", 1), (" ", 1), ("s", 0), ("s", True), ("s", "5")])
def test_wrong_arguments(scope: Any, most: Any) -> None:
    with pytest.raises(ConfigError):
        App("redis://localhost").semaphore(scope, most)


async def test_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match="inside a handler"):
        await App("redis://localhost").semaphore("s", 1).acquire()
