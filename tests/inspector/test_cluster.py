"""In a cluster: moving between slots in steps that cannot lose a task, and a doctor that visits every node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from tests.inspector.support import Bench
from tests.support.clusters import Nodes
from veredus.errors import StoreError, TaskIdConflict, TaskNotFound, WrongState
from veredus.inspector.inspector import Inspector
from veredus.store.inspect.moves import DELETE_ORIGINAL, RELEASE_COPY
from veredus.store.store import Store, connect
from veredus.wire import keys
from veredus.wire.messages import decode_task


class Pair:
    """Two queues on two nodes."""

    def __init__(self, store: Store, nodes: Nodes) -> None:
        def bench(node: int) -> Bench:
            client = redis.asyncio.Redis(host="127.0.0.1", port=nodes.servers[node].port)
            return Bench(store.redis, client, nodes.queues(node, 1)[0])

        self.source, self.target = bench(0), bench(1)
        self.inspector = Inspector(store.redis)


@pytest.fixture
async def pair(nodes: Nodes) -> AsyncIterator[Pair]:
    store = Store(connect(nodes.url))
    pair = Pair(store, nodes)
    yield pair
    await store.close()
    await pair.source.client.aclose()
    await pair.target.client.aclose()


async def _fill(bench: Bench, state: str, *ids: str, lock: str = "") -> None:
    """As `fill`, with the list of queues on whatever node has it."""
    sadd = bench.client.sadd

    async def registered(key: str, *names: str) -> None:
        if key == keys.QUEUES:
            await bench.redis.command("SADD", key, *names, key=key)
        else:
            await sadd(key, *names)

    bench.client.sadd = registered
    await bench.fill(state, *ids, lock=lock)


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "archived", "completed", "aggregating"])
async def test_a_task_moves_to_another_node(pair: Pair, state: str) -> None:
    source, target = pair.source, pair.target
    lock = keys.unique(source.name, "t", b"1")
    await _fill(source, state, "a", lock=lock)
    await source.client.set(lock, "a", ex=600)
    before = await source.fields("a")
    place = "g:g" if state == "aggregating" else state
    score = None if state == "pending" else await source.scores(place)
    await pair.inspector.move(source.name, "a", target.name)
    after = await target.fields("a")
    message = decode_task(after["msg"].encode("utf-8", "surrogateescape"))
    assert (message.queue, message.unique_key) == (target.name, keys.unique(target.name, "t", b"1"))
    assert after.keys() - {"unique_key"} == before.keys() - {"unique_key"}
    assert after["state"] == state
    if score is None:
        assert await target.pending() == ["a"]
    else:
        assert await target.scores(place) == score
    assert await target.client.get(message.unique_key) == b"a"
    assert not await source.client.exists(source.task("a"))
    assert not await source.client.exists(lock)
    assert [one for one in await pair.inspector.doctor.diagnose() if one.repairable] == []
    assert target.name in await pair.inspector.queues()


@pytest.mark.parametrize("step", [DELETE_ORIGINAL, RELEASE_COPY], ids=["delete_original", "release_copy"])
async def test_a_move_that_breaks_off_loses_nothing_and_can_be_asked_for_again(
    pair: Pair, step: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair.source, pair.target
    await _fill(source, "scheduled", "a")
    moves = pair.inspector._moves
    run_in = moves.run_in

    async def broken(queue, script, *args, **more):  # type: ignore[no-untyped-def]
        if script is step:
            raise StoreError("gone")
        return await run_in(queue, script, *args, **more)

    monkeypatch.setattr(moves, "run_in", broken)
    with pytest.raises(StoreError):
        await pair.inspector.move(source.name, "a", target.name)
    copies = await source.client.exists(source.task("a")) + await target.client.exists(target.task("a"))
    assert copies == (2 if step is DELETE_ORIGINAL else 1)
    # The copy is where nobody runs it.
    assert await target.client.zcard(target.key("archived")) == 1
    monkeypatch.undo()
    await pair.inspector.move(source.name, "a", target.name)
    assert not await source.client.exists(source.task("a"))
    assert list(await target.scores("scheduled")) == ["a"]
    assert (await target.fields("a")).keys() == {"msg", "state"}
    assert not await target.client.exists(target.key("archived"))


@pytest.mark.parametrize("step", [DELETE_ORIGINAL, RELEASE_COPY], ids=["delete_original", "release_copy"])
async def test_the_doctor_ends_a_move_that_was_broken_off(
    pair: Pair, step: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair.source, pair.target
    await _fill(source, "scheduled", "a")
    moves = pair.inspector._moves
    run_in = moves.run_in

    async def broken(queue, script, *args, **more):  # type: ignore[no-untyped-def]
        if script is step:
            raise StoreError("gone")
        return await run_in(queue, script, *args, **more)

    monkeypatch.setattr(moves, "run_in", broken)
    with pytest.raises(StoreError):
        await pair.inspector.move(source.name, "a", target.name)
    doctor = pair.inspector.doctor
    assert [one for one in await doctor.diagnose(server=False) if one.repairable] == []  # it may be under way
    await target.client.zadd(target.key("archived"), {"a": 1_000_000_000})
    (found,) = [one for one in await doctor.diagnose(server=False) if one.repairable]
    assert (found.kind, found.queue, found.task_id, found.detail) == ("half_moved", target.name, "a", source.name)
    assert [one.kind for one in await doctor.repair_all()] == ["half_moved"]
    where = source if step is DELETE_ORIGINAL else target
    assert list(await where.scores("scheduled")) == ["a"]
    assert await source.client.exists(source.task("a")) + await target.client.exists(target.task("a")) == 1
    assert [one for one in await doctor.diagnose(server=False) if one.repairable] == []


async def test_a_task_that_starts_meanwhile_stays(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair.source, pair.target
    await _fill(source, "pending", "a")
    moves = pair.inspector._moves
    run_in = moves.run_in

    async def slow(queue, script, *args, **more):  # type: ignore[no-untyped-def]
        if script is DELETE_ORIGINAL:
            await source.dequeue()
        return await run_in(queue, script, *args, **more)

    monkeypatch.setattr(moves, "run_in", slow)
    with pytest.raises(WrongState):
        await pair.inspector.move(source.name, "a", target.name)
    assert await source.active() == ["a"]
    assert not await target.client.exists(target.task("a"), target.key("archived"))


async def test_refusals(pair: Pair) -> None:
    await _fill(pair.source, "pending", "a")
    await _fill(pair.target, "pending", "a")
    with pytest.raises(TaskIdConflict):
        await pair.inspector.move(pair.source.name, "a", pair.target.name)
    with pytest.raises(TaskNotFound):
        await pair.inspector.move(pair.source.name, "b", pair.target.name)


async def test_the_doctor_visits_every_node(pair: Pair, nodes: Nodes) -> None:
    for bench in (pair.source, pair.target):
        await _fill(bench, "pending", "a")
        await bench.client.delete(bench.key("pending"))
    found = await pair.inspector.doctor.diagnose()
    assert sorted(one.queue for one in found if one.kind == "orphan") == sorted([pair.source.name, pair.target.name])
    assert sum(one.kind == "version" for one in found) == 3
    assert len(await pair.inspector.doctor.repair_all()) == 2
    assert await pair.target.pending() == ["a"]


async def test_where_a_queue_is(pair: Pair, nodes: Nodes) -> None:
    slot = pair.inspector.cluster_slot(pair.source.name)
    client: Any = nodes.servers[0].client()
    assert slot == client.execute_command("CLUSTER", "KEYSLOT", pair.source.key("pending"))
    (node,) = await pair.inspector.cluster_nodes(pair.source.name)
    assert (node.id, node.address) == (nodes.ids[0], f"127.0.0.1:{nodes.servers[0].port}")


async def test_a_queue_is_deleted_with_all_that_belongs_to_it(pair: Pair) -> None:
    await _fill(pair.source, "retry", "a")
    await pair.inspector.delete_queue(pair.source.name, force=True)
    assert await pair.source.client.dbsize() <= 1  # the list of queues may be here
    assert await pair.inspector.queues() == []
