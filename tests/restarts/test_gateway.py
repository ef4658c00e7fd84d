"""The same for a gateway: what lives as long as its process comes back, and health is red until it is back."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn

from tests.gateway.support import JsonClient, gateway
from tests.restarts.support import Failing
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.errors import ConnectionLost
from veredus.gateway import maintenance
from veredus.gateway.delivery import Delivery
from veredus.gateway.maintenance import Maintenance
from veredus.store.sessions.hints import Hints
from veredus.store.sessions.outbox import Outbox

PARTS = {
    "hints": (Hints, "_listen"),
    "tick": (Delivery, "tick"),
    "heartbeat": (Maintenance, "_release_strays"),
    "sweep": (Maintenance, "_sweep"),
    "http server": (uvicorn.Server, "main_loop"),
}


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    app = App(valkey_server.url)
    yield app
    await app.close()


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_that_ends_is_restarted_counted_and_shown(
    app: App, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("BEAT", 0.05), ("SWEEP", 0.05), ("STRAYS_EVERY", 1)):
        monkeypatch.setattr(maintenance, name, value)
    failing = Failing(monkeypatch, *PARTS[part])
    gw = gateway(app, http="127.0.0.1:0")
    async with gw, httpx.AsyncClient(base_url=f"http://{gw.http_address}") as client:
        gw._services.restarts._steady = math.inf
        await until(lambda: failing.calls > 1)
        assert gw.figures()["restarts"] == {part: 1}
        answer = await client.get("/healthz")
        assert answer.status_code == 503
        assert f"{part} has ended and is being restarted: Broken: broken by the test" in answer.json()["problems"]
        assert (await client.get("/readyz")).status_code == 503
        peer = await JsonClient.open(gw)
        await app.push({"hello": 1}, session=peer.sid)
        assert len(await peer.take(1)) == 1
        await peer.close()
        gw._services.restarts._steady = 0.0
        await until(lambda: gw.problems() == [])
    assert caplog.text.count(f"{part} has ended") == 1


async def test_what_looks_whether_the_logs_can_be_read_again_comes_back_too(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    gw = gateway(app)
    async with gw:
        failing = Failing(monkeypatch, Outbox, "read", times=2)
        gw.delivery.outage(ConnectionLost("away"))
        await until(lambda: not gw.delivery.degraded)
        assert failing.calls == 3
        assert gw.figures()["restarts"] == {"reading after an outage": 2}
