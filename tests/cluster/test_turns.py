"""Order per key, limits and the semaphore in a cluster: all keys of a queue are on one node."""

from __future__ import annotations

import asyncio

from tests.support.clusters import Nodes
from tests.support.waiting import until
from veredus import App, Limit, current


async def test_lanes_and_limits_on_every_node(nodes: Nodes) -> None:
    app = App(nodes.url)
    queues = [f"q{n}" for n in range(6)]
    done: dict[str, list[int]] = {queue: [] for queue in queues}
    running, most, tokens = 0, 0, []
    semaphore = app.semaphore("shared", 100)

    @app.task(name="ordered")
    async def ordered(queue: str, n: int) -> None:
        done[queue].append(n)

    @app.task(name="limited", queue="q0", limit=[Limit(concurrency=2), Limit(rate="1000/s", per="key")])
    async def limited() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        tokens.append(await semaphore.acquire())
        await asyncio.sleep(0.01)
        running -= 1
        assert current().queue == "q0"

    async with app:
        for queue in queues:
            await app.enqueue_many([ordered.using(queue=queue, order_key="k").call(queue, n) for n in range(20)])
        await app.enqueue_many([limited.using(limit_key="l").call() for _ in range(20)])
        async with app.worker(queues=queues, concurrency=20):
            await until(lambda: len(tokens) == 20 and all(len(numbers) == 20 for numbers in done.values()))
    assert done == {queue: list(range(20)) for queue in queues}
    assert (most, tokens) == (2, [True] * 20)
