"""Sessions that are ended from outside: disconnected, or their tokens revoked, whichever node has the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt as pyjwt
import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.errors import ConfigError, ConnectionLost, SessionClosed
from veredus.gateway.auth import Identity, jwt
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.gateway import Gateway
from veredus.peer import connect
from veredus.store.sessions.sessions import Attached
from veredus.store.store import Store
from veredus.wire import session_keys as keys

SECRET = "a shared secret of thirty-two bytes!"
BEGUN = time.time()


def token(user: str = "ada", *, issued: float = 0.0) -> str:
    """Issued so many seconds after this module was loaded."""
    claims = {"sub": user, "exp": time.time() + 600, "iat": BEGUN + issued}
    return pyjwt.encode(claims, SECRET, algorithm="HS256")


async def closing(client: JsonClient, *, token: str = "", resume: dict[str, Any] | None = None) -> tuple[int, str]:
    """With which code and reason it is closed, after a hello if there is a token."""
    if token:
        frame: dict[str, Any] = {"t": "hello", "version": 1, "token": token}
        await client.send(frame | ({"resume": resume} if resume else {}))
    frame = await client.frame("close")
    assert await client.close_code() == frame["code"]
    return frame["code"], frame["reason"]


@pytest.fixture
async def nodes(app: App) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with gateway(app, position_check=600.0) as one, gateway(app, position_check=600.0) as two:
        yield one, two


@pytest.mark.parametrize("kind", ["ws", "quic"])
async def test_a_disconnected_client_learns_the_reason_and_does_not_come_back(app: App, kind: str) -> None:
    async with gateway(app, quic="127.0.0.1:0" if kind == "quic" else "off") as gw:
        address = gw.ws_address if kind == "ws" else gw.quic_address
        async with connect(f"{kind}://{address}", token="ada") as peer:
            assert await app.disconnect(session=peer.session, reason="too loud") == 1
            with pytest.raises(SessionClosed, match=r"^4504 too loud$") as ended:
                await asyncio.wait_for(peer.wait_closed(), PATIENCE)
            assert ended.value.code == 4504
        await until(lambda: not gw.delivery.connections)


async def test_all_sessions_of_a_user_end_wherever_they_are_connected_or_not(
    app: App, nodes: tuple[Gateway, Gateway], gw_store: Store
) -> None:
    here, there = [await JsonClient.open(node, "ada") for node in nodes]
    away = await JsonClient.open(nodes[0], "ada")
    away.cut()
    other = await JsonClient.open(nodes[0], "bob")
    await until(lambda: len(nodes[0].delivery.attached) == 2, what="the cut is noticed")
    assert await app.disconnect(user="ada", reason="spam") == 3
    for client in (here, there):
        assert await closing(client) == (4504, "spam")
    assert await gw_store.sessions.sessions_of("ada") == []
    assert await app.disconnect(user="ada", reason="spam") == 0
    for client in (here, there, away):  # whoever tries to resume is told the same, on any node
        again = await JsonClient.connect(nodes[1])
        assert await closing(again, token="ada", resume=client.resumption()) == (4504, "spam")
    assert (await JsonClient.open(nodes[0], "ada")).welcome["result"] == "new"
    await app.push("still here", session=other.sid)
    assert (await other.take(1))[0]["body"] == "still here"


async def test_without_a_reason_the_client_is_told_who_ended_it(app: App, nodes: tuple[Gateway, Gateway]) -> None:
    client = await JsonClient.open(nodes[0], "ada")
    assert await asyncio.to_thread(app.disconnect_sync, session=client.sid) == 1
    app.close_sync()
    assert await closing(client) == (4504, "the session was ended by the operator")
    again = await JsonClient.connect(nodes[1])
    told = await closing(again, token="ada", resume=client.resumption())
    assert told == (4504, "the session was ended by the operator")


@pytest.mark.parametrize("verb", ["disconnect", "revoke"])
@pytest.mark.parametrize("same_node", [True, False])
async def test_a_session_that_ends_while_it_is_being_attached_is_told_so(
    app: App, nodes: tuple[Gateway, Gateway], monkeypatch: pytest.MonkeyPatch, verb: str, same_node: bool
) -> None:
    """The word of its end comes before the gateway knows whose session that is."""
    client = await JsonClient.open(nodes[0], "ada")
    node = nodes[0] if same_node else nodes[1]
    sessions = node.handshake._sessions
    attach = sessions.attach

    async def attach_slowly(sid: str, **more: Any) -> Attached:
        attached = await attach(sid, **more)
        assert await (app.disconnect(session=sid) if verb == "disconnect" else app.revoke(user="ada")) == 1
        await until(lambda: node.delivery._strays.get(sid), what="the word of it")
        return attached

    kicked = ClientConnection.kicked  # the connection before is still there when the new one is told
    monkeypatch.setattr(
        ClientConnection, "kicked", lambda self, why: None if why == "superseded" else kicked(self, why)
    )
    monkeypatch.setattr(sessions, "attach", attach_slowly)
    again = await JsonClient.connect(node)
    code, _ = await closing(again, token="ada", resume=client.resumption())
    assert code == (4504 if verb == "disconnect" else 4501)
    await until(lambda: not node.delivery.attached)


async def test_a_node_that_does_not_hear_of_it_finds_out_and_its_client_is_told(
    app: App, nodes: tuple[Gateway, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes[0].delivery, "_kicked", lambda kick: None)
    async with connect(f"ws://{nodes[0].ws_address}", token="ada") as peer:
        assert await app.disconnect(session=peer.session, reason="spam") == 1
        nodes[0].delivery.check_all()  # as after a connection to Redis that broke
        with pytest.raises(SessionClosed, match=r"^4504 spam$"):
            await asyncio.wait_for(peer.wait_closed(), PATIENCE)


async def test_a_request_of_a_session_that_was_taken_over_ends_the_older_connection(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older node has not heard of it; the store refuses to record the request."""

    @app.action("echo", queue="r")
    async def echo(request: Any) -> None: ...

    async with gateway(app, position_check=600.0) as one, gateway(app, position_check=600.0) as two:
        monkeypatch.setattr(one.delivery, "_kicked", lambda kick: None)
        older = await JsonClient.open(one, "ada")
        await JsonClient.open(two, "ada", resume=older.resumption())
        await older.request(1, "echo")
        assert await closing(older) == (4503, "the session is attached by another connection")


async def test_after_a_lost_reply_the_same_sessions_are_counted(
    app: App, nodes: tuple[Gateway, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await JsonClient.open(nodes[0], "ada")
    sessions = app.notifier()._store.sessions
    for verb in ("disconnect", "revoke"):
        original, calls = getattr(sessions, verb), 0

        async def lose_the_first_reply(*args: Any, original: Any = original, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            answer = await original(*args, **more)
            if calls == 1:
                raise ConnectionLost("the reply is lost")
            return answer

        monkeypatch.setattr(sessions, verb, lose_the_first_reply)
    assert await app.disconnect(user="ada") == 2
    assert calls == 2
    await JsonClient.open(nodes[0], "ada")
    calls = 0
    assert await app.revoke(user="ada") == 1
    assert calls == 3


async def test_what_waits_for_a_user_survives_the_end_of_all_sessions(app: App, nodes: tuple[Gateway, Gateway]) -> None:
    first = await JsonClient.open(nodes[0], "ada")
    await app.push("kept", user="ada", wait=600)
    await first.take(1)  # not acknowledged
    await JsonClient.open(nodes[0], "ada")  # has not got it
    assert await app.disconnect(user="ada") == 2
    third = await JsonClient.open(nodes[1], "ada")
    assert [message["body"] for message in await third.take(1)] == ["kept"]


async def test_revoked_tokens_end_their_sessions_and_are_refused_on_every_node(app: App, gw_store: Store) -> None:
    settings: dict[str, Any] = {"authenticate": jwt(SECRET)}
    instant = datetime.fromtimestamp(BEGUN - 50, UTC)
    old, new = token(issued=-100), token(issued=-20)
    async with gateway(app, **settings) as one, gateway(app, **settings) as two:
        stolen, away = await JsonClient.open(one, old), await JsonClient.open(two, old)
        kept, bob = await JsonClient.open(two, new), await JsonClient.open(one, token("bob", issued=-100))
        away.cut()
        await until(lambda: len(two.delivery.attached) == 1, what="the cut is noticed")
        assert await app.revoke(user="ada", before=instant) == 2
        assert await closing(stolen) == (4501, "the token is revoked")
        for client in (stolen, away):
            again = await JsonClient.connect(two)
            assert (await closing(again, token=old, resume=client.resumption()))[0] == 4501
        for client in (kept, bob):
            await app.push("still here", session=client.sid)
            assert (await client.take(1))[0]["body"] == "still here"
        await kept.send({"t": "auth", "token": old})
        assert await closing(kept) == (4501, "the token is revoked")
        back = await JsonClient.open(one, new, kept.resumption())
        assert back.welcome["result"] == "resumed"
        lost = await JsonClient.open(one, new, stolen.resumption())
        assert (lost.welcome["result"], lost.welcome["reason"]) == ("reset", "unknown")
    async with gateway(app, **settings) as later:
        assert await closing(await JsonClient.connect(later), token=old) == (4501, "the token is revoked")
        assert (await JsonClient.open(later, new)).welcome["result"] == "new"
    assert await app.revoke(user="ada", before=instant - timedelta(days=1)) == 0  # an earlier one changes nothing
    async with gateway(app, **settings) as later:
        assert (await closing(await JsonClient.connect(later), token=old))[0] == 4501


async def test_tokens_without_a_time_count_from_when_they_were_shown(app: App) -> None:
    """One that was being checked while it was revoked was shown before; one that is shown now was not."""
    shown, checked = asyncio.Event(), asyncio.Event()

    async def authenticate(token: str) -> Identity:
        if token == "slow":
            shown.set()
            await checked.wait()
        return Identity(user="ada")

    async with gateway(app, authenticate=authenticate) as gw:
        client, slow = await JsonClient.open(gw, "quick"), await JsonClient.connect(gw)
        await slow.send({"t": "hello", "version": 1, "token": "slow"})
        await asyncio.wait_for(shown.wait(), PATIENCE)
        assert await asyncio.to_thread(app.revoke_sync, user="ada") == 1
        app.close_sync()
        checked.set()
        assert await closing(client) == (4501, "the token is revoked")
        assert await closing(slow) == (4501, "the token is revoked")
        renewed = await JsonClient.open(gw, "quick")
        assert renewed.welcome["result"] == "new"
        await renewed.send({"t": "auth", "token": "quick"})
        await app.push("x", session=renewed.sid)
        assert (await renewed.take(1))[0]["body"] == "x"


async def test_a_revoked_peer_is_told_and_does_not_come_back(app: App) -> None:
    async with (
        gateway(app, authenticate=jwt(SECRET)) as gw,
        connect(f"ws://{gw.ws_address}", token=lambda: token(issued=-1)) as peer,
    ):
        assert await app.revoke(user="ada") == 1
        with pytest.raises(SessionClosed, match=r"^4501 the token is revoked$"):
            await asyncio.wait_for(peer.wait_closed(), PATIENCE)
        with pytest.raises(SessionClosed, match=r"^4501 the token is revoked$"):
            await connect(f"ws://{gw.ws_address}", token=token(issued=-1))


async def test_a_revocation_outlives_the_tokens_and_a_shorter_one_does_not_shorten_it(
    app: App, gw_store: Store
) -> None:
    key = keys.revoked("ada")

    async def days_left() -> float:
        return int(await gw_store.redis.command("PTTL", key, key=key)) / 86_400_000

    await app.revoke(user="ada", before=time.time() + 10 * 86_400)
    assert 375 < await days_left() < 376.001
    value = await gw_store.redis.command("GET", key, key=key)
    await app.revoke(user="ada", keep=60)
    assert 375 < await days_left() < 376.001
    assert await gw_store.redis.command("GET", key, key=key) == value
    await app.revoke(user="bob", keep=60)
    assert 0 < await gw_store.redis.command("PTTL", keys.revoked("bob"), key=keys.revoked("bob")) <= 60_000


async def test_wrong_arguments_are_named(app: App) -> None:
    for wrong, field in (
        ({}, "target"),
        ({"session": "p000-x", "user": "ada"}, "target"),
        ({"session": "nonsense"}, "session"),
        ({"user": ""}, "user"),
        ({"user": "ada", "reason": "é" * 51}, "reason"),
        ({"user": "ada", "reason": 5}, "reason"),
    ):
        with pytest.raises(ConfigError, match=field):
            await app.disconnect(**wrong)
    for wrong, field in (
        ({"user": ""}, "user"),
        ({"user": "ada", "before": datetime(2026, 1, 1)}, "before"),  # noqa: DTZ001
        ({"user": "ada", "before": "yesterday"}, "before"),
        ({"user": "ada", "before": float("nan")}, "before"),
        ({"user": "ada", "keep": 0}, "keep"),
    ):
        with pytest.raises(ConfigError, match=field):
            await app.revoke(**wrong)
    for issued in (-1, float("inf"), "now", True):
        with pytest.raises(ConfigError, match="issued_at"):
            Identity(user="ada", issued_at=issued)  # type: ignore[arg-type]


async def test_a_revoked_token_resumes_no_session(app: App) -> None:
    """Not even one that a newer token has made, which stays."""
    async with gateway(app, authenticate=jwt(SECRET)) as gw:
        client = await JsonClient.open(gw, token(issued=-20))
        assert await app.revoke(user="ada", before=BEGUN - 50) == 0
        again = await JsonClient.connect(gw)
        told = await closing(again, token=token(issued=-100), resume=client.resumption())
        assert told == (4501, "the token is revoked")
        await app.push("still here", session=client.sid)
        assert (await client.take(1))[0]["body"] == "still here"
