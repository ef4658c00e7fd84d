"""Requests without a reply have no record in the store: while a call for one may be on its way, it is not rejected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.faults import REQUEST_LOST, Aim, faults_before
from tests.support.holes import Hole
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.gateway import request_intake, router
from veredus.store.tasks.intake import ENQUEUE


@asynccontextmanager
async def _hole(server: RealServer, socket: Path) -> AsyncIterator[Hole]:
    hole = Hole(server.socket, socket)
    await hole.start()
    try:
        yield hole
    finally:
        await hole.close()


def _app(url: str, ran: list[str], timeout: float = 5.0) -> App:
    app = App(url, timeout=timeout)

    @app.action("there", queue="r")
    async def there(text: str) -> None:
        ran.append(text)

    return app


async def test_a_queue_that_is_closed_after_a_lost_call_rejects_nothing(valkey_server: RealServer) -> None:
    async with faults_before(valkey_server.socket) as proxy, _app(proxy.url, []) as app, gateway(app) as gw:
        gw._store.intake._patience = 0.0  # else it is found out there what became of the call
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "there", {"text": "first"}, no_reply=True)
        await client.frame("accept", rid=1)
        await app.inspector().close_queue("r")
        proxy.let(REQUEST_LOST, Aim("task-enqueue"))
        await client.request(2, "there", {"text": "x"}, no_reply=True)
        await until(lambda: proxy.calls.count("task-enqueue") >= 4, what="more tries")
        await app.inspector().open_queue("r")
        assert (await client.next())["t"] == "accept"


@pytest.mark.parametrize("refuses", ["outage", "rate", "queue"])
async def test_what_a_gateway_before_may_still_pass_on_is_not_rejected(
    valkey_server: RealServer, tmp_path: Path, refuses: str
) -> None:
    """Its call stands in a network that is a black hole. The client resumes at another gateway and sends it again."""
    ran: list[str] = []
    async with (
        _hole(valkey_server, tmp_path / "s") as hole,
        _app(f"unix://{tmp_path / 's'}", ran, timeout=0.3) as far,
        _app(valkey_server.url, ran) as near,
        gateway(far) as cut_off,
        gateway(near, request_rate=1.0, request_burst=1) as gw,
        near.worker("r"),
    ):
        client = await JsonClient.open(cut_off, "ada")
        await client.request(1, "there", {"text": "first"}, no_reply=True)  # the server knows the script now
        await client.frame("accept", rid=1)
        hole.open(swallows=False)
        await client.request(2, "there", {"text": "x"}, no_reply=True)
        await until(lambda: any(ENQUEUE.sha.encode() in data for data in hole.kept), what="a call in the hole")
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        if refuses == "outage":
            gw.delivery.degraded = True
        elif refuses == "rate":
            await client.request(3, "there", {"text": "third"}, no_reply=True)
            await client.frame("accept", rid=3)
        else:
            await near.inspector().close_queue("r")
        await client.request(2, "there", {"text": "x"}, no_reply=True)
        with pytest.raises(TimeoutError):
            await client.next(0.3)
        if refuses == "queue":
            await near.inspector().open_queue("r")
        hole.end()
        await until(lambda: "x" in ran)
        gw.delivery.degraded = False
        assert (await client.next())["t"] == "accept"
        assert ran.count("x") == 1


async def test_what_no_gateway_before_can_pass_on_any_more_is_rejected(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_intake, "DOUBT", 0.0)

    @app.action("there", queue="r")
    async def there(text: str) -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        gw.delivery.degraded = True
        await client.request(1, "there", {"text": "x"}, no_reply=True)
        refused = await client.next()
        assert (refused["t"], refused["code"]) == ("reject", 503)
        gw.delivery.degraded = False


async def test_too_many_that_wait_end_the_connection(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_WAITING", 3)

    @app.action("there", queue="r")
    async def there(text: str) -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        gw.delivery.degraded = True
        for rid in range(1, 5):
            await client.request(rid, "there", {"text": "x"}, no_reply=True)
        assert await client.close_code() == 4005
        gw.delivery.degraded = False
