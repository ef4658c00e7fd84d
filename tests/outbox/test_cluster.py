"""The log on a cluster: rows of many partitions in one go, hints by sharded pub/sub, groups and everyone across
nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.outbox.support import AFTER, BEFORE, Log, tail
from tests.outbox.test_hints import listening
from tests.support.clusters import THIRD, Nodes
from tests.support.waiting import until
from veredus.client.notifier import Notifier
from veredus.model.delivery import NO_CURSOR, PushResult, PushStatus
from veredus.store.connection.slot_map import slot_of
from veredus.store.sessions.outbox import Append, Post
from veredus.store.sessions.session_partitions import SHARDED
from veredus.store.store import Store, connect
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import Hint


@pytest.fixture
async def log(nodes: Nodes) -> AsyncIterator[Log]:
    nodes.flush()
    store = Store(connect(nodes.url), patience=0.0)
    yield Log(store, None)
    await store.close()


async def test_rows_of_many_partitions_and_their_hints(nodes: Nodes, log: Log) -> None:
    assert await log.store.outbox.partitions.channel() == SHARDED
    async with listening(log.store) as (hints, heard):
        assert len(hints._connections) == 3
        sids = [(await log.create(f"user{i}")).sid for i in range(30)]
        results = await log.store.outbox.append([Append(sid, tail(f"{n}")) for n in range(3) for sid in sids])
        assert [result.seq for result in results] == [n for n in (1, 2, 3) for _ in sids]
        await until(lambda: len(heard.rows) == 30)
        assert {(row.sid, row.count) for row in heard.rows if isinstance(row, Hint)} == {(sid, 3) for sid in sids}
        assert await hints.probe()
        assert await log.store.outbox.ack([(sid, 2, 0) for sid in sids]) == ["ok"] * 30
        assert [await log.texts(sid) for sid in sids] == [["2"]] * 30
        attached = await log.attach(sids[0], await log.cursor(sids[0], 3), user="user0", node="n2")
        assert attached.result == "resumed"
        await until(lambda: len(heard.rows) == 31)
    places = {node for node in range(3) for sid in sids if nodes.key_is_on(node, keys.meta(sid))}
    assert places == {0, 1, 2}


async def test_binds_responses_users_groups_everyone_and_the_sweep(log: Log) -> None:
    sids = [(await log.create(f"user{i}", groups=["room"])).sid for i in range(20)]

    async def request(sid: str) -> None:
        await log.bind(sid, 1, BEFORE, "before")
        await log.accept(sid, 1)
        await log.bind(sid, 1, AFTER, "after")
        await log.respond(sid, 1)

    await asyncio.gather(*[request(sid) for sid in sids])
    for sid in sids:
        assert await log.texts(sid) == ["before", "response", "after"]
        await log.store.outbox.ack([(sid, 3, 1)])
    answers = await log.store.outbox.append_to_users([Post(f"user{i}", tail("u"), wait_ms=60_000) for i in range(21)])
    assert [answer[0].status for answer in answers] == [PushStatus.QUEUED] * 20 + [PushStatus.WAITING]
    assert (await log.store.outbox.append_to_group("room", tail("g"))).counts == {PushStatus.QUEUED: 20}
    late = (await log.create("user20")).sid
    assert (await log.store.outbox.append_to_everyone(tail("e"))).counts == {PushStatus.QUEUED: 21}
    assert await log.texts(late) == ["u", "e"]
    assert await log.store.sessions.count() == 21
    assert len(await log.store.sessions.listing(limit=50)) == 21
    await log.store.nodes.beat("n1")
    await log.store.nodes.leave("n1")
    assert sorted((await log.store.sessions.sweep()).orphans) == sorted([*sids, late])
    log.later(60_000)
    assert len((await log.store.sessions.sweep()).expired) == 21
    assert (await log.store.outbox.append_to_everyone(tail("e"))).sessions == 0


async def test_durable_pushes_find_a_slot_that_moved(nodes: Nodes, log: Log) -> None:
    sids = [(await log.create(f"user{i}")).sid for i in range(9)]
    slot = slot_of(keys.sessions(keys.user_tag("mover")))
    source = min(slot // THIRD, 2)
    notifier = Notifier(log.store)
    try:
        for server in nodes.masters:
            server.client().config_set("appendfsync", "always")
            server.client().config_set("appendonly", "yes")
        results = await asyncio.gather(*[notifier.push(1, session=sid, durability="fsync") for sid in sids])
        assert [result.status for result in results if isinstance(result, PushResult)] == ["queued"] * 9
        nodes.move(slot, (source + 1) % 3)
        moved = await notifier.push(1, user="mover", wait=60, durability="fsync")
        assert isinstance(moved, list)
        assert moved[0].status == "waiting"
    finally:
        for server in nodes.masters:
            server.client().config_set("appendonly", "no")
            server.flush()
        nodes.move(slot, source)
        await notifier.close()


async def test_a_moved_slot_is_heard_from_again(nodes: Nodes, log: Log) -> None:
    async with listening(log.store) as (_, heard):
        slot = slot_of(keys.sessions(keys.user_tag("mover")))
        source = min(slot // THIRD, 2)
        nodes.move(slot, (source + 1) % 3)
        try:
            await until(lambda: heard.doubts >= 1)
            sid = (await log.create("mover")).sid
            await log.push(sid, "b")
            await until(lambda: any(row.sid == sid for row in heard.rows))
            assert (await log.attach(sid, NO_CURSOR, user="mover")).result == "resumed"
            assert nodes.key_is_on((source + 1) % 3, keys.meta(sid))
            await log.store.sessions.close(sid)
        finally:
            nodes.move(slot, source)
