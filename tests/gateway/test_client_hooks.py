"""Hooks that are called when clients come and go: in order, with the reason, in threads, without hurting anybody."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fleet import Site
from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import pause, until
from veredus import App, Unauthorized
from veredus.errors import ConfigError
from veredus.gateway import client_hooks
from veredus.gateway.auth import Identity
from veredus.gateway.client_hooks import CloseReason, ConnectedClient
from veredus.peer import connect
from veredus.process import outage_log


class Diary:
    """What hooks were told, in their order."""

    def __init__(self, app: App) -> None:
        self.lines: list[tuple[Any, ...]] = []

        @app.on_connect
        async def came(client: ConnectedClient) -> None:
            self.lines.append(("came", client.session, client.user, client.result, client.transport))

        @app.on_disconnect
        def went(client: ConnectedClient, reason: CloseReason) -> None:
            self.lines.append(("went", client.session, client.user, reason))


@pytest.mark.parametrize("kind", ["ws", "quic"])
async def test_each_connection_is_told_with_how_it_began_and_why_it_ended(app: App, kind: str) -> None:
    diary = Diary(app)
    transport = "websocket" if kind == "ws" else "quic"
    async with gateway(app, quic="127.0.0.1:0" if kind == "quic" else "off") as gw:
        address = gw.ws_address if kind == "ws" else gw.quic_address
        async with connect(f"{kind}://{address}", token="ada", backoff_base=0.01, backoff_max=0.02) as peer:
            sid = peer.session
            await until(lambda: len(diary.lines) == 1)
            peer.cut()
            await until(lambda: len(diary.lines) == 3, what="the cut and the resume")
        await until(lambda: len(diary.lines) == 4)
        came, *others, bye = diary.lines
        assert came == ("came", sid, "ada", "new", transport)
        assert ("came", sid, "ada", "resumed", transport) in others
        assert {line[0] for line in others} == {"came", "went"}
        assert bye[:3] == ("went", sid, "ada")
        assert str(bye[3]) == "4504 bye"


async def test_the_reason_is_the_one_that_the_client_is_told(app: App) -> None:
    diary = Diary(app)
    async with gateway(app) as gw:
        for number, reason in enumerate(("spam", "noise"), 1):
            client = await JsonClient.open(gw, "ada")
            await app.disconnect(session=client.sid, reason=reason)
            assert await client.close_code() == 4504
            await until(lambda number=number: len(diary.lines) == 2 * number)
        last = await JsonClient.open(gw, "ada")
    assert [line[0] for line in diary.lines] == ["came", "went"] * 3  # also those of a stop, before it has ended
    assert [line[3] for line in diary.lines if line[0] == "went"] == [
        CloseReason(4504, "spam"), CloseReason(4504, "noise"), CloseReason(4000, "this gateway is stopping"),
    ]  # fmt: skip
    await last.close()


async def test_whoever_gets_no_session_is_told_to_nobody(app: App) -> None:
    diary = Diary(app)

    def authenticate(token: str) -> Identity:
        raise Unauthorized("no")

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.connect(gw)
        await client.send({"t": "hello", "version": 1, "token": "x"})
        assert await client.close_code() == 4501
        await until(lambda: not gw.delivery.connections)
    assert diary.lines == []


async def test_a_hook_that_raises_is_logged_and_hurts_nobody(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "INTERVAL", 600.0)

    @app.on_connect
    def fails(client: ConnectedClient) -> None:
        raise ValueError("out of paper")

    diary = Diary(app)
    async with gateway(app) as gw:
        for number in range(1, 4):
            client = await JsonClient.open(gw, "ada")
            await app.push("x", session=client.sid)
            assert (await client.take(1))[0]["body"] == "x"
            await until(lambda number=number: len(diary.lines) == number, what="the other hook")
        assert len(gw.delivery.connections) == 3
    (line,) = [record for record in caplog.records if "out of paper" in record.getMessage()]  # said once, not thrice
    assert line.getMessage().startswith("on_connect: ")
    assert line.exc_info is not None


async def test_a_hook_that_hangs_delays_nobody_and_is_left_after_a_while(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_hooks, "HOOK_TIMEOUT", 0.2)
    over = threading.Event()
    threads: list[str] = []

    @app.on_connect
    def hangs(client: ConnectedClient) -> None:
        threads.append(threading.current_thread().name)
        over.wait(60)

    diary = Diary(app)
    with caplog.at_level(logging.WARNING):
        async with gateway(app) as gw:
            client = await JsonClient.open(gw, "ada")
            await app.push("x", session=client.sid)
            assert (await client.take(1))[0]["body"] == "x"
            client.cut()
            await until(lambda: len(diary.lines) == 2)
            assert [line[0] for line in diary.lines] == ["came", "went"]
    over.set()
    assert "takes longer than 0.2 s" in caplog.text
    assert threads
    assert threading.main_thread().name not in threads


async def test_slow_hooks_do_not_pile_up_without_end(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_hooks, "MAX_WAITING", 3)
    begun: list[str] = []
    over = threading.Event()

    @app.on_connect
    def waits(client: ConnectedClient) -> None:
        begun.append(client.session)
        over.wait(60)

    async with gateway(app, hook_threads=1, sessions_per_user=9) as gw:
        clients = [await JsonClient.open(gw, "ada") for _ in range(5)]
        await until(lambda: begun)
        assert gw._hooks._waiting == 3
        over.set()
        await until(lambda: gw._hooks._waiting == 0)
        assert begun == [client.sid for client in clients[:3]]
        await JsonClient.open(gw, "ada")
        await until(lambda: len(begun) == 4)
    assert "more are skipped" in caplog.text


async def test_connections_of_a_session_are_numbered(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.on_connect
    def came(client: ConnectedClient) -> None:
        seen.append((client.session, client.generation))

    async with gateway(app) as gw:
        first = await JsonClient.open(gw, "ada")
        first.cut()
        await JsonClient.open(gw, "ada", first.resumption())
        await until(lambda: len(seen) == 2)
    assert sorted(seen) == [(first.sid, 1), (first.sid, 2)]


async def test_a_killed_gateway_tells_nobody_of_an_end_and_the_next_one_of_the_resume(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    with Site(valkey_server, tmp_path) as site:
        await site.ready()
        async with connect(site.urls("ws"), token="hooked", backoff_base=0.05) as peer:
            begun = f"came {peer.session} new 1"
            await until(lambda: begun in site.logs())
            killed = next(one for one in site.gateways if begun in one.log.read_text())
            killed.kill()
            await until(lambda: f"came {peer.session} resumed 2" in site.logs())
        await until(lambda: f"went {peer.session} 2" in site.logs())
        assert f"went {peer.session} 1" not in site.logs()


async def test_wrong_hooks_are_named(app: App) -> None:
    for name in ("on_connect", "on_disconnect"):
        with pytest.raises(ConfigError, match=name):
            getattr(app, name)("not a function")
        with pytest.raises(ConfigError, match=name):
            app.gateway(**{name: [5]})


async def test_a_stop_waits_for_the_hooks_of_the_last_connections(app: App) -> None:
    ended: list[str] = []

    @app.on_disconnect
    async def went(client: ConnectedClient, reason: CloseReason) -> None:
        await pause(0.1, proves="a hook has its time")
        ended.append(client.user)

    async with gateway(app) as gw:
        await JsonClient.open(gw, "ada")
    assert ended == ["ada"]
