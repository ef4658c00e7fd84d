"""Who comes in and how they are sent away: limits of connections, path and origin, slow authenticators, last words."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, forever, until
from veredus import App, Unauthorized
from veredus.gateway import gateway as gateway_module
from veredus.gateway import handshake
from veredus.gateway.auth import Identity
from veredus.gateway.gateway import Gateway
from veredus.gateway.maintenance import Maintenance
from veredus.store.store import Store
from veredus.wire.log_entries import Kick


async def _farewell(client: JsonClient) -> dict[str, Any]:
    """The frame with which the gateway says why it ends the connection."""
    return await client.frame("close")


async def _greet(client: JsonClient, token: str = "ada", resume: dict[str, Any] | None = None) -> None:
    await client.send({"t": "hello", "version": 1, "token": token, **({"resume": resume} if resume else {})})


async def test_so_many_connections_and_no_more_until_one_ends(app: App) -> None:
    async with gateway(app, max_connections=2) as gw:
        first, second = [await JsonClient.open(gw, "ada") for _ in range(2)]
        with pytest.raises((OSError, InvalidHandshake, ConnectionClosed)):
            await JsonClient.open(gw, "ada")
        assert gw.overload.refused["connections"] == 1
        assert gw.overload.connections == 2
        first.cut()
        await until(lambda: gw.overload.connections == 1, what="the end of the first")
        await JsonClient.open(gw, "ada")
        await app.push("x", session=second.sid)
        assert (await second.take(1))[0]["body"] == "x"


async def test_connections_come_at_a_rate(app: App) -> None:
    async with gateway(app, accept_rate=0.001) as gw:
        await JsonClient.open(gw, "ada")
        with pytest.raises((OSError, InvalidHandshake, ConnectionClosed)):
            await JsonClient.open(gw, "ada")
        assert gw.overload.refused["accepts"] == 1


async def test_path_and_origins_are_those_of_the_settings(app: App) -> None:
    async with gateway(app, path="/gw", origins="https://good.example") as gw:
        url = f"ws://{gw.ws_address}"
        client = await JsonClient.connect(f"{url}/gw", origin="https://good.example")
        await client.hello("ada")
        for wrong, origin in ((f"{url}/", "https://good.example"), (f"{url}/gw", "https://bad.example")):
            with pytest.raises((OSError, InvalidHandshake, ConnectionClosed)):
                await _come(wrong, origin)


async def _come(url: str, origin: str) -> None:
    await (await JsonClient.connect(url, origin=origin)).hello("ada")


async def test_the_last_words_say_why_and_when_to_come_again(app: App) -> None:
    def authenticate(token: str) -> Identity:
        return Identity(user=token)

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.open(gw, "ada")
        eve = await JsonClient.connect(gw)
        await _greet(eve, "eve", client.resumption())
        said = await _farewell(eve)
        assert (said["code"], said.get("retry_after_ms", 0)) == (4501, 0)
        assert "another user" in said["reason"]
    assert (await _farewell(client))["code"] == 4000


async def test_an_authenticator_that_takes_too_long_is_no_reason_to_give_up(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "AUTH_TIMEOUT", 0.05)

    async def authenticate(token: str) -> Identity:
        await forever()
        return Identity(user=token)

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.connect(gw)
        await _greet(client)
        said = await _farewell(client)
        assert said["code"] == 4003
        assert said["retry_after_ms"] > 0


@pytest.mark.parametrize("kind", ["hello", "auth"])
@pytest.mark.parametrize("told", ["这个令牌已经过期，请重新登录。" * 10, "\ud800", "user"], ids=ascii)
async def test_a_refusal_in_any_words_ends_the_connection(app: App, kind: str, told: str) -> None:
    def authenticate(token: str) -> Identity:
        if token == "ada":
            return Identity(user=token)
        if told == "user":
            return Identity(user="\ud800")
        raise Unauthorized(told)

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.connect(gw)
        if kind == "auth":
            await client.hello("ada")
            await client.send({"t": "auth", "token": "bob"})
        else:
            await _greet(client, "bob")
        assert await client.close_code() == 4501
        await until(lambda: gw.overload.connections == 0)


@pytest.mark.parametrize("kind", ["hello", "auth"])
async def test_a_fault_of_the_gateway_itself_ends_the_connection_that_met_it(
    app: App, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would stay open for ever, without an answer."""

    async def broken(*arguments: Any) -> Identity:
        raise ZeroDivisionError

    async with gateway(app) as gw:
        client = await JsonClient.connect(gw)
        if kind == "auth":
            await client.hello("ada")
        monkeypatch.setattr(handshake, "identify", broken)
        await (client.send({"t": "auth", "token": "ada"}) if kind == "auth" else _greet(client))
        assert await client.close_code() == 4006
        await until(lambda: gw.overload.connections == 0)
    assert sum("ZeroDivisionError" in (record.exc_text or "") for record in caplog.records) == 1


@pytest.mark.parametrize("resumes", [False, True])
async def test_who_comes_while_the_store_is_away_is_told_to_come_again(new_server: Any, resumes: bool) -> None:
    server = new_server()
    async with App(server.url, timeout=0.3) as app, gateway(app, position_check=600.0) as gw:
        known = await JsonClient.open(gw, "ada")
        server.freeze()
        client = await JsonClient.connect(gw)
        await _greet(client, "ada", known.resumption() if resumes else None)
        said = await _farewell(client)
        assert said["code"] == 4003
        assert said["retry_after_ms"] > 0
        server.thaw()


async def _broken_hook(identity: Identity, group: str) -> bool:
    raise RuntimeError("no list of members today")


@pytest.mark.parametrize("hook", [None, _broken_hook])
async def test_without_a_hook_or_with_one_that_fails_nobody_joins_a_group(app: App, hook: Any) -> None:
    async with gateway(app, may_join=hook) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.send({"t": "join", "group": "room"})
        answer = (await client.frame("vol"))["body"]
        assert (answer["joined"], answer["code"]) == (False, 403)
        assert (await app.push("x", group="room")).queued == 0


def _slow(gw: Gateway, monkeypatch: pytest.MonkeyPatch, verb: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Sessions are created (or attached) in Redis, and the gateway hears of it when it is let go on."""
    sessions = gw.handshake._sessions
    real = getattr(sessions, verb)
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any, **more: Any) -> Any:
        answer = await real(*args, **more)
        written.set()
        await go_on.wait()
        return answer

    monkeypatch.setattr(sessions, verb, slowly)
    return written, go_on


@pytest.mark.parametrize("verb", ["create", "attach"])
async def test_who_leaves_while_coming_in_leaves_a_session_that_can_expire(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async with gateway(app) as gw:
        known = await JsonClient.open(gw, "ada")
        known.cut()
        await until(lambda: not gw.delivery.connections, what="the cut is noticed")
        written, go_on = _slow(gw, monkeypatch, verb)
        client = await JsonClient.connect(gw)
        await _greet(client, "ada", known.resumption() if verb == "attach" else None)
        await written.wait()
        client.cut()
        await until(lambda: not gw.delivery.connections, what="the second cut is noticed")
        go_on.set()

        async def all_detached() -> bool:
            return {row.state for row in await gw_store.sessions.listing()} == {"detached"}

        await until(all_detached, what="the detach")
        assert not gw.delivery.attached


async def test_the_floor_of_answered_requests_counts_from_the_hello_on(app: App) -> None:
    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for rid in (1, 2):
            await client.request(rid, "echo", {"text": "x"})
            await client.frame("msg", rid=rid)
        again = await JsonClient.open(gw, "ada", client.resumption(), rid_floor=1)
        assert [(one["rid"], one["state"]) for one in again.welcome["open"]] == [(2, "done")]


async def test_over_its_quota_a_session_may_be_closed_and_resumed(app: App) -> None:
    async with gateway(app, quota_entries=3, policy="close") as gw:
        client = await JsonClient.open(gw, "ada")
        statuses = [(await app.push(n, session=client.sid)).status for n in range(4)]
        assert statuses[:3] == ["queued"] * 3
        assert await client.close_code() == 4002


async def test_a_late_word_to_an_earlier_connection_does_not_end_the_present_one(app: App) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        again = await JsonClient.open(gw, "ada", client.resumption())
        connection = gw.delivery.attached[client.sid]
        gw.delivery.on_hints([Kick(client.sid, connection.generation - 1, "superseded")])
        await app.push("x", session=client.sid)
        assert (await again.take(1))[0]["body"] == "x"
        gw.delivery.on_hints([Kick(client.sid, connection.generation, "superseded")])
        assert await again.close_code() == 4503


async def test_a_gateway_that_stops_takes_its_name_from_the_list_and_ends_its_lifespan(
    valkey_server: RealServer, gw_store: Store
) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[dict[str, int]]:
        steps.append("begin")
        yield {"n": 1}
        steps.append("end")

    async with App(valkey_server.url, lifespan=lifespan) as app:

        @app.action("state", where="gateway")
        async def state() -> int:
            return int(app.state["n"])

        async with gateway(app) as gw:
            client = await JsonClient.open(gw, "ada")
            await client.request(1, "state")
            assert (await client.frame("msg", rid=1))["body"] == 1
            assert list(await gw_store.nodes.nodes()) == [gw.node]
            assert steps == ["begin"]
    assert steps == ["begin", "end"]
    assert await gw_store.nodes.nodes() == {}, "there is no other gateway that would forget this one"


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
async def test_a_server_that_may_evict_sessions_is_warned_about_at_the_start(
    new_server: Any, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    server = new_server()
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
    async with App(server.url) as app, gateway(app):
        pass
    assert (f"maxmemory-policy is {policy}" in caplog.text) == (policy != "noeviction")


async def test_the_threads_of_its_handlers_end_with_a_gateway(app: App) -> None:
    seen: list[threading.Thread] = []

    @app.action("where", where="gateway")
    def where() -> str:
        seen.append(threading.current_thread())
        return seen[0].name

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "where")
        assert (await client.frame("msg", rid=1))["body"].startswith("veredus-")
    await asyncio.to_thread(seen[0].join, PATIENCE)
    assert not seen[0].is_alive()


async def test_a_drain_ends_one_connection_after_the_other(app: App) -> None:
    """So that not all come to the next gateway together: of three, the last is served two seconds longer."""

    @app.action("here", where="gateway")
    async def here() -> bool:
        return True

    gw = gateway(app)
    await gw.start()
    clients = [await JsonClient.open(gw, user) for user in ("ada", "bob", "eve")]
    stopping = asyncio.create_task(gw.stop(drain=3.0))
    await until(lambda: sum(not connection.over for connection in gw.delivery.connections) < 3)
    answered = 0
    for client in clients:
        with contextlib.suppress(ConnectionClosed):
            await client.request(1, "here")
            await client.frame("msg")
            answered += 1
    assert answered >= 1
    await stopping


async def test_a_stop_at_the_end_of_the_start_drains_the_clients_that_are_there(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can connect before the gateway has written its addresses."""
    beats, is_held = 0, asyncio.Event()
    beat = Maintenance.beat

    async def held(self: Maintenance) -> None:
        nonlocal beats
        beats += 1
        if beats > 1:
            is_held.set()
            await asyncio.Event().wait()
        await beat(self)

    monkeypatch.setattr(Maintenance, "beat", held)
    gw = gateway(app)
    starting = asyncio.create_task(gw.start())
    await is_held.wait()
    client = await JsonClient.open(gw, "ada")
    starting.cancel()
    await asyncio.wait([starting])
    assert gw.serving
    stopping = asyncio.create_task(gw.stop(drain=0.1))
    await client.frame("goaway")
    assert await client.close_code() == 4000
    await stopping


async def test_nobody_comes_in_while_a_gateway_drains(app: App) -> None:
    gw = gateway(app)
    await gw.start()
    client = await JsonClient.open(gw, "ada")
    address = gw.ws_address
    stopping = asyncio.create_task(gw.stop(drain=0.3))
    assert (await client.frame("goaway"))["reconnect_within_ms"] == 300
    assert gw.not_ready()
    with pytest.raises((OSError, InvalidHandshake)):
        await JsonClient.connect(f"ws://{address}/")
    assert not stopping.done()
    assert await client.close_code() == 4000
    await stopping


async def test_a_client_that_does_not_leave_is_cut_when_a_gateway_stops(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing, so it never hears the last words and never closes its end."""
    monkeypatch.setattr(gateway_module, "CLOSE_TIMEOUT", 0.05)
    gw = gateway(app)
    await gw.start()
    await JsonClient.open(gw, "ada")
    (connection,) = gw.delivery.connections
    monkeypatch.setattr(connection.transport, "close", lambda code, reason="": None)
    await gw.stop(drain=0.0)
    assert not gw.delivery.connections
    assert connection.transport.closed


async def test_a_client_that_leaves_when_a_gateway_stops_is_not_cut(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut before its own farewell, it may lose the last words."""
    gw = gateway(app)
    await gw.start()
    client = await JsonClient.open(gw, "ada")
    (connection,) = gw.delivery.connections
    cuts: list[object] = []
    monkeypatch.setattr(connection.transport, "abort", lambda: cuts.append(connection))
    await gw.stop(drain=0.0)
    assert cuts == []
    assert not gw.delivery.connections
    assert await client.close_code() == 4000
