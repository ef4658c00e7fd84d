"""A slow connection to the server: what takes long is not taken for lost, and batches are not too large for it."""

from __future__ import annotations

import pytest

from tests.integration.support import Look
from tests.support import sizes
from tests.support.proxy import proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, ConnectionLost
from veredus.model.pools import FreeSlots
from veredus.store.store import Store, connect
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.work import MOST_BYTES, Batch, DequeueRequest, Work

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


async def test_large_tasks_run_over_a_slow_link(server: RealServer, look: Look) -> None:
    """All that the worker has slots for would need longer than the server may take to answer."""
    ran: list[int] = []
    async with proxy_before(server.socket) as proxy:
        app, producer = App(proxy.url), App(server.url)

        @app.task(name="large")
        async def large(number: int, ballast: str) -> str:
            ran.append(number)
            return ballast[:40_000]

        for number in range(40):
            await producer.enqueue("large", {"number": number, "ballast": "x" * 90_000})
        proxy.rate = 500_000
        async with app.worker(lease=6, sweep=0.5, concurrency=100) as worker:
            await until(lambda: len(ran) == 40)
            proxy.rate = 0
            await until(lambda: not worker._in_flight.held() and worker._execution.syncer.idle)
        assert ran == list(range(40)), "each once"
        assert len(await look.scores("completed")) == 40
        await app.close()
        await producer.close()


async def test_the_largest_payloads_are_taken_over_a_slow_link(server: RealServer, look: Look) -> None:
    """Slots for a hundred of them: all at once would take longer than any reply may."""
    ran: list[int] = []
    count = sizes.size(8, 100)
    async with proxy_before(server.socket) as proxy:
        app, producer = App(proxy.url), App(server.url)

        @app.task(name="large")
        async def large(number: int, ballast: str) -> None:
            ran.append(number)

        for number in range(count):
            await producer.enqueue("large", {"number": number, "ballast": "x" * 900_000})
        proxy.rate = 4_000_000
        async with app.worker(concurrency=100) as worker:
            await until(lambda: len(ran) == count, seconds=2 * PATIENCE)
            proxy.rate = 0
            await until(lambda: not worker._in_flight.held() and worker._execution.syncer.idle)
        assert ran == list(range(count)), "each once"
        assert (await look.pending(), await look.active()) == ([], [])
        await app.close()
        await producer.close()


@pytest.mark.parametrize("size", [10, 400_000, 2 * MOST_BYTES])
async def test_a_dequeue_hands_out_so_many_bytes_but_always_one_task(store: Store, size: int) -> None:
    await store.intake.add_many("q", [NewTask(f"t{number}", b"x" * size) for number in range(5)])
    work, taken = Work(store.redis, "w", lease_ms=60_000), []
    while rows := (await work.dequeue("q", 5)).rows:
        taken.append([task_id for task_id, _ in rows])
    names = [f"t{number}" for number in range(5)]
    share = {10: 5, 400_000: 2, 2 * MOST_BYTES: 1}[size]
    assert taken == [names[first : first + share] for first in range(0, 5, share)]


async def test_several_queues_share_the_bytes_of_one_answer(store: Store) -> None:
    for queue in ("a", "b"):
        await store.intake.add_many(queue, [NewTask(f"{queue}{number}", b"x" * 300_000) for number in range(3)])
    work = Work(store.redis, "w", lease_ms=60_000)
    batches = await work.dequeue_each([DequeueRequest(queue, 3, FreeSlots(3, 3, 3)) for queue in ("a", "b")])
    assert all(isinstance(batch, Batch) and len(batch.rows) == 1 for batch in batches)


async def test_an_answer_that_is_still_coming_is_waited_for(server: RealServer) -> None:
    async with proxy_before(server.socket) as proxy:
        redis = connect(proxy.url, timeout=0.5)
        await redis.command("SET", "k", b"x" * 600_000, key="k")
        proxy.rate = 300_000
        assert len(await redis.command("GET", "k", key="k")) == 600_000
        await redis.close()


async def test_what_is_still_being_sent_is_waited_for(server: RealServer) -> None:
    async with proxy_before(server.socket) as proxy:
        redis = connect(proxy.url, timeout=2.0)
        await redis.command("PING", key="")
        proxy.rate = 4_000_000
        assert await redis.command("SET", "k", b"x" * 12_000_000, key="k") == b"OK"
        await redis.close()


async def test_an_answer_that_stops_in_the_middle_is_lost(server: RealServer) -> None:
    async with proxy_before(server.socket) as proxy:
        redis = connect(proxy.url, timeout=0.5)
        await redis.command("SET", "k", b"x" * 600_000, key="k")
        proxy.rate = 2_000  # the next part of the answer comes after two seconds
        with pytest.raises(ConnectionLost, match="did not answer in time"):
            await redis.command("GET", "k", key="k")
        await redis.close()
