"""Coming, going and coming back: identity, secrets, cursors, replay, acks; over real sockets."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jwt as pyjwt
import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.errors import ConnectionLost, Unauthorized
from veredus.gateway.auth import Identity, jwt
from veredus.link.server import ServerLink
from veredus.model.delivery import MAX_GROUPS_PER_SESSION
from veredus.store.sessions.sessions import Attached
from veredus.store.store import Store

SECRET = "a shared secret of thirty-two bytes!"


def _token(user: str = "ada", seconds: float = 60, key: str = SECRET) -> str:
    return pyjwt.encode({"sub": user, "exp": time.time() + seconds}, key, algorithm="HS256")


async def _refusal(client: JsonClient, token: str, resume: dict[str, object] | None = None) -> int:
    frame: dict[str, object] = {"t": "hello", "version": 1, "token": token}
    if resume is not None:
        frame["resume"] = resume
    await client.send(frame)
    return await client.close_code()


async def test_a_push_arrives_with_every_field_and_its_ack_empties_the_log(app: App, gw_store: Store) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        assert client.welcome["result"] == "new"
        result = await app.push({"n": 1}, session=client.sid, type="news", title="T", content="C", metadata={"k": "v"})
        assert result.status == "queued"
        (message,) = await client.take(1)
        assert (message["seq"], message["kind"], message["type"], message["title"]) == (1, "notify", "news", "T")
        assert (message["content"], message["metadata"], message["body"]) == ("C", {"k": "v"}, {"n": 1})
        await client.ack()

        async def acked() -> bool:
            return (await gw_store.sessions.show([client.sid]))[0].floor == 1

        await until(acked)
        await client.close()


async def test_o6_o8_what_was_missed_comes_with_the_welcome_in_order_and_before_anything_new(app: App) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push(0, session=client.sid)
        await client.take(1)
        client.cut()
        await until(lambda: not gw.delivery.connections, what="the end of the connection")
        for number in range(1, 300):
            await app.push(number, session=client.sid)
        again = await JsonClient.connect(gw)
        await again.send({"t": "hello", "version": 1, "token": "ada", "resume": client.resumption()})
        text = await again._socket.recv()
        lines = str(text).splitlines()
        assert '"welcome"' in lines[0]
        assert len(lines) > 1, "the welcome and the first of what was missed leave in one write"
        again._frames = [__import__("json").loads(line) for line in lines]
        again.welcome = await again.frame("welcome")
        again.cursor = again.welcome["cursor"]
        assert again.welcome["result"] == "resumed"
        await app.push("new", session=client.sid)
        seen: list[object] = []
        while "new" not in seen:
            seen.append((await again.frame("msg"))["body"])
            if len(seen) % 32 == 0:
                await again.ack()
        assert seen == [*range(1, 300), "new"]
        assert [message["seq"] for message in again.messages] == list(range(2, 302))


async def test_s1_identity_is_checked_at_every_attach(app: App) -> None:
    """A forged token, an expired one, another user's session, a wrong secret: none of them gets in or kicks anybody."""
    async with gateway(app, authenticate=jwt(SECRET)) as gw:
        ada = await JsonClient.open(gw, _token())
        for token in ("", "forged", _token(key="another secret of thirty-two bytes!!"), _token(seconds=-5)):
            assert await _refusal(await JsonClient.connect(gw), token) == 4501
            assert await _refusal(await JsonClient.connect(gw), token, ada.resumption()) == 4501
        assert await _refusal(await JsonClient.connect(gw), _token("eve"), ada.resumption()) == 4501
        assert await _refusal(await JsonClient.connect(gw), _token(), ada.resumption(secret="guess")) == 4501
        await app.push("still here", session=ada.sid)
        assert (await ada.take(1))[0]["body"] == "still here"


async def test_an_unknown_session_is_answered_with_a_new_one_and_the_reason(app: App) -> None:
    async with gateway(app) as gw:
        for sid in ("p000-aaaaaaaaaaaaaaaaaaaa", "nonsense", "p0zz-x"):
            resume = {"sid": sid, "secret": "s", "cursor": {"epoch": "00000000", "seq": 5, "ts": 1}}
            client = await JsonClient.open(gw, "ada", resume)
            assert (client.welcome["result"], client.welcome["reason"]) == ("reset", "unknown")
            assert client.sid != sid


async def test_o9_an_ack_beyond_what_was_sent_is_refused(app: App) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.ack(1_000_000)
        assert await client.close_code() == 4500
        again = await JsonClient.open(gw, "ada", client.resumption())
        await app.push("x", session=client.sid)
        assert (await again.take(1))[0]["seq"] == 1


async def test_a_token_that_expires_ends_the_connection_as_resumable_unless_it_is_renewed(app: App) -> None:
    async with gateway(app, authenticate=jwt(SECRET), heartbeat=0.2) as gw:
        short, renewed = [await JsonClient.open(gw, _token(seconds=3)) for _ in range(2)]
        await renewed.send({"t": "auth", "token": _token(seconds=60)})
        assert await short.close_code() == 4004
        assert (await JsonClient.open(gw, _token(), short.resumption())).welcome["result"] == "resumed"
        await app.push("x", session=renewed.sid)
        assert (await renewed.take(1))[0]["body"] == "x"
        await renewed.send({"t": "auth", "token": _token("eve")})
        assert await renewed.close_code() == 4501


async def test_a_new_token_brings_a_new_identity(app: App) -> None:
    asked: list[Identity] = []

    def may_join(who: Identity, group: str) -> bool:
        asked.append(who)
        return True

    async with gateway(app, authenticate=lambda token: Identity(user="ada", groups=(token,)), may_join=may_join) as gw:
        client = await JsonClient.open(gw, "first")
        await client.send({"t": "auth", "token": "second"})
        (connection,) = gw.delivery.attached.values()
        await until(lambda: connection.identity != Identity(user="ada", groups=("first",)))
        await client.send({"t": "join", "group": "g"})
        assert (await client.frame("vol"))["body"]["joined"]
        assert asked == [Identity(user="ada", groups=("second",))]


async def test_an_answer_about_a_group_is_told_although_others_waited_to_leave(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    volatile, refused = ServerLink.volatile, list[Any]()

    def refuses_twice(link: ServerLink, *args: Any, **more: Any) -> bool:
        if len(refused) < 2:
            refused.append(args)
            return False
        return volatile(link, *args, **more)

    monkeypatch.setattr(ServerLink, "volatile", refuses_twice)
    async with gateway(app, may_join=lambda who, group: True) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.send({"t": "join", "group": "g"})
        assert (await client.frame("vol"))["body"]["joined"]


async def test_the_second_connection_of_a_session_supersedes_the_first(app: App) -> None:
    async with gateway(app) as one, gateway(app) as two:
        first = await JsonClient.open(one, "ada")
        second = await JsonClient.open(two, "ada", first.resumption())
        assert second.welcome["result"] == "resumed"
        assert await first.close_code() == 4503
        third = await JsonClient.open(two, "ada", second.resumption())
        assert await second.close_code() == 4503
        await app.push("x", session=first.sid)
        assert (await third.take(1))[0]["body"] == "x"


async def test_s7_bye_ends_the_session_everywhere(app: App, gw_store: Store) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.send({"t": "bye"})
        assert await client.close_code() == 4504

        async def is_gone() -> bool:
            return not await gw_store.sessions.show([client.sid])

        await until(is_gone)
        assert (await app.push("x", session=client.sid)).status == "gone"
        again = await JsonClient.open(gw, "ada", client.resumption())
        assert again.welcome["result"] == "reset"


async def test_s2_s3_a_connection_that_ends_leaves_nothing_behind(app: App, gw_store: Store) -> None:
    async with gateway(app, session_ttl=0.5) as gw:
        clients = [await JsonClient.open(gw, f"user{n}") for n in range(40)]
        assert len(gw.delivery.attached) == 40
        for client in clients:
            client.cut()
        await until(lambda: not gw.delivery.connections and not gw.delivery.attached, what="the end of all")
        assert gw.overload.connections == 0

        async def none_left() -> bool:
            return not await gw_store.sessions.count()

        await until(none_left)
        for client in clients:
            assert (await app.push("x", session=client.sid)).status == "gone"
        assert await gw_store.sessions.sessions_of("user1") == []


async def test_s4_s6_a_restarted_client_may_begin_again_with_any_request_number(app: App) -> None:
    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for rid in (7, 3, 100):
            await client.request(rid, "echo", {"text": str(rid)})
            assert (await client.frame("msg", rid=rid))["body"] == str(rid)
        client.cut()
        again = await JsonClient.open(gw, "ada", client.resumption())
        await again.request(1, "echo", {"text": "one"})
        assert (await again.frame("msg", rid=1))["body"] == "one"


async def test_s9_a_connection_without_a_hello_is_closed_in_time(app: App) -> None:
    async with gateway(app, hello_timeout=0.3) as gw:
        client = await JsonClient.connect(gw)
        began = time.monotonic()
        assert await client.close_code() == 4502
        assert time.monotonic() - began < 5, "not after the default of 10 s"


async def test_a_client_that_answers_no_ping_is_dropped_and_may_resume(app: App) -> None:
    async with gateway(app, heartbeat=0.2, pong=0.3) as gw:
        client = await JsonClient.open(gw, "ada")
        async with asyncio.timeout(PATIENCE):
            while '"close"' not in str(text := await client._socket.recv()):
                pass
        assert "4001" in str(text)
        assert (await JsonClient.open(gw, "ada", client.resumption())).welcome["result"] == "resumed"


async def test_a_user_has_so_many_sessions_and_the_oldest_gives_way(app: App) -> None:
    async with gateway(app, sessions_per_user=2) as gw:
        clients = [await JsonClient.open(gw, "ada") for _ in range(3)]
        assert await clients[0].close_code() == 4503
        results = await app.push("x", user="ada")
        assert len(results) == 2
        for client in clients[1:]:
            assert (await client.take(1))[0]["body"] == "x"


async def test_groups_given_by_identity_and_joined_by_clients_if_allowed(app: App) -> None:
    def authenticate(token: str) -> Identity:
        if not token:
            raise Unauthorized("no token")
        return Identity(user=token, groups=("all",))

    async with gateway(app, authenticate=authenticate, may_join=lambda who, group: group == f"room-{who.user}") as gw:
        client = await JsonClient.open(gw, "ada")
        assert (await app.push("x", group="all")).queued == 1
        assert (await client.take(1))[0]["group"] == "all"
        await client.send({"t": "join", "group": "room-eve"})
        assert (await client.frame("vol"))["body"]["code"] == 403
        await client.send({"t": "join", "group": "room-ada"})
        assert (await client.frame("vol"))["body"] == {"group": "room-ada", "joined": True, "code": 0, "error": ""}
        assert (await app.push("y", group="room-ada")).queued == 1
        assert (await client.take(1))[0]["body"] == "y"
        await client.send({"t": "leave", "group": "room-ada"})
        assert not (await client.frame("vol"))["body"]["joined"]
        assert (await app.push("z", group="room-ada")).queued == 0


async def test_s8_what_waited_for_an_absent_user_comes_first_numbered_and_framed_like_all_else(app: App) -> None:
    await app.push("early", user="ada", wait=60)
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        (message,) = await client.take(1)
        assert (message["seq"], message["kind"], message["body"]) == (1, "notify", "early")


async def test_an_expired_message_becomes_a_tombstone_live_and_in_replay(app: App) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        await until(lambda: not gw.delivery.connections)
        await app.push("old", session=client.sid, ttl=0.05)
        await app.push("new", session=client.sid, ttl=60)
        expired_at = time.time() + 0.06
        await until(lambda: time.time() > expired_at)
        again = await JsonClient.open(gw, "ada", client.resumption())
        first, second = await again.take(2)
        assert (first["kind"], first.get("body")) == ("tombstone", None)
        assert (second["seq"], second["body"]) == (2, "new")


@pytest.mark.parametrize("body", ["small", "x" * 20_000], ids=["hinted", "read"])
async def test_what_expires_on_its_way_to_a_client_that_is_here_becomes_a_tombstone(app: App, body: str) -> None:
    """A small message comes with its hint, a large one is read from the log; the server's clock decides."""
    async with gateway(app, position_check=600.0) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push(body, session=client.sid, ttl=60)
        (first,) = await client.take(1)
        gw._clock.ahead += 120.0
        ahead = time.time() - time.monotonic() + 100.0
        await until(lambda: gw.delivery._wall_offset > ahead, what="a tick")
        await app.push(body, session=client.sid, ttl=60)
        await app.push(body, session=client.sid, ttl=600)
        await app.push(body, session=client.sid)
        kinds = [one["kind"] for one in (first, *await client.take(3))]
        assert kinds == ["notify", "tombstone", "notify", "notify"]


@pytest.mark.parametrize("policy", ["drop_oldest", "reject"])
async def test_over_quota_the_client_is_told_exactly_what_it_lost(app: App, policy: str) -> None:
    async with gateway(app, quota_entries=10, policy=policy) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        await until(lambda: not gw.delivery.connections)
        statuses = [(await app.push(n, session=client.sid)).status for n in range(15)]
        again = await JsonClient.open(gw, "ada", client.resumption())
        if policy == "reject":
            assert statuses == ["queued"] * 10 + ["full"] * 5
            assert [one["body"] for one in await again.take(10)] == list(range(10))
        else:
            assert statuses == ["queued"] * 15
            assert again.welcome["result"] == "resumed"
            gap = await again.frame("gap")
            assert (gap["from"], gap["to"]) == (1, 5)
            assert [one["body"] for one in await again.take(10)] == list(range(5, 15))


async def test_what_is_pushed_while_a_session_is_being_attached_is_not_forgotten(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint comes before the gateway knows whose session that is: it looks into the log when it does."""
    async with gateway(app, position_check=600.0) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        await until(lambda: not gw.delivery.attached, what="the cut is noticed")
        sessions = gw.handshake._sessions
        attach = sessions.attach

        async def attach_slowly(sid: str, **more: Any) -> Attached:
            attached = await attach(sid, **more)
            await app.push("in between", session=sid)
            await until(lambda: sid in gw.delivery._strays, what="the hint")
            return attached

        monkeypatch.setattr(sessions, "attach", attach_slowly)
        again = await JsonClient.open(gw, "ada", client.resumption())
        assert (await again.take(1))[0]["body"] == "in between"


@pytest.mark.parametrize("how", ["resume", "auth"])
async def test_the_groups_of_the_token_apply_at_every_attach_and_refresh(app: App, how: str) -> None:
    """The token is the list of its groups. What the client has joined by itself stays."""

    def authenticate(token: str) -> Identity:
        return Identity(user="ada", groups=tuple(token.split()))

    async def change(client: JsonClient, token: str) -> JsonClient:
        if how == "resume":
            client.cut()
            return await JsonClient.open(gw, token, client.resumption())
        await client.send({"t": "auth", "token": token})
        (connection,) = gw.delivery.attached.values()
        await until(lambda: connection.identity == authenticate(token), what="the new identity")
        return client

    async def heard(client: JsonClient) -> list[str]:
        for group in ("a", "b", "own"):
            await app.push(group, group=group)
        await app.push("end", session=client.sid)
        bodies: list[str] = []
        while not bodies or bodies[-1] != "end":
            bodies.append((await client.frame("msg"))["body"])
        return bodies[:-1]

    async with gateway(app, authenticate=authenticate, may_join=lambda who, group: True) as gw:
        client = await JsonClient.open(gw, "a")
        await client.send({"t": "join", "group": "own"})
        await client.frame("vol")
        assert await heard(client) == ["a", "own"]
        client = await change(client, "b")
        assert await heard(client) == ["b", "own"]
        client = await change(client, "a b")
        assert await heard(client) == ["a", "b", "own"]
        client = await change(client, "")
        assert await heard(client) == ["own"]


async def test_joins_and_leaves_of_a_group_count_in_the_order_in_which_they_came(app: App) -> None:
    """Also if the hook of a join takes longer than a leave, which needs none."""
    go_on = asyncio.Event()

    async def may_join(who: Identity, group: str) -> bool:
        await go_on.wait()
        return True

    async with gateway(app, may_join=may_join) as gw:
        client = await JsonClient.open(gw, "ada")
        frames = [{"t": what, "group": f"g{n}"} for n in range(3) for what in ("join", "leave")]
        await client.send(*frames, {"t": "join", "group": "last"}, {"t": "leave", "group": "never joined"})
        assert (await client.frame("vol"))["body"]["group"] == "never joined", "one group does not wait for another"
        go_on.set()
        for _ in range(len(frames) + 1):
            await client.frame("vol")
        assert [await app.members(group) for group in ("g0", "g1", "g2")] == [[], [], []]
        assert len(await app.members("last")) == 1


async def test_groups_that_are_joined_and_left_one_after_the_other_never_are_too_many(app: App) -> None:
    """Sent at once: the joins do not all run before the leaves."""
    async with gateway(app, may_join=lambda who, group: True) as gw:
        client = await JsonClient.open(gw, "ada")
        count = MAX_GROUPS_PER_SESSION + 40
        await client.send(*[{"t": what, "group": f"g{n}"} for n in range(count) for what in ("join", "leave")])
        answers = [(await client.frame("vol"))["body"] for _ in range(2 * count)]
        assert {answer["error"] for answer in answers} == {""}


async def test_of_two_tokens_the_one_that_was_shown_last_counts(app: App) -> None:
    go_on = asyncio.Event()

    async def authenticate(token: str) -> Identity:
        if token == "slow":
            await go_on.wait()
        return Identity(user="ada", groups=(token,))

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.open(gw, "first")
        await client.send({"t": "auth", "token": "slow"}, {"t": "auth", "token": "quick"}, {"t": "leave", "group": "x"})
        await client.frame("vol")  # all three have come
        go_on.set()

        async def settled() -> bool:
            return bool(await app.members("quick")) and not gw.handshake._background._running

        await until(settled, what="the groups of the last token")
        assert await app.members("slow") == []


async def test_a_new_token_is_written_as_soon_as_the_store_can_be_reached(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async with gateway(app, authenticate=lambda token: Identity(user="ada", groups=(token,))) as gw:
        client = await JsonClient.open(gw, "a")
        sessions = gw.handshake._sessions
        grant = sessions.grant

        async def away_twice(*args: Any, **more: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls <= 2:
                raise ConnectionLost("away")
            return await grant(*args, **more)

        monkeypatch.setattr(sessions, "grant", away_twice)
        await client.send({"t": "auth", "token": "b"})
        (connection,) = gw.delivery.attached.values()
        await until(lambda: connection.identity == Identity(user="ada", groups=("b",)), what="the new identity")
        assert calls == 3
        (row,) = await sessions.show([client.sid])
        assert row.groups == ("b",)
