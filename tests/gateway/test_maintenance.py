"""What a gateway tells Redis and hears from it: acks in time, in order, at the end; sessions that others have now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import pause, pause_sync, until
from veredus import App
from veredus.gateway import ack_writer, maintenance
from veredus.gateway.maintenance import Maintenance
from veredus.model.delivery import Quota
from veredus.store.store import Store, connect

NewServer = Callable[..., RealServer]
NEVER = 600.0


async def _pending(store: Store, sid: str) -> int:
    """Messages in the log that Redis does not know to be acknowledged."""
    (row,) = await store.sessions.show([sid])
    return row.pending


async def test_many_acks_of_one_session_are_written_before_their_time(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer in a hurry must not find the quota full of what the client has long handled."""
    monkeypatch.setattr(ack_writer, "EVERY", NEVER)
    monkeypatch.setattr(ack_writer, "EARLY", 20)
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for number in range(20):
            await app.push(number, session=client.sid)
        await client.take(20)
        await client.ack(19)
        await until(lambda: gw.delivery._acks._acks, what="the ack comes in")
        assert await _pending(gw_store, client.sid) == 20
        await client.ack(20)

        async def is_empty() -> bool:
            return await _pending(gw_store, client.sid) == 0

        await until(is_empty, what="the early write")


async def test_acks_are_written_at_the_end_of_a_gateway(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_writer, "EVERY", NEVER)
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push("x", session=client.sid)
        await client.take(1)
        await client.ack()
        await until(lambda: gw.delivery._acks._acks, what="the ack comes in")
        assert await _pending(gw_store, client.sid) == 1
        await gw.delivery.close()  # as a stop does
        assert await _pending(gw_store, client.sid) == 0


async def test_of_several_acks_that_met_an_outage_the_last_is_written(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not know the script yet: what it finds in its buffer when it goes on changes nothing."""
    server = new_server()
    monkeypatch.setattr(ack_writer, "EVERY", 0.01)
    async with App(server.url, timeout=0.5) as app, gateway(app, position_check=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        for number in range(3):
            await app.push(number, session=client.sid)
        await client.take(3)
        server.freeze()
        for seq in (1, 2, 3):
            await client.ack(seq)
            await until(lambda seq=seq: gw.delivery._acks.written == seq, what="the write begins")
        await until(lambda: gw.delivery.degraded, what="the outage is noticed")
        server.thaw()
        store = Store(connect(server.url))

        async def is_empty() -> bool:
            return await _pending(store, client.sid) == 0

        await until(is_empty, what="the last ack")
        await store.close()


@pytest.mark.parametrize(("lost", "code"), [("the tail", 4007), ("the session", 4007)])
async def test_an_ack_shows_that_the_log_is_not_what_it_was(
    app: App, valkey_server: RealServer, lost: str, code: int
) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push("x", session=client.sid)
        await client.take(1)
        with valkey_server.client() as redis:
            base = f"gw:{{{client.sid[:4]}}}:s:{client.sid}"
            if lost == "the tail":
                redis.rpop(f"{base}:o")
                redis.hincrby(f"{base}:m", "s", -1)
            else:
                redis.delete(f"{base}:m")
        await client.ack()
        assert await client.close_code() == code


async def test_a_deaf_gateway_finds_that_another_has_its_session(app: App) -> None:
    """The word about it was lost: the old connection must not come back and take the session away again."""
    async with gateway(app, position_check=0.1, heartbeat=0.2) as one, gateway(app) as two:
        first = await JsonClient.open(one, "ada")
        one._hints._on_hints = lambda rows: None  # deaf, though subscribed
        second = await JsonClient.open(two, "ada", first.resumption())
        assert await first.close_code() == 4503
        await app.push("x", session=first.sid)
        assert (await second.take(1))[0]["body"] == "x"


async def test_pings_tell_of_an_outage_and_of_its_end(new_server: NewServer) -> None:
    server = new_server()
    async with App(server.url, timeout=0.5) as app, gateway(app, heartbeat=0.1, position_check=0.1) as gw:
        client = await JsonClient.open(gw, "ada")

        async def next_ping() -> bool:
            while True:
                for line in str(await client._socket.recv()).splitlines():
                    frame = json.loads(line)
                    if frame["t"] == "ping":
                        await client.send({"t": "pong", "echo": frame["echo"]})
                        return bool(frame.get("degraded", False))

        assert not await next_ping()
        server.freeze()
        await until(next_ping, what="a ping that tells of the outage")
        server.thaw()

        async def all_is_well() -> bool:
            return not await next_ping()

        await until(all_is_well, what="a ping that tells of its end")


async def test_a_loop_that_stands_still_is_seen_before_its_next_tick(app: App) -> None:
    async with gateway(app) as gw:
        pause_sync(0.5, proves="no tick came meanwhile")
        assert gw.maintenance.signs(draining=False, listening=True).loop_late_by > 0.2


async def test_a_gateway_that_was_taken_for_dead_looks_after_its_sessions(app: App, gw_store: Store) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        await gw_store.nodes.leave(gw.node)  # as a sweep elsewhere finds it after 15 s without a beat
        await gw_store.sessions.sweep()
        await gw.maintenance.beat()
        assert await client.close_code() == 4009
        assert (await JsonClient.open(gw, "ada", client.resumption())).welcome["result"] == "resumed"


async def test_a_beat_in_time_looks_at_no_session(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        looks: list[None] = []
        monkeypatch.setattr(gw.delivery, "check_all", lambda: looks.append(None))
        await JsonClient.open(gw, "ada")
        await gw.maintenance.beat()
        assert looks == []
        assert "checking all sessions" not in caplog.text


async def test_a_gateway_without_sessions_that_was_silent_does_not_complain(
    app: App, gw_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        await gw_store.nodes.leave(gw.node)
        await gw.maintenance.beat()
    assert "checking all sessions" not in caplog.text


async def test_a_session_that_is_attached_here_by_mistake_is_let_go(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its create was lost, so no connection has it: otherwise it would never expire."""
    monkeypatch.setattr(maintenance, "BEAT", 0.02)
    monkeypatch.setattr(maintenance, "STRAYS_EVERY", 2)
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        stray = await gw_store.sessions.create(
            "bob", node=gw.node, connection="c", secret_hash="s", quota=Quota(), ttl_ms=60_000
        )

        async def is_detached() -> bool:
            (row,) = await gw_store.sessions.show([stray.sid])
            return row.state == "detached"

        await until(is_detached, what="the detach of the stray")
        (row,) = await gw_store.sessions.show([client.sid])
        assert row.state == "attached"


async def test_between_two_beats_a_gateway_does_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BEAT", NEVER)
    monkeypatch.setattr(maintenance, "SWEEP", NEVER)
    monkeypatch.setattr(maintenance, "STRAYS_EVERY", 1)
    steps: list[str] = []
    for name in ("beat", "_sweep", "_release_strays"):
        step = getattr(Maintenance, name)

        async def noted(self: Maintenance, name: str = name, step: Any = step) -> None:
            steps.append(name)
            await step(self)

        monkeypatch.setattr(Maintenance, name, noted)
    async with gateway(app):
        await pause(0.2, proves="only the start was told")
        assert set(steps) == {"beat"}
        assert len(steps) <= 2


async def test_what_was_pushed_while_nothing_was_heard_comes_when_hints_are_heard_again(
    app: App, valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        subscribe = gw._hints._subscribe
        go_on = asyncio.Event()

        async def subscribe_later() -> None:
            await go_on.wait()
            await subscribe()

        monkeypatch.setattr(gw._hints, "_subscribe", subscribe_later)
        with valkey_server.client() as redis:
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: not gw._hints.healthy, what="the broken subscription is noticed")
        assert gw.not_ready()
        await app.push("unheard", session=client.sid)
        go_on.set()
        assert (await client.take(1))[0]["body"] == "unheard"
