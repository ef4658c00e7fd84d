"""What a gateway has in Redis, with values and scores that another program has changed: another session gets its
messages, the damaged one gets an answer when it comes back, and no part ends."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.foreign.support import FAST, Notes
from tests.foreign.test_contents import CHANGES, SCORES, Change, Left, read_key
from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import forever, pause
from veredus import App, VeredusError, current
from veredus.gateway import maintenance

USERS = ("ada", "bob")


def _declare(app: App) -> None:
    @app.action("ask", queue="default")
    async def ask() -> str:
        client = current().client
        assert client is not None
        await client.notify({"before": 1}, when="before")
        await forever()
        return "never"

    @app.action("wait_here", where="gateway")
    async def wait_here() -> str:
        await forever()
        return "never"


async def _leave(app: App, client: Any) -> tuple[list[Left], list[dict[str, Any]]]:
    """What sessions have that were cut off in the middle of everything, and what they come back with."""
    returns = []
    async with app.worker(**FAST, shutdown_timeout=0.1), gateway(app) as gw:
        for user in USERS:
            peer = await JsonClient.open(gw, user)
            await app.join(peer.sid, "team")
            await peer.request(1, "ask", deadline_ms=60_000)
            await peer.request(2, "wait_here", deadline_ms=60_000)
            await peer.frame("accept", rid=1)
            for number in range(3):
                await app.push({"n": number}, session=peer.sid)
            await app.push({"group": 1}, group="team")
            returns.append(peer.resumption())
            await peer.take(4)
            await peer.close()
        await app.push({"mail": 1}, user="nobody")
        left = [read_key(client, name) for name in client.keys("gw:*")]
    return left, returns


def _write(client: Any, left: Left, change: Change, score: str | None) -> None:
    name, kind, value = left
    client.delete(name)
    if kind == "string":
        client.set(name, change(value))
    elif kind == "list":
        client.rpush(name, *map(change, value))
    elif kind == "set":
        client.sadd(name, *value)
    elif kind == "zset":
        client.zadd(name, value if score is None else dict.fromkeys(value, score))
    else:
        client.hset(name, mapping={field: change(one) for field, one in value.items()})


async def _play(server: RealServer, change: Change, score: str | None) -> None:
    async with App(server.url) as app:
        _declare(app)
        with server.client() as client:
            left, returns = await _leave(app, client)
            client.flushall()
            for one in left:
                _write(client, one, change, score)
        with Notes() as notes:
            async with gateway(app) as gw:
                peer = await JsonClient.open(gw, "carol")
                for resume in returns:
                    await _come_back(gw, resume)
                await app.push({"hello": 1}, session=peer.sid)
                assert len(await peer.take(1)) == 1
                with contextlib.suppress(VeredusError):
                    await app.push({"again": 1}, group="team")
                with contextlib.suppress(VeredusError):
                    await app.push({"again": 1}, user="ada")
                store = gw._store
                for ask in (store.sessions.listing, store.sessions.count, store.nodes.nodes):
                    try:
                        await ask()
                    except VeredusError:
                        pass
                await pause(0.3, proves="no sweep ends a part of the gateway")
                await app.push({"hello": 2}, session=peer.sid)
                assert len(await peer.take(1)) == 1
                await peer.close()
                restarts = gw.figures()["restarts"]
        assert restarts == {}, notes.unexpected()
        assert notes.unexpected() == []


async def _come_back(gw: Any, resume: dict[str, Any]) -> None:
    """Welcomed or closed, but answered."""
    peer = await JsonClient.connect(gw)
    with contextlib.suppress(ConnectionClosed):
        await peer.hello("ada", resume)
        await peer.request(9, "ask", deadline_ms=50)
    await peer.close()


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BEAT", 0.05), ("SWEEP", 0.05), ("STRAYS_EVERY", 1)):
        monkeypatch.setattr(maintenance, name, value)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_values_that_another_program_has_changed(valkey_server: RealServer, change: Change) -> None:
    await _play(valkey_server, change, None)


@pytest.mark.parametrize("score", SCORES)
async def test_scores_that_another_program_has_changed(valkey_server: RealServer, score: str) -> None:
    await _play(valkey_server, lambda value: value, score)
