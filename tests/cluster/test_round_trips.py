"""Fan-out over queues costs one round trip per node, not per queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.cluster.conftest import Relayed
from tests.integration.support import FAST
from tests.support.relays import Relay, relayed
from tests.support.waiting import until
from veredus import App
from veredus.inspector.inspector import Inspector
from veredus.model.pools import FreeSlots
from veredus.store.store import Store, connect
from veredus.store.tasks.groups import GroupProbe
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.leases import Holding
from veredus.store.tasks.schedules import Schedules, Tick
from veredus.store.tasks.work import DequeueRequest, Work
from veredus.wire import keys
from veredus.wire.presence import ServerRecord

QUEUES = 24
DELAY = 0.01


class Desk:
    """A store behind relays, and what a call through it cost."""

    def __init__(self, store: Store, relays: list[Relay], queues: list[str]) -> None:
        self.store, self.relays, self.queues = store, relays, queues

    async def cost(self, call: Callable[[], Awaitable[Any]]) -> list[int]:
        """Round trips per node, once the scripts are known there."""
        await call()
        before = [relay.trips for relay in self.relays]
        await call()
        return [relay.trips - seen for relay, seen in zip(self.relays, before, strict=True)]


@pytest.fixture
async def desk(relayed_cluster: Relayed) -> AsyncIterator[Desk]:
    async with relayed(relayed_cluster.ports, delay=DELAY) as relays:
        store = Store(connect(relayed_cluster.url()))
        yield Desk(store, relays, relayed_cluster.nodes.spread(QUEUES))
        await store.close()


def _calls(desk: Desk) -> dict[str, Callable[[], Awaitable[Any]]]:
    store, queues = desk.store, desk.queues
    work = Work(store.redis, "w", lease_ms=12_000)
    schedules = Schedules(store.redis, store.intake)
    inspector = Inspector(store.redis)
    holdings = {queue: [Holding("a", "w:1", 12_000)] for queue in queues}
    probes = [(queue, [GroupProbe("g", "s", 0, 0, 60_000)]) for queue in queues]
    ticks = [Tick(queue, "s", 0, 1, 1000, NewTask("t", b"")) for queue in queues]
    return {
        "dequeue": lambda: work.dequeue_each([DequeueRequest(queue, 1, FreeSlots(loop=1)) for queue in queues]),
        "lengths": lambda: work.lengths(queues),
        "forward": lambda: store.delays.forward(queues),
        "extend": lambda: store.leases.extend(holdings),
        "recover": lambda: store.leases.recover(queues, "r:1", since={}, claim_ms=1000),
        "expire": lambda: store.retention.expire(queues, 10),
        "group names": lambda: store.groups.names(queues),
        "group check": lambda: store.groups.check(probes, limit=1, set_ms=1000),
        "group reclaim": lambda: store.groups.reclaim(queues),
        "look at results": lambda: store.results.look_at_all([(queue, "a") for queue in queues], "c"),
        "positions of schedules": lambda: schedules.begin([(queue, [("s", 1000)]) for queue in queues]),
        "ticks": lambda: schedules.tick(ticks),
        "numbers": lambda: inspector._queues.stats(queues),
        "leases": lambda: inspector._queues.leases(queues, 0, 10),
    }


async def test_one_round_trip_per_node(desk: Desk) -> None:
    await desk.store.intake.register(*desk.queues)
    for queue in desk.queues:
        await desk.store.intake.add(queue, NewTask("a", b""))
    costs = {name: await desk.cost(call) for name, call in _calls(desk).items()}
    print(costs)
    assert {name: cost for name, cost in costs.items() if cost != [1, 1, 1]} == {}


async def test_the_inspector_and_a_heartbeat_ask_for_names_first(desk: Desk) -> None:
    """Whatever looks at all queues, or writes an index beside the record, needs one round trip more."""
    inspector = Inspector(desk.store.redis)
    await desk.store.intake.register(*desk.queues)
    record = ServerRecord(
        host="h", pid=1, server_id="s", concurrency=1, queues={"q": 1}, strict_priority=False,
        status="active", started_at=0.0, active_worker_count=0,
    )  # fmt: skip
    calls: dict[str, tuple[Callable[[], Awaitable[Any]], int]] = {
        "stats": (inspector.stats, 2),
        "stats with memory": (lambda: inspector.stats(memory=True), 3),
        "leases": (inspector.leases, 2),
        "servers": (inspector.servers, 6),  # two kinds of records: the time, the index, the records
        "heartbeat": (lambda: desk.store.presence.beat(record, {}), 3),
    }
    for name, (call, most) in calls.items():
        cost = await desk.cost(call)
        print(name, cost)
        assert max(cost) <= most, name


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
async def test_a_worker_takes_from_many_queues_in_few_round_trips(
    desk: Desk, relayed_cluster: Relayed, strict: bool
) -> None:
    """24 tasks in 24 queues, one per queue, from the first dequeue to the last settlement."""
    app = App(relayed_cluster.url())
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    weights = {queue: n + 1 for n, queue in enumerate(desk.queues)} if strict else dict.fromkeys(desk.queues, 1)
    nodes = [server.client() for server in relayed_cluster.nodes.masters]

    def settled() -> bool:
        return not any(nodes[n % 3].exists(keys.active(queue)) for n, queue in enumerate(desk.queues))

    settings = {**FAST, "lease": 30.0, "sweep": 20.0, "forward_interval": 20.0, "janitor_interval": 20.0}
    async with app, app.worker(weights, strict=strict, concurrency=2 * QUEUES, **settings):
        for round_number in range(2):
            calls = [note.using(queue=queue).call(n) for n, queue in enumerate(desk.queues)]
            before = [relay.trips for relay in desk.relays]
            await app.enqueue_many(calls)
            await until(lambda done=QUEUES * (round_number + 1): len(ran) == done)
            await until(settled)
            cost = [relay.trips - seen for relay, seen in zip(desk.relays, before, strict=True)]
        print(
            f"{'strict' if strict else 'weighted'}: {cost} round trips per node for {QUEUES} tasks in {QUEUES} queues"
        )
    # Each queue's sleeper wakes (8 per node) and goes back to sleep; besides, some shared trips.
    assert max(cost) < 2 * QUEUES // 3 + 14
