"""What is refused, and what is not run: own limits, sizes, closed queues, deadlines, requests repeated or cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import forever, until
from veredus import App
from veredus.errors import ConnectionLost
from veredus.gateway.auth import Identity
from veredus.store.sessions import outbox


async def _refused(client: JsonClient, rid: int) -> dict[str, Any]:
    """The next word about this request is a refusal."""
    while (frame := await client.next()).get("rid") != rid:
        pass
    assert frame["t"] == "reject", frame
    return frame


async def test_an_identity_may_have_limits_of_its_own(app: App) -> None:
    def authenticate(token: str) -> Identity:
        limits: dict[str, dict[str, float]] = {
            "slow": {"request_rate": 0.01, "request_burst": 2},
            "narrow": {"open_requests": 1},
        }
        return Identity(user=token, limits=limits.get(token, {}))

    @app.action("wait", queue="nobody")
    async def wait() -> None: ...

    async with gateway(app, authenticate=authenticate) as gw:
        slow, narrow, other = [await JsonClient.open(gw, name) for name in ("slow", "narrow", "other")]
        for client in (slow, narrow, other):
            for rid in (1, 2, 3):
                await client.request(rid, "wait")
        frames = [await slow.next() for _ in range(3)]
        assert [frame["t"] for frame in frames].count("accept") == 2
        assert max(frame.get("retry_after_ms", 0) for frame in frames) > 10_000, "at its own rate, not at 50 per second"
        assert [(await narrow.next())["t"] for _ in range(3)].count("accept") == 1
        assert [(await other.next())["t"] for _ in range(3)].count("accept") == 3


async def test_the_limits_of_a_new_token_apply_and_it_gives_nothing_back(app: App) -> None:
    def authenticate(token: str) -> Identity:
        burst = 3 if token == "more" else 2
        return Identity(user="ada", limits={"request_rate": 0.001, "request_burst": burst, "open_requests": burst + 9})

    @app.action("echo", where="gateway")
    async def echo() -> None: ...

    async with gateway(app, authenticate=authenticate) as gw:
        client = await JsonClient.open(gw, "less")
        (connection,) = gw.delivery.connections
        bucket = connection.bucket
        assert bucket is not None
        for rid, token in enumerate(("more", "less", "more"), 1):
            await client.request(rid, "echo")
            await client.send({"t": "auth", "token": token})
            await until(lambda burst=3 if token == "more" else 2: bucket._burst == burst)
        told = [await client.next() for _ in range(5)]
        assert [frame["rid"] for frame in told if frame["t"] == "reject"] == [3]


async def test_a_client_may_shorten_the_deadline_of_an_action_not_lengthen_it(app: App) -> None:
    @app.action("wait", queue="nobody", deadline=0.2)
    async def wait() -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "wait", deadline_ms=3_600_000)
        assert (await client.frame("msg", rid=1))["code"] == 408


async def test_a_request_that_was_answered_by_its_deadline_is_not_run_by_a_worker_that_comes_later(app: App) -> None:
    ran: list[int] = []

    @app.action("note", queue="r")
    async def note(n: int) -> None:
        ran.append(n)

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "note", {"n": 1}, deadline_ms=100)
        assert (await client.frame("msg", rid=1))["code"] == 408
        await client.request(2, "note", {"n": 2})
        async with app.worker("r", concurrency=1):
            await client.frame("msg", rid=2)
        assert ran == [2]


async def test_a_task_may_not_run_longer_than_its_request_lives(app: App) -> None:
    ended: list[str] = []

    @app.action("hang", queue="r", timeout=600)
    async def hang() -> None:
        try:
            await forever()
        finally:
            ended.append("hang")

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "hang", deadline_ms=300)
        assert (await client.frame("msg", rid=1))["code"] == 408
        await until(lambda: ended, what="the end of the handler")


async def test_a_body_too_large_for_a_task_is_refused_and_its_place_is_free_again(valkey_server: RealServer) -> None:
    async with App(valkey_server.url, max_payload=1000) as app:

        @app.action("wait", queue="nobody")
        async def wait(text: str) -> None: ...

        async with gateway(app, open_requests=1) as gw:
            client = await JsonClient.open(gw, "ada")
            await client.request(1, "wait", {"text": "x" * 2000})
            refused = await _refused(client, 1)
            assert (refused["code"], refused.get("retryable", False)) == (413, False)
            assert "allowed are 1,000" in refused["error"]
            await client.request(2, "wait", {"text": "x"})
            assert (await client.next())["t"] == "accept"
            assert set(gw.router.open) == {(client.sid, 2)}


async def test_a_closed_queue_refuses_requests_for_the_moment(app: App) -> None:
    @app.action("wait", queue="r")
    async def wait() -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "wait")
        await client.frame("accept", rid=1)
        await app.inspector().close_queue("r")
        await client.request(2, "wait")
        refused = await _refused(client, 2)
        assert (refused["code"], refused["retryable"]) == (503, True)
        assert "closed" in refused["error"]
        await app.inspector().open_queue("r")
        await client.request(3, "wait")
        assert (await client.frame("accept"))["rid"] == 3


async def test_a_repeated_request_to_the_gateway_itself_runs_once(app: App) -> None:
    ran: list[int] = []
    release = asyncio.Event()

    @app.action("note", where="gateway")
    async def note() -> int:
        ran.append(1)
        await release.wait()
        return len(ran)

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for _ in range(2):
            await client.request(1, "note")
            await client.frame("accept", rid=1)
        release.set()
        assert (await client.frame("msg", rid=1))["body"] == 1
        await client.request(1, "note")
        await client.frame("accept", rid=1)
        assert ran == [1]
        assert gw.router.counters["repeated"] == 2


async def test_a_cancelled_handler_of_the_gateway_ends(app: App) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @app.action("hang", where="gateway")
    async def hang() -> None:
        began.set()
        try:
            await forever()
        finally:
            ended.set()

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "hang")
        await began.wait()
        await client.send({"t": "cancel", "rid": 1})
        assert (await client.frame("msg", rid=1))["code"] == 499
        async with asyncio.timeout(30):
            await ended.wait()
        await until(lambda: not gw._local_actions.running)
        await client.send({"t": "cancel", "rid": 1})
        await app.push("end", session=client.sid)
        assert (await client.frame("msg"))["body"] == "end", "a second cancel finds its answer there"
        assert gw.router.counters["cancelled"] == 1


async def test_bytes_stay_bytes_through_a_handler_of_the_gateway(app: App) -> None:
    @app.action("bytes", where="gateway")
    async def give() -> bytes:
        return b"1"  # which would be JSON too

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "bytes")
        answer = await client.frame("msg", rid=1)
        assert (answer["body64"], "body" in answer) == ("MQ==", False)


async def test_busy_handlers_of_the_gateway_do_not_stop_requests_to_workers(app: App) -> None:
    began = asyncio.Event()

    @app.action("hang", where="gateway")
    async def hang() -> None:
        began.set()
        await forever()

    @app.action("wait", queue="nobody")
    async def wait() -> None: ...

    async with gateway(app, handlers=1) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "hang")
        await began.wait()
        await client.request(2, "hang")
        refused = await _refused(client, 2)
        assert (refused["code"], refused["retryable"]) == (503, True)
        await client.request(3, "wait")
        assert (await client.frame("accept", rid=3))["rid"] == 3


async def test_a_request_of_a_session_that_is_gone_ends_the_connection(app: App, valkey_server: RealServer) -> None:
    @app.action("wait", queue="nobody")
    async def wait() -> None: ...

    async with gateway(app, position_check=600.0) as gw:
        client = await JsonClient.open(gw, "ada")
        with valkey_server.client() as redis:
            redis.delete(f"gw:{{{client.sid[:4]}}}:s:{client.sid}:m")
        await client.request(1, "wait")
        assert await client.close_code() == 4007


async def test_an_answer_that_is_read_from_the_log_counts_as_one_that_was_hinted(app: App) -> None:
    """Otherwise requests would count as unanswered until their deadline, and new ones be refused."""

    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app, position_check=0.1, heartbeat=0.2, max_upstream=1) as gw:
        gw._hints._on_hints = lambda rows: None  # deaf, though subscribed
        client = await JsonClient.open(gw, "ada")
        for rid in (1, 2):
            await client.request(rid, "echo", {"text": "x"})
            await client.frame("msg", rid=rid)
            assert not gw.router.open


async def test_leaving_groups_counts_in_a_flood(app: App) -> None:
    async with gateway(app, request_rate=5, request_burst=10) as gw:
        flooder = await JsonClient.open(gw, "ada")
        for _ in range(4):
            await flooder.send(*[{"t": "leave", "group": "g"}] * 50)
        assert await flooder.close_code() == 4005


async def test_a_client_that_never_says_which_answers_it_has_seen_may_ask_for_ever(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old requests are forgotten; the youngest ones and the open ones are still known."""
    monkeypatch.setattr(outbox, "MAX_REQUEST_RECORDS", 20)
    ran: list[int] = []

    @app.action("note", where="gateway")
    async def note(n: int) -> int:
        ran.append(n)
        return n

    @app.action("wait", queue="nobody")
    async def wait() -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "wait")
        await client.frame("accept", rid=1)
        for rid in range(2, 62):
            await client.request(rid, "note", {"n": rid})
            assert (await client.frame("msg", rid=rid))["body"] == rid
            await client.ack()
        for rid in (1, 2, 30, 61):
            await client.request(rid, "note", {"n": rid})
            await client.frame("accept", rid=rid)
        await client.request(62, "note", {"n": 62})
        await client.frame("msg", rid=62)
        assert ran == list(range(2, 63)), "none of them ran again"


async def test_a_join_without_the_store_is_answered_with_try_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(sid: str, group: str) -> bool:
        raise ConnectionLost("away")

    async with gateway(app, may_join=lambda who, group: True) as gw:
        client = await JsonClient.open(gw, "ada")
        with monkeypatch.context() as patch:
            patch.setattr(gw.handshake._sessions, "join", away)
            await client.send({"t": "join", "group": "room"})
            answer = (await client.frame("vol"))["body"]
            assert (answer["joined"], answer["code"]) == (False, 503)
        await client.send({"t": "join", "group": "room"})
        answer = (await client.frame("vol"))["body"]
        assert (answer["joined"], answer["code"]) == (True, 0)
