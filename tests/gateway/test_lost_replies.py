"""A connection to Redis that breaks between a request and its reply: a client's request runs once and is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.proxy import Proxy, proxy_before
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.gateway.gateway import Gateway
from veredus.store.sessions.outbox import ACCEPT, ACK
from veredus.store.sessions.sessions import DETACH
from veredus.store.store import Store
from veredus.store.tasks.intake import ENQUEUE

LOSE_ALL = 10**6


class Scene:
    """A gateway that reaches its server through a proxy, a client of it, and how often its two actions ran."""

    def __init__(self, proxy: Proxy, app: App, gw: Gateway, client: JsonClient, ran: list[str]) -> None:
        self.proxy, self.app, self.gw, self.client, self.ran = proxy, app, gw, client, ran

    def lose(self, sha: str, *, requests: int = 0, replies: int = 0) -> None:
        self.proxy.marker = sha.encode()
        self.proxy.lose_request, self.proxy.lose_reply = requests, replies


@asynccontextmanager
async def scene(server: RealServer) -> AsyncIterator[Scene]:
    """Both actions have run once, so that the server knows their scripts and a lost reply is a lost answer."""
    async with proxy_before(server.socket) as proxy, App(proxy.url) as app, App(server.url) as direct:
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
            yield Scene(proxy, app, gw, client, ran)


@pytest.mark.parametrize("action", ["here", "there"])
async def test_a_request_runs_although_the_reply_to_its_record_was_lost(valkey_server: RealServer, action: str) -> None:
    """Asked again, the store says that the request is open: but nobody else has taken it."""
    async with scene(valkey_server) as at:
        at.lose(ACCEPT.sha, replies=1)
        await at.client.request(3, action, {"text": "x"})
        await at.client.frame("accept", rid=3)
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
        assert at.proxy.lose_reply == 0
        assert at.ran == ["x"]


@pytest.mark.parametrize("action", ["here", "there"])
async def test_a_request_is_recorded_although_the_first_try_did_not_get_there(
    valkey_server: RealServer, action: str
) -> None:
    async with scene(valkey_server) as at:
        at.lose(ACCEPT.sha, requests=2)
        await at.client.request(3, action, {"text": "x"})
        await at.client.frame("accept", rid=3)
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
        assert at.ran == ["x"]


async def test_a_request_is_held_until_it_is_known_whether_it_is_recorded(valkey_server: RealServer) -> None:
    """Others are refused meanwhile: of those nothing was sent."""
    async with scene(valkey_server) as at:
        at.lose(ACCEPT.sha, requests=LOSE_ALL)
        await at.client.request(3, "here", {"text": "x"})
        await until(lambda: LOSE_ALL - at.proxy.lose_request > 4, what="more tries")
        at.lose(ACCEPT.sha)
        await at.client.frame("accept", rid=3)
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
        assert at.ran == ["x"]


async def test_a_recorded_request_is_enqueued_as_soon_as_that_is_possible(valkey_server: RealServer) -> None:
    """It cannot be refused any more: a client that comes back would be told that it is open."""
    async with scene(valkey_server) as at:
        at.gw._store.intake._patience = 0.0  # what it would try again by itself for seconds
        at.lose(ENQUEUE.sha, requests=2)
        await at.client.request(3, "there", {"text": "x"})
        await at.client.frame("accept", rid=3)
        assert at.proxy.lose_request == 0
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
        assert at.ran == ["x"]


async def test_a_task_whose_enqueue_was_answered_into_a_broken_connection_runs_once(valkey_server: RealServer) -> None:
    async with scene(valkey_server) as at:
        at.gw._store.intake._patience = 0.0
        at.lose(ENQUEUE.sha, replies=1)
        await at.client.request(3, "there", {"text": "x"})
        assert (await at.client.frame("msg", rid=3))["body"] == "x"
        await at.client.frame("accept", rid=3)  # later than the answer: the gateway had to ask again
        await at.app.push("end", session=at.client.sid)
        assert (await at.client.frame("msg"))["body"] == "end"
        assert at.ran == ["x"]


async def test_a_recorded_request_that_is_never_enqueued_is_answered_by_its_deadline(
    valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then it is too late to run it, although the store could take it by now."""
    monkeypatch.setattr("random.uniform", lambda low, high: 20.0)  # the next try comes late
    async with scene(valkey_server) as at:
        at.gw._store.intake._patience = 0.0
        at.lose(ENQUEUE.sha, requests=LOSE_ALL)
        await at.client.request(3, "there", {"text": "x"}, deadline_ms=300)
        assert (await at.client.next())["code"] == 408, "without an accept: it was never durable"
        at.lose(ENQUEUE.sha)
        await until(lambda: not at.gw.router._background._running, what="the end of the tries")
        assert at.gw.router.counters["timed_out"] == 1
        await at.client.request(4, "there", {"text": "next"})
        await at.client.frame("msg", rid=4)
        assert at.ran == ["next"]


async def test_a_detach_that_did_not_get_there_is_written_later(valkey_server: RealServer, gw_store: Store) -> None:
    """Until then the session counts as attached here, and would not expire."""
    async with scene(valkey_server) as at:
        at.lose(DETACH.sha, requests=1)
        at.client.cut()
        await until(lambda: at.proxy.lose_request == 0, what="the detach is lost")

        async def is_detached() -> bool:
            (row,) = await gw_store.sessions.show([at.client.sid])
            return row.state == "detached"

        await until(is_detached, what="the detach")


async def test_acks_that_did_not_get_there_are_written_later(valkey_server: RealServer, gw_store: Store) -> None:
    async with scene(valkey_server) as at:
        at.lose(ACK.sha, requests=1)
        await at.client.ack()
        await until(lambda: at.proxy.lose_request == 0, what="the ack is lost")

        async def is_empty() -> bool:
            (row,) = await gw_store.sessions.show([at.client.sid])
            return row.pending == 0

        await until(is_empty, what="the ack")
