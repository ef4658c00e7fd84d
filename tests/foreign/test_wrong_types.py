"""Every key as every other type of Redis: the queue beside it works, and every view shows it or says why not."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.foreign.places import GATEWAY, GLOBAL, QUEUE, TYPES, WHO, plant
from tests.foreign.readers import ask_commands, ask_dashboard, ask_inspector
from tests.foreign.support import work_beside
from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App, VeredusError
from veredus.gateway import maintenance
from veredus.gateway.gateway import Gateway
from veredus.model.frames import CloseCode
from veredus.wire import keys, session_keys

FULL = os.environ.get("VEREDUS_TEST_FULL") == "1"


@pytest.mark.parametrize("kind", TYPES)
def test_a_key_of_a_queue_with_a_wrong_type(
    valkey_server: RealServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue for each key, all in one server: what is wrong with one must not reach another."""
    queues = [name for name in QUEUE if QUEUE[name][0] != kind]

    async def damage(app: App) -> None:
        with valkey_server.client() as client:
            for name in queues:
                await app.enqueue("note", {"n": 9}, queue=name)
                if name == "task":
                    client.lpush(keys.pending(name), "bad")
                elif name in ("group", "aggregation_set"):
                    client.sadd(keys.groups(name), "g")
                    client.zadd(keys.aggregation_sets(name), {keys.aggregation_set(name, "g", "set"): 1})
                elif name == "lane":
                    client.zadd(keys.lanes(name), {"o": 0})
                elif name in ("slots", "starts", "waiting"):
                    client.hset(keys.limits(name), "q", "1 1 1000")
                    client.zadd(keys.limited(name), {"q": 0})
                plant(client, QUEUE[name][1](name), kind)

    async def after(app: App) -> None:
        await ask_inspector(app, [*queues, "good"])
        await ask_dashboard(app, queues)
        assert await app.inspector().stats(), "one damaged queue hides no other"
        assert await app.inspector().type_stats()

    notes = asyncio.run(work_beside(valkey_server.url, queues, damage, after=after))
    told = Counter(record.getMessage() for record in notes.records)
    assert all(count <= 4 for count in told.values()), told.most_common(3)
    ask_commands(valkey_server.url, queues if FULL else ["pending", "task"], monkeypatch)


@pytest.mark.parametrize("kind", TYPES)
def test_a_key_of_no_queue_with_a_wrong_type(
    valkey_server: RealServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asynq:queues` is left alone here: without it nobody knows which queues there are."""

    async def damage(app: App) -> None:
        with valkey_server.client() as client:
            client.zadd(keys.SERVERS, {keys.server(*WHO): float("inf"), b"\xff": float("inf")})
            client.zadd(keys.WORKERS, {keys.workers(*WHO): float("inf"), b"\xff": float("inf")})
            client.zadd(keys.SCHEDULERS, {keys.scheduler_entries(*WHO): float("inf"), b"\xff": float("inf")})
            for name, (right, make) in GLOBAL.items():
                if name not in ("QUEUES", "SERVERS", "WORKERS", "SCHEDULERS"):
                    plant(client, make(), kind if kind != right else right)

    async def after(app: App) -> None:
        await ask_inspector(app, ["good"])
        await ask_dashboard(app, ["good"])

    asyncio.run(work_beside(valkey_server.url, [], damage, after=after))
    ask_commands(valkey_server.url, ["good"], monkeypatch, commands=("server list", "cron list", "top --once"))


@pytest.mark.parametrize("name", ["SERVERS", "WORKERS", "SCHEDULERS", "QUEUES"])
def test_an_index_with_a_wrong_type_ends_no_role(valkey_server: RealServer, name: str) -> None:
    async def run() -> None:
        app, ran = App(valkey_server.url), list[int]()

        @app.task(name="note")
        async def note(n: int) -> None:
            ran.append(n)

        await note.enqueue(1)
        with valkey_server.client() as client:
            plant(client, GLOBAL[name][1](), "string")
        worker = app.worker(lease=1.5, sweep=0.2, janitor_interval=0.2)
        async with worker:
            await until(lambda: ran == [1])
            await ask_inspector(app, ["default"])
            await ask_dashboard(app, ["default"])
            assert worker.signs.restarts == {}
        await app.close()

    asyncio.run(run())


async def _opened_elsewhere(gw: Gateway) -> JsonClient:
    """A client whose session is not in the damaged partition, which takes some new sessions and refuses others."""
    while True:
        try:
            peer = await JsonClient.open(gw)
        except ConnectionClosedError as exc:
            if exc.rcvd is None or exc.rcvd.code != CloseCode.BACKEND_UNAVAILABLE:
                raise
            continue
        if not peer.sid.startswith("p000"):
            return peer
        await peer.close()


@pytest.mark.parametrize("kind", TYPES)
async def test_a_key_of_the_gateway_with_a_wrong_type(
    valkey_server: RealServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys of one session and one partition; another session beside it gets its messages, and no part ends."""
    for name, value in (("BEAT", 0.05), ("SWEEP", 0.05), ("STRAYS_EVERY", 1)):
        monkeypatch.setattr(maintenance, name, value)
    async with App(valkey_server.url) as app:
        gw = gateway(app)
        async with gw:
            with valkey_server.client() as client:
                for name, (right, make) in GATEWAY.items():
                    if right != kind and name != "NODES":
                        plant(client, make(), kind)
                client.hset(session_keys.NODES, mapping={b"\xff": b"\xff", "dead": b"x {", "old": b"5 []"})
            peer = await _opened_elsewhere(gw)
            await app.push({"hello": 1}, session=peer.sid)
            assert len(await peer.take(1)) == 1
            store = gw._store
            for ask in (store.sessions.sweep, store.sessions.listing, store.sessions.count, store.nodes.nodes):
                try:
                    await ask()
                except VeredusError:
                    pass
            await peer.close()
            assert gw.figures()["restarts"] == {}
