"""A real cluster of three masters: every queue on its own node, slots that move, slots that are moving."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.support.clusters import Nodes
from tests.support.waiting import PATIENCE
from veredus.errors import CommandRefused, ConnectionLost, NotReady
from veredus.model.settlement import Done, Retry
from veredus.store.connection.cluster import slot_of
from veredus.store.store import Store, Subscription, Watch, connect
from veredus.store.tasks.delays import ForwardReply
from veredus.store.tasks.intake import CREATED, NewTask
from veredus.store.tasks.leases import Sweep
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.wire.presence import ServerRecord


@pytest.fixture
async def cluster(nodes: Nodes) -> AsyncIterator[Store]:
    store = Store(connect(nodes.url), patience=0.0)
    yield store
    await store.close()


async def run_through(store: Store, queue: str, ids: list[str]) -> None:
    assert await store.intake.add_many(queue, [NewTask(task_id, b"m") for task_id in ids]) == [CREATED] * len(ids)
    work = Work(store.redis, "w", lease_ms=12_000)
    batch = await work.dequeue(queue, len(ids))
    assert [task_id for task_id, _ in batch.rows] == ids
    assert await work.settle(queue, [Done(task_id, batch.owner) for task_id in ids]) == []


async def test_queues_on_every_node_are_worked_on(nodes: Nodes, cluster: Store) -> None:
    names = [name for node in range(3) for name in nodes.queues(node, 2)]
    for name in names:
        await run_through(cluster, name, ["a", "b", "c"])
    for node in range(3):
        for name in nodes.queues(node, 2):
            assert nodes.key_is_on(node, keys.processed(name))
    assert await cluster.queues() == sorted(names)


async def test_looks_at_many_queues_go_to_all_nodes_at_once(nodes: Nodes, cluster: Store) -> None:
    names = [name for node in range(3) for name in nodes.queues(node, 2)]
    for name in names:
        await cluster.intake.add(name, NewTask("due", b"", due="1000"))
        await cluster.intake.add(name, NewTask("later", b"", due="+60000"))
    looks = await cluster.delays.forward(names)
    for look in looks:
        assert isinstance(look, ForwardReply)
        assert look.moved == 1
        assert look.wait is not None
        assert 0 < look.wait <= 60.1
    work = Work(cluster.redis, "w", lease_ms=12_000)
    for name in names:
        batch = await work.dequeue(name, 1)
        assert await work.settle(name, [Retry("due", batch.owner, b"", 1000, True)]) == []
    sweeps = await cluster.leases.recover(names, "r:1", since={}, claim_ms=1000)
    assert [isinstance(sweep, Sweep) and sweep.swept for sweep in sweeps.values()] == [False] * 6


def _note(heard: list[tuple[str, bytes]], channel: str, data: bytes) -> None:
    heard.append((channel, data))


async def test_the_record_of_a_worker_and_the_wakeups(nodes: Nodes, cluster: Store) -> None:
    record = ServerRecord(
        host="h",
        pid=1,
        server_id="s",
        concurrency=1,
        queues={"q": 1},
        strict_priority=False,
        status="active",
        started_at=0.0,
        active_worker_count=1,
    )
    await cluster.presence.beat(record, {"a": b"A"})
    own = keys.server("h", 1, "s")
    assert [own.encode()] == await cluster.redis.command("ZRANGE", keys.SERVERS, 0, -1, key=keys.SERVERS)
    assert await cluster.redis.command("EXISTS", own, key=own) == 1
    await cluster.presence.leave(record)
    assert await cluster.redis.command("EXISTS", own, key=own) == 0
    assert await cluster.redis.command("ZCARD", keys.WORKERS, key=keys.WORKERS) == 0

    for node in range(3):
        name = nodes.queues(node, 1)[0]
        watch = Watch(cluster.redis, name)
        assert await watch.wait(0.05) is None
        await cluster.intake.add(name, NewTask("a", b""))
        assert await watch.wait(PATIENCE) == b"a"
        watch.close()
        heard: list[tuple[str, bytes]] = []
        subscription = Subscription(cluster.redis, [keys.delay_wakeup(name)], partial(_note, heard))
        await subscription.open(lambda: None)
        await cluster.intake.add(name, NewTask("later", b"", due="4000000000000"))
        await subscription.ping()
        assert heard == [(keys.delay_wakeup(name), b"4000000000000")]
        subscription.close()


async def test_a_slot_that_moved_is_found_by_what_the_old_node_answers(nodes: Nodes, cluster: Store) -> None:
    before, moving = nodes.queues(0, 12)[10:12]
    await run_through(cluster, before, ["a"])
    await cluster.redis.command("GET", keys.pending(moving), key=keys.pending(moving))
    nodes.move(slot_of(keys.pending(moving)), 2)
    await run_through(cluster, moving, ["a", "b"])
    assert nodes.key_is_on(2, keys.processed(moving))
    assert await cluster.redis.command("GET", keys.processed(moving), key=keys.processed(moving)) == b"2"


async def test_while_a_slot_moves_key_by_key_no_script_runs_in_it(nodes: Nodes, cluster: Store) -> None:
    """What needs one key goes to where the old node says. A script, which needs several and some that it does not name,
    is refused on both nodes until the move has ended: half of what it would find is elsewhere."""
    name = nodes.queues(1, 20)[19]
    slot, counter = slot_of(keys.pending(name)), keys.processed(name)
    assert await cluster.intake.add_many(name, [NewTask("a", b"A"), NewTask("b", b"B")]) == [CREATED, CREATED]
    nodes.begin_move(slot, 1, 2)
    work = Work(cluster.redis, "w", lease_ms=12_000)
    while True:
        with pytest.raises(NotReady, match="TRYAGAIN"):
            await cluster.intake.add(name, NewTask("c", b"C"))
        with pytest.raises(NotReady, match="TRYAGAIN"):
            await work.dequeue(name, 2)
        (look,) = await cluster.delays.forward([name])
        assert isinstance(look, NotReady)
        if not nodes.move_keys(slot, 1, 2, 1):
            break
    assert await cluster.redis.command("INCR", counter, key=counter) == 1
    assert nodes.key_is_on(2, counter)
    nodes.move(slot, 2)
    assert (await work.dequeue(name, 2)).rows == [("a", b"A"), ("b", b"B")]
    assert await cluster.intake.add(name, NewTask("c", b"C")) == CREATED
    assert await cluster.redis.command("INCR", counter, key=counter) == 2


async def test_the_plain_url_of_a_node_is_refused_with_the_right_one(nodes: Nodes) -> None:
    store = Store(connect(nodes.servers[0].url), patience=0.0)
    with pytest.raises(CommandRefused, match=rf"use redis\+cluster://127.0.0.1:{nodes.servers[0].port}"):
        await store.intake.add(nodes.queues(1, 1)[0], NewTask("a", b""))
    await store.close()


async def test_the_first_node_may_be_down_if_another_is_known(nodes: Nodes) -> None:
    ports = [1, nodes.servers[2].port]
    store = Store(connect("redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)))
    await run_through(store, nodes.queues(0, 30)[29], ["a"])
    await store.close()


async def test_no_node_answers() -> None:
    store = Store(connect("redis+cluster://127.0.0.1:1,127.0.0.1:2"), patience=0.0)
    with pytest.raises(ConnectionLost, match="no node of the cluster answers"):
        await store.ping()
    await store.close()
