"""What a gateway says of itself: the signs of its health, its figures, the levels at which it warns and refuses."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import forever, until
from veredus import App
from veredus.clock import ServerClock
from veredus.gateway import maintenance
from veredus.gateway.delivery import TICK
from veredus.gateway.limits import REFUSALS, Level, Overload, level
from veredus.store.store import Store


async def test_the_signs_of_health_are_ages(app: App) -> None:
    async with gateway(app) as gw:
        for task in gw._tasks:
            task.cancel()  # nobody ticks or beats but this test
        await asyncio.wait(gw._tasks)
        now = gw.monotonic()
        gw.maintenance._ticked_at = gw.maintenance._beat_at = gw.maintenance._hints_seen_at = now
        gw.maintenance._late_by = 0.0
        signs = gw._signs()
        assert (signs.log_unreadable_for, signs.draining, signs.listening) == (0.0, False, True)
        assert gw.problems() == []
        gw.maintenance._hints_seen_at = now - 20.0
        gw.maintenance._beat_at = now - 30.0
        gw.delivery.stuck_since = now - 40.0
        gw.maintenance._ticked_at = now - 50.0
        signs = gw._signs()
        assert not signs.hints_arrive
        assert 20.0 <= signs.hints_missing_for < 25.0
        assert 30.0 <= signs.beat_age < 35.0
        assert 40.0 <= signs.log_unreadable_for < 45.0
        assert 50.0 - TICK <= signs.loop_late_by < 55.0
        assert len(gw.problems()) == 4
        gw.maintenance._ticked_at = now
        gw.maintenance._late_by = 7.0  # as measured by the last ticks
        assert gw._signs().loop_late_by == 7.0
        await gw.maintenance.beat()
        assert gw._signs().beat_age < 5.0


async def test_a_late_tick_is_remembered_for_a_while(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TICK", 0.005)
    async with gateway(app) as gw:
        gw.maintenance._late_by = 100.0
        await until(lambda: gw.maintenance._late_by < 90.5, what="a tick")
        assert gw.maintenance._late_by > 1.0, "it is not forgotten at once"
        gw.maintenance._hints_seen_at = 0.0
        await until(lambda: gw.maintenance._hints_seen_at > 0.0, what="a tick while hints arrive")


async def test_overload_is_told_by_name_and_level(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(app, max_connections=2, warn_share=0.5) as gw:
        gw.maintenance._warn(gw.monotonic())
        assert "overload" not in caplog.text
        gw.overload.connections = 1
        gw.maintenance._warn(gw.monotonic())
        assert "overload: connections near the limit" in caplog.text
        gw._services.outages.__init__()  # type: ignore[misc]
        gw.overload.connections = 2
        gw.maintenance._warn(gw.monotonic())
        assert "overload: connections at the limit, refusing more" in caplog.text
        gw.overload.connections = 0


def test_the_level_is_by_share_of_the_limit() -> None:
    assert [level(value, 10, 0.8) for value in (0, 7.9, 8, 9.9, 10, 11)] == [
        Level.NORMAL,
        Level.NORMAL,
        Level.WARN,
        Level.WARN,
        Level.REJECT,
        Level.REJECT,
    ]


def test_what_is_refused_may_be_tried_again_after_a_while() -> None:
    overload = Overload(connections=1, request_rate=1.0, upstream=1, warn_share=0.5)
    assert overload.admit_request(1.0) is None
    refused = overload.admit_request(1.0)
    assert refused is not None
    assert (refused.code, refused.retryable, refused.retry_after_ms) == (503, True, 500)
    overload.upstream = 1
    refused = overload.admit_request(5.0)
    assert refused is not None
    assert (refused.code, refused.retryable, refused.retry_after_ms) == (503, True, 1000)
    assert (overload.refused["requests"], overload.refused["upstream"]) == (1, 1)


async def test_every_request_is_counted_by_what_became_of_it(app: App) -> None:
    began = asyncio.Event()

    @app.action("hang", where="gateway")
    async def hang() -> None:
        began.set()
        await forever()

    @app.action("wait", queue="nobody")
    async def wait() -> None: ...

    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app, request_rate=0.1, request_burst=5) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "echo", {"text": "x"})
        await client.frame("msg", rid=1)
        await client.request(1, "echo", {"text": "x"})
        await client.frame("accept", rid=1)
        await client.request(2, "hang")
        await began.wait()
        figures = gw.figures()
        assert (figures["connections"], figures["sessions"], figures["open_requests"]) == (1, 1, 1)
        assert figures["requests_per_second"] > 0
        assert (figures["ws"], figures["quic"], figures["http"]) == (str(gw.ws_address), "", "")
        await client.send({"t": "cancel", "rid": 2})
        assert (await client.frame("msg", rid=2))["code"] == 499
        await client.request(3, "wait", deadline_ms=500)
        assert (await client.frame("msg", rid=3))["code"] == 408
        await client.request(4, "ech")
        unknown = await client.frame("reject", rid=4)
        assert (unknown["code"], unknown.get("retryable", False)) == (404, False)
        assert "did you mean 'echo'?" in unknown["error"]
        await client.request(5, "echo", {"text": "x"})
        await client.frame("msg", rid=5)
        await client.request(6, "echo", {"text": "x"})
        limited = await client.frame("reject", rid=6)
        assert (limited["code"], limited["retryable"]) == (429, True)
        assert 0 < limited["retry_after_ms"] <= 10_000
        figures = gw.figures()
        assert figures["open_requests"] == 0
        assert figures["refused"] == {**dict.fromkeys(REFUSALS, 0), "rate": 1}
        assert figures["requests"] == {"accepted": 5, "rejected": 2, "repeated": 1, "timed_out": 1, "cancelled": 1}


async def test_the_clock_is_set_by_the_server_s_whatever_it_was_set_to_before(gw_store: Store) -> None:
    clock = ServerClock()
    for wrong in (0.0, 1000.0, -1000.0):
        clock.ahead += wrong
        await gw_store.set_clock(clock)
        assert abs(clock.time() - time.time()) < 100.0, "the server runs on this machine"


async def test_what_is_delivered_is_counted(app: App) -> None:
    async with gateway(app, position_check=600.0) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push("small", session=client.sid)
        await client.take(1)
        assert gw.figures()["delivery"] == {"hints": 1, "reads": 0, "slow": 0, "forks": 0}
        await app.push("x" * 20_000, session=client.sid)
        await client.take(1)
        assert gw.figures()["delivery"] == {"hints": 2, "reads": 1, "slow": 0, "forks": 0}
