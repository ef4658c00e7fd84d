"""Workers that die, and a server that changes under those that live, on a cluster and behind Sentinel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from tests.cluster.conftest import Place
from tests.support.clusters import Nodes
from tests.support.mortal import Mortal
from tests.support.sentinels import Sentinels
from tests.support.servers import RealServer
from tests.support.waiting import pause, until
from veredus import App, current
from veredus.model import absences
from veredus.store.connection.slot_map import slot_of
from veredus.wire import keys
from veredus.worker import liveness
from veredus.worker.worker import Worker

FOREVER = 600.0
"""A lease that does not end in this test."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "PATIENCE", absences.PATIENCE / 10)
    monkeypatch.setattr(absences, "INTERVAL", absences.INTERVAL / 10)
    monkeypatch.setattr(liveness, "IDLE", 0.3)


def seen(worker: Worker) -> set[str]:
    return set(worker._heartbeater.liveness._absences._seen)


def subscribed(server: RealServer, *workers: Worker) -> bool:
    """Whether all of them show there that they live."""
    counts = server.client().pubsub_numsub(*[keys.alive(worker.worker_id) for worker in workers])
    return all(count == 2 for _, count in counts)


async def test_the_tasks_of_a_dead_worker_are_recovered_before_their_leases_end(app: App, place: Place) -> None:
    """On whichever nodes its queue and its connections are."""
    ran: list[int] = []

    @app.task(name="t")
    async def task() -> None:
        ran.append(current().attempt)

    for queue in place.queues[:3]:
        mortal = Mortal(place.url)
        await app.enqueue("t", queue=queue)
        await mortal.live(queue)
        async with app.worker(place.queues, lease=FOREVER) as worker:
            await until(lambda: mortal.worker_id in seen(worker))  # noqa: B023 - awaited at once
            await mortal.die()
            await until(lambda: ran)
        assert ran == [2]
        ran.clear()


async def test_workers_follow_when_the_slot_of_their_records_moves(nodes: Nodes) -> None:
    slot = slot_of(keys.SERVERS)
    source = next(place for place in range(3) if nodes._owner(nodes.servers[0], slot) == nodes.servers[place].port)
    target = (source + 1) % 3
    app = App(nodes.url)
    app.task(name="t")(lambda: None)
    async with app, app.worker(lease=FOREVER) as one, app.worker(lease=FOREVER) as other:
        await until(lambda: subscribed(nodes.servers[source], one, other))
        await until(lambda: len(seen(one) | seen(other)) == 2)
        try:
            await asyncio.to_thread(nodes.move_at_once, slot, source, target)
            await until(lambda: subscribed(nodes.servers[target], one, other))
        finally:
            await asyncio.to_thread(nodes.move_at_once, slot, target, source)
        with nodes.client() as client:
            assert not client.exists(keys.JUDGED)


async def test_a_failover_makes_nobody_look_dead(new_sentinels: Callable[..., Sentinels]) -> None:
    sentinels = new_sentinels()
    app, go = App(sentinels.url), asyncio.Event()
    attempts: list[int] = []

    @app.task(name="t")
    async def task() -> None:
        attempts.append(current().attempt)
        await go.wait()

    async with app, app.worker(lease=FOREVER, concurrency=1) as one, app.worker(lease=FOREVER, concurrency=1) as other:
        await app.enqueue_many([app.call("t"), app.call("t")])
        old = sentinels.master()
        await until(lambda: len(attempts) == 2 and subscribed(old, one, other))
        await until(lambda: len(seen(one)) == 2 or len(seen(other)) == 2)
        assert await asyncio.to_thread(sentinels.replicated)
        sentinels.fail_over()
        new = await asyncio.to_thread(sentinels.wait_for_master_other_than, old)
        await until(lambda: subscribed(new, one, other))
        await pause(3 * absences.PATIENCE, proves="nobody is judged")
        assert attempts == [1, 1]
        go.set()
        client: redis.Redis = new.client()
        await until(lambda: not client.zcard(keys.lease("default")))
        assert not client.exists(keys.JUDGED)
