"""A reject means that nothing happened and nothing will. Whatever may have happened is found out, or answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.gateway.test_lost_replies import LOSE_ALL, scene
from tests.support.faults import OOM, REPLY_LOST, Aim, FaultProxy, faults_before
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.gateway import request_intake
from veredus.store.connection.error_replies import NotSent
from veredus.store.sessions.outbox import ACCEPT
from veredus.store.store import Store
from veredus.store.tasks.intake import ENQUEUE

NewServer = Callable[..., RealServer]
TIMEOUT = 0.3


async def _end(client: JsonClient, app: App) -> list[dict[str, Any]]:
    """All frames that come before a push that is sent now."""
    frames: list[dict[str, Any]] = []
    await app.push("end", session=client.sid)
    while True:
        frame = await client.next()
        if frame["t"] == "msg" and frame.get("body") == "end":
            return frames
        frames.append(frame)


class Frozen:
    """A gateway and a worker on a server that can stand still, and what ran."""

    def __init__(self, server: RealServer, app: App, client: JsonClient, ran: list[str]) -> None:
        self.server, self.app, self.client, self.ran = server, app, client, ran


@pytest.fixture
async def at(new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Frozen]:
    """The gateway gives up on a call after a fraction of a second; its first try stands in the server's socket, and is
    executed when the server goes on."""
    monkeypatch.setattr(request_intake, "PATIENCE", TIMEOUT)
    server = new_server()
    async with App(server.url, timeout=TIMEOUT, patience=0.5) as app, App(server.url, timeout=30.0) as direct:
        ran: list[str] = []

        @app.action("here", where="gateway")
        async def here(text: str) -> str:
            ran.append(text)
            return text

        @app.action("there", queue="r")
        async def there(text: str) -> str:
            return text

        @direct.action("there", queue="r")
        async def runs(text: str) -> str:
            ran.append(text)
            return text

        async with direct.worker("r"), gateway(app) as gw:
            client = await JsonClient.open(gw, "ada")
            for rid, action in ((1, "here"), (2, "there")):
                await client.request(rid, action, {"text": action})
                await client.frame("msg", rid=rid)
            ran.clear()
            yield Frozen(server, direct, client, ran)


@pytest.mark.parametrize(("action", "no_reply"), [("here", False), ("there", False), ("there", True)])
async def test_a_request_that_meets_a_server_that_stands_still_is_not_rejected_and_runs_once(
    at: Frozen, action: str, no_reply: bool
) -> None:
    at.server.freeze()
    await at.client.request(3, action, {"text": "x"}, no_reply=no_reply)
    with pytest.raises(TimeoutError):  # longer than the gateway waits for a reply, and than it tries again
        await at.client.next(8 * TIMEOUT)
    at.server.thaw()
    await at.client.frame("accept", rid=3)
    if not no_reply:
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
    await until(lambda: at.ran == ["x"])
    assert [frame["t"] for frame in await _end(at.client, at.app)] == []
    assert at.ran == ["x"]


async def test_a_request_whose_deadline_passes_before_the_store_answers_gets_one_answer_and_does_not_run(
    at: Frozen,
) -> None:
    at.server.freeze()
    await at.client.request(3, "there", {"text": "x"}, deadline_ms=200)
    with pytest.raises(TimeoutError):
        await at.client.next(4 * TIMEOUT)
    at.server.thaw()
    frame = await at.client.next()
    assert (frame["t"], frame["rid"], frame["code"]) == ("msg", 3, 408)
    await at.client.request(4, "there", {"text": "next"})
    await at.client.frame("msg", rid=4)
    assert at.ran == ["next"]
    assert await _end(at.client, at.app) == []


async def test_a_request_that_could_not_be_recorded_before_its_deadline_is_answered_all_the_same(
    valkey_server: RealServer,
) -> None:
    """No record of it is there for a sweep to find."""
    async with scene(valkey_server) as at:
        at.lose(ACCEPT.sha, requests=LOSE_ALL)
        await at.client.request(3, "there", {"text": "x"}, deadline_ms=300)
        frame = await at.client.next()
        assert (frame["t"], frame["rid"], frame["code"]) == ("msg", 3, 408)
        at.lose(ACCEPT.sha)
        await until(lambda: not at.gw.delivery.degraded)
        await at.client.request(3, "there", {"text": "x"})
        await at.client.frame("accept", rid=3)
        assert at.ran == []


async def test_a_request_that_a_closed_queue_refused_may_be_sent_again_with_its_number(
    app: App, gw_store: Store
) -> None:
    @app.action("echo", queue="r")
    async def echo(text: str) -> str:
        return text

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await app.push("before", session=client.sid, bind=(1, "before"))
        await app.inspector().close_queue("r")
        await client.request(1, "echo", {"text": "x"})
        refused = await client.frame("reject", rid=1)
        assert (refused["code"], refused["retryable"]) == (503, True)
        (row,) = await gw_store.sessions.show([client.sid])
        assert row.open_requests == 0
        await app.inspector().open_queue("r")
        await client.request(1, "echo", {"text": "x"})
        await client.frame("accept", rid=1)
        assert [one["body"] for one in await client.take(2)] == ["before", "x"], "what is bound to it has waited"


async def test_a_request_that_was_taken_is_not_rejected_when_it_is_sent_again_after_a_resume(app: App) -> None:
    """Its first `accept` may have been lost: whatever refuses new ones now, this one runs."""
    release = asyncio.Event()

    @app.action("slow", queue="r")
    async def slow(text: str) -> str:
        await release.wait()
        return text

    async with gateway(app, request_rate=0.001, request_burst=2) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "slow", {"text": "1"})
        await client.frame("accept", rid=1)
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        for rid in (2, 3, 4):
            await client.request(rid, "slow", {"text": str(rid)})
        assert [(await client.next())["t"] for _ in range(3)].count("reject") == 1
        await client.request(2, "slow", {"text": "2"})
        assert await client.next() == {"t": "accept", "rid": 2}, "a copy, which no limit refuses"
        await client.request(1, "slow", {"text": "1"})
        answer = await client.next()
        assert (answer["t"], answer["rid"]) == ("accept", 1)
        gw.delivery.degraded = True
        await client.request(1, "slow", {"text": "1"})
        assert (await client.next())["t"] == "accept"
        gw.delivery.degraded = False
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        await client.request(1, "no such action any more")
        assert (await client.frame("msg", rid=1))["code"] == 404
        release.set()


async def test_a_request_whose_unique_task_is_there_already_is_refused_at_once(app: App) -> None:
    release = asyncio.Event()
    ran: list[str] = []

    @app.action("render", queue="r", unique_for=60)
    async def render(text: str) -> str:
        ran.append(text)
        await release.wait()
        return text

    async with gateway(app) as gw, app.worker("r"):
        client, other = await JsonClient.open(gw, "ada"), await JsonClient.open(gw, "bob")
        await client.request(1, "render", {"text": "x"})
        await client.frame("accept", rid=1)
        for no_reply in (False, True):
            await other.request(1, "render", {"text": "x"}, no_reply=no_reply)
            refused = await other.frame("reject", rid=1)
            assert (refused["code"], refused.get("retryable", False)) == (409, False)
            assert "unique" in refused["error"]
            assert client.sid not in refused["error"]
        release.set()
        assert (await client.frame("msg", rid=1))["body"] == "x"
        while True:  # the answer comes before the task is settled and its lock free
            await other.request(1, "render", {"text": "x"})
            if (await other.next())["t"] == "accept":
                break
        assert (await other.frame("msg", rid=1))["body"] == "x"
        assert ran == ["x", "x"]


@asynccontextmanager
async def _through(proxy: FaultProxy, closed: bool = False) -> AsyncIterator[tuple[App, JsonClient]]:
    async with App(proxy.url, patience=0.1) as app:

        @app.action("echo", queue="r")
        async def echo(text: str) -> str:
            return text

        async with gateway(app) as gw:
            client = await JsonClient.open(gw, "ada")
            if closed:
                await app._client().store.redis.command("SET", "asynq:{r}:closed", 1, key="asynq:{r}:closed")
            yield app, client


async def test_a_reject_waits_until_the_record_is_taken_back(valkey_server: RealServer, gw_store: Store) -> None:
    """A reject beside a record that stays would be followed by an answer: 408."""
    async with faults_before(valkey_server.socket) as proxy, _through(proxy, closed=True) as (app, client):
        proxy.let(REPLY_LOST, Aim("outbox-refuse"))
        await client.request(1, "echo", {"text": "x"}, deadline_ms=1000)
        assert (await client.next())["t"] == "reject"
        assert proxy.calls.count("outbox-refuse") == 2
        assert (
            await gw_store.redis.command("EXISTS", f"gw:{{{client.sid[:4]}}}:dl", key=f"gw:{{{client.sid[:4]}}}:dl")
            == 0
        )
        assert await _end(client, app) == []


async def test_a_refusal_is_the_answer_where_the_record_may_come_again(valkey_server: RealServer) -> None:
    """A first call to record it had no reply: executed late, it must find the request answered, not taken back."""
    async with faults_before(valkey_server.socket) as proxy, _through(proxy, closed=True) as (_, client):
        proxy.let(REPLY_LOST, Aim("outbox-accept"))
        await client.request(1, "echo", {"text": "x"})
        frame = await client.next()
        assert (frame["t"], frame["rid"], frame["code"]) == ("msg", 1, 503)
        assert "outbox-refuse" not in proxy.calls
        await client.request(1, "echo", {"text": "x"})
        await client.frame("accept", rid=1)


async def test_a_full_server_rejects_a_request_and_keeps_nothing_of_it(
    valkey_server: RealServer, gw_store: Store
) -> None:
    async with faults_before(valkey_server.socket) as proxy, _through(proxy) as (_, client):
        for label in ("outbox-accept", "task-enqueue"):
            proxy.let(OOM, Aim(label))
            await client.request(1, "echo", {"text": "x"})
            refused = await client.next()
            assert (refused["t"], refused["code"], refused["retryable"]) == ("reject", 503, True)
            (row,) = await gw_store.sessions.show([client.sid])
            assert row.open_requests == 0
        await client.request(1, "echo", {"text": "x"})
        assert (await client.next())["t"] == "accept"


@pytest.mark.parametrize("no_reply", [False, True])
async def test_a_task_that_was_stored_before_its_queue_was_closed_is_not_rejected(
    valkey_server: RealServer, no_reply: bool
) -> None:
    async with scene(valkey_server) as at:
        at.gw._store.intake._patience = 0.0
        at.lose(ENQUEUE.sha, replies=1)
        at.proxy.may_break.clear()
        await at.client.request(3, "there", {"text": "x"}, no_reply=no_reply)
        await until(lambda: at.ran == ["x"])
        with valkey_server.client() as redis:
            redis.setnx("asynq:{r}:closed", "1")
        at.proxy.may_break.set()
        await at.client.frame("accept", rid=3)
        assert at.ran == ["x"]


async def test_a_call_that_did_not_leave_lets_a_request_be_rejected(
    valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection there is nothing to find out."""
    monkeypatch.setattr("veredus.gateway.request_intake.PATIENCE", 0.2)
    async with scene(valkey_server) as at:
        assert at.proxy._server is not None
        at.proxy._server.close()
        at.lose(ACCEPT.sha, requests=LOSE_ALL)
        for writer in list(at.proxy._open):
            writer.transport.abort()
        await until(lambda: not at.gw._store.redis._connection.alive)  # type: ignore[attr-defined]
        await at.client.request(3, "there", {"text": "x"})
        refused = await at.client.next()
        assert (refused["t"], refused["code"], refused["retryable"]) == ("reject", 503, True)


@pytest.mark.parametrize("is_refused", [True, False], ids=["not in time", "in time"])
async def test_who_would_be_tried_again_after_the_patience_is_refused_before_the_pause(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("veredus.gateway.request_intake.asyncio.sleep", sleep)
    clock = Mock(monotonic=lambda: 100.0)
    tries = request_intake.StoreTries(clock, lambda exc: None, 0.0)
    longest = tries._backoff.next
    tries._give_up = 100.0 + longest * (0.5 if is_refused else 2.0)
    if is_refused:
        with pytest.raises(request_intake.NotAccepted):
            await tries.wait(NotSent("no connection"))
    else:
        await tries.wait(NotSent("no connection"))
    assert bool(paused) is not is_refused


async def test_only_the_arrival_that_was_recorded_is_new_again(gw_store: Store) -> None:
    """Asked twice for one arrival, the store says `new` twice; another arrival of the same number is a repetition."""
    from veredus.model.delivery import Quota

    created = await gw_store.sessions.create(
        "ada", node="n", connection="c", secret_hash="s", quota=Quota(), ttl_ms=60_000
    )
    accept, sid, later = gw_store.outbox.accept, created.sid, 2**41
    assert [await accept(sid, 1, later, 1, arrival=7) for _ in range(2)] == ["new", "new"]
    assert [await accept(sid, 1, later, 1, arrival=n) for n in (8, 17)] == ["open", "open"]
    assert await gw_store.outbox.refuse(sid, 1, 1, 8) == "refused"
    assert await accept(sid, 1, later, 1, arrival=9) == "open", "only its own record is taken back"
    assert await gw_store.outbox.refuse(sid, 1, 1, 7) == "refused"
    assert await accept(sid, 1, later, 1, arrival=9) == "new"
    assert await accept(sid, 1, later, 2, arrival=9) == "superseded"
