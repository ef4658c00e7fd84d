"""Many members of many groups, concurrent producers of both kinds, several workers: each member in exactly one task."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

from tests.groups.support import GroupQueue
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, Call, Job
from veredus.store.store import Store

pytestmark = VALKEY_ONLY

MEMBERS, GROUPS = 500, 20


def make_app(url: str, seen: list[tuple[str, list[int]]], rng: random.Random) -> App:
    app = App(url, queue="q")

    @app.task(name="summary", payload="raw")
    async def summary(payload: bytes) -> None:
        group, numbers = json.loads(payload)
        seen.append((group, numbers))

    @app.aggregate("g*", grace=1, max_delay=3, max_size=30)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        await asyncio.sleep(rng.random() * 0.02)
        if rng.random() < 0.2:
            raise RuntimeError("now and then")
        return summary.call(json.dumps([group, [job.json() for job in jobs]]).encode())

    return app


async def test_each_member_in_exactly_one_aggregate(
    url: str, store: Store, redis_client: Any, look: Look, monkeypatch: Any
) -> None:
    from veredus.model import grouping

    monkeypatch.setattr(grouping, "MAX_BACKOFF", 0.2)
    rng = random.Random(7)
    seen: list[tuple[str, list[int]]] = []
    apps = [make_app(url, seen, rng) for _ in range(3)]
    go = GroupQueue(store.redis, redis_client)

    async def produce(app: App, numbers: range) -> None:
        for n in numbers:
            group = f"g{n % GROUPS}"
            if n % 5 == 0:
                now, _ = await redis_client.time()
                await go.add_like_go(group, f"go-{n}", at=now, payload=str(n).encode())
            else:
                options: dict[str, Any] = {"delay": 0.3} if n % 7 == 0 else {}
                await app.enqueue("item", n, group=group, **options)
            await asyncio.sleep(rng.random() * 0.01)

    workers = [app.worker({"q": 1}, concurrency=5) for app in apps]
    for worker in workers:
        await worker.start()
    slices = [range(start, MEMBERS, 8) for start in range(8)]
    await asyncio.gather(*[produce(apps[i % 3], numbers) for i, numbers in enumerate(slices)])
    await until(lambda: sum(len(numbers) for _, numbers in seen) >= MEMBERS)
    for worker in workers:
        await worker.stop()
    for app in apps:
        await app.close()
    counts = Counter(n for _, numbers in seen for n in numbers)
    assert counts == Counter(range(MEMBERS))
    assert all(n % GROUPS == int(group[1:]) for group, numbers in seen for n in numbers)
    assert max(len(numbers) for _, numbers in seen) <= 30
    assert await redis_client.keys("asynq:{q}:[gau]*") == await redis_client.keys("asynq:{q}:t:*") == []


async def test_a_thousand_groups_of_which_none_is_ripe_cost_few_calls(app: App, look: Look) -> None:
    @app.aggregate("*", grace=60)
    def digest(group: str, jobs: list[Job]) -> Call[Any]:
        raise AssertionError

    await app.enqueue_many(Call("item", b"1", app._defaults.merged({"group": f"g{n}"})) for n in range(1000))

    async def quiet() -> bool:
        """Not at the start: each group is looked at once."""
        await look.client.config_resetstat()
        began = time.monotonic()
        await pause(2.5, proves="the groups are looked at when they are ripe, not again and again")
        calls = (await look.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        return bool(calls < 12 * (time.monotonic() - began))

    async with app.worker():
        await until(quiet, what="a time with few calls")
