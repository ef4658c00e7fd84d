"""Redis away, deaf subscriptions, lost tails, slow readers: sockets stay, nothing is lost silently, health tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.loops import nothing_left
from tests.support.servers import RealServer
from tests.support.waiting import pause, until
from veredus import App
from veredus.errors import CommandRefused, ConnectionLost
from veredus.gateway import ack_writer, maintenance
from veredus.gateway.health import GatewaySigns, not_ready, problems
from veredus.store.store import Store

NewServer = Callable[..., RealServer]
NEVER = 600.0


async def test_redis_away_keeps_the_sockets_refuses_requests_and_goes_on(new_server: NewServer) -> None:
    server = new_server()
    async with App(server.url, timeout=1.0) as app:

        @app.action("echo", where="gateway")
        async def echo(text: str) -> str:
            return text

        async with gateway(app, heartbeat=0.3, position_check=0.3) as gw:
            client = await JsonClient.open(gw, "ada")
            server.freeze()
            await until(lambda: gw.delivery.degraded, what="the notice of the outage")
            assert gw.not_ready()
            await client.request(1, "echo", {"text": "x"})
            rejected = await client.frame("reject")
            assert (rejected["code"], rejected["retryable"]) == (503, True)
            server.thaw()
            await until(lambda: not gw.delivery.degraded, what="the notice of its end")
            await client.request(1, "echo", {"text": "x"})
            assert (await client.frame("msg", rid=1))["body"] == "x"
            await app.push("still here", session=client.sid)
            assert (await client.frame("msg"))["body"] == "still here"
            await until(lambda: not gw.not_ready(), what="ready again")


async def test_what_the_store_refuses_is_said_with_what_it_was_for(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(self: object) -> None:
        raise CommandRefused("not you")

    monkeypatch.setattr(maintenance, "SWEEP", 0.01)
    async with gateway(app) as gw:
        monkeypatch.setattr(maintenance.Maintenance, "_sweep", refuse)
        gw.delivery.outage(CommandRefused("not you either"))
        assert gw.delivery.degraded
        assert "the clients' logs cannot be read: not you either" in caplog.text
        await until(lambda: "the gateway's sweep failed: not you" in caplog.text)
        await until(lambda: not gw.delivery.degraded, what="the next read of a log")


async def test_after_an_outage_every_log_is_looked_at(app: App) -> None:
    async with gateway(app, position_check=NEVER, heartbeat=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        gw._hints._on_hints = lambda rows: None  # deaf, though subscribed
        await app.push("meanwhile", session=client.sid)
        gw.delivery.outage(CommandRefused("for a moment"))
        assert (await client.take(1))[0]["body"] == "meanwhile"


async def test_a_gateway_that_stops_during_an_outage_leaves_nothing_behind(new_server: NewServer) -> None:
    """No read of the log and no ack that is tried again and again, with a store that is closed."""
    server = new_server()
    async with App(server.url, timeout=0.3) as app:
        async with gateway(app, position_check=0.1, heartbeat=0.3) as gw:
            client = await JsonClient.open(gw, "ada")
            await app.push("one", session=client.sid)
            await client.frame("msg")
            server.freeze()
            await client.ack()
            await until(lambda: gw.delivery.degraded and gw.delivery._reads, what="the log is read again and again")
        await nothing_left()
        server.thaw()


async def test_a_server_that_came_back_empty_lets_clients_begin_new_sessions(new_server: NewServer) -> None:
    server = new_server()
    async with App(server.url, timeout=1.0) as app, gateway(app, position_check=0.2, heartbeat=0.4) as gw:
        client = await JsonClient.open(gw, "ada")
        server.kill()
        server.start()
        assert await client.close_code() == 4007
        again = await JsonClient.open(gw, "ada", client.resumption())
        assert (again.welcome["result"], again.welcome["reason"]) == ("reset", "unknown")


async def test_an_emptied_server_is_noticed_without_a_push_a_request_or_a_beat(
    app: App, valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BEAT", NEVER)
    monkeypatch.setattr(maintenance, "SWEEP", 0.1)
    async with gateway(app, position_check=NEVER, heartbeat=NEVER) as gw:
        clients = [await JsonClient.open(gw, "ada") for _ in range(3)]
        with valkey_server.client() as redis:
            redis.flushall()
        for client in clients:
            assert await client.close_code() == 4007
            again = await JsonClient.open(gw, "ada", client.resumption())
            assert (again.welcome["result"], again.welcome["reason"]) == ("reset", "unknown")


async def test_dropped_subscriptions_lose_nothing(app: App, valkey_server: RealServer) -> None:
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        with valkey_server.client() as redis:
            for round in range(3):
                redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                for number in range(10):
                    await app.push(round * 10 + number, session=client.sid)
                assert [one["body"] for one in await client.take(10)] == list(range(round * 10, round * 10 + 10))
                await client.ack()


async def test_a_hint_that_never_came_is_made_good_by_the_position_check(app: App) -> None:
    async with gateway(app, position_check=0.2, heartbeat=0.4) as gw:
        client = await JsonClient.open(gw, "ada")
        gw._hints._on_hints = lambda rows: None  # deaf, though subscribed
        await app.push("x", session=client.sid)
        assert (await client.take(1))[0]["body"] == "x"


async def test_a_log_that_lost_its_tail_is_noticed_at_the_next_push(
    app: App, gw_store: Store, valkey_server: RealServer
) -> None:
    """A failover to a replica that had not got the last entries: number 3 comes twice, with another content."""
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for number in range(3):
            await app.push(number, session=client.sid)
        await client.take(3)
        with valkey_server.client() as redis:
            _lose_one_entry(redis, client.sid)
        assert (await app.push("another 3", session=client.sid)).seq == 3
        assert await client.close_code() == 4007
        again = await JsonClient.open(gw, "ada", client.resumption())
        assert (again.welcome["result"], again.welcome["reason"]) == ("reset", "fork")
        assert gw.delivery.counters["forks"] == 1


async def test_a_log_that_lost_its_tail_is_noticed_without_a_push(app: App, valkey_server: RealServer) -> None:
    async with gateway(app, position_check=0.2, heartbeat=0.4) as gw:
        client = await JsonClient.open(gw, "ada")
        await app.push("x", session=client.sid)
        await client.take(1)
        with valkey_server.client() as redis:
            _lose_one_entry(redis, client.sid)
        assert await client.close_code() == 4007


def _lose_one_entry(redis: object, sid: str) -> None:
    base = f"gw:{{{sid[:4]}}}:s:{sid}"
    redis.execute_command("RPOP", f"{base}:o")  # type: ignore[attr-defined]
    redis.execute_command("HINCRBY", f"{base}:m", "s", -1)  # type: ignore[attr-defined]
    left = redis.execute_command("LINDEX", f"{base}:o", -1)  # type: ignore[attr-defined]
    last = int.from_bytes(left[:8], "big") if left else 0
    redis.execute_command("HSET", f"{base}:m", "lt", last)  # type: ignore[attr-defined]


async def test_o10_a_client_that_stops_reading_slows_nobody_and_costs_no_memory(app: App) -> None:
    async with gateway(app, quota_entries=4000, quota_bytes=64 * 2**20) as gw:
        stuck, lively = await JsonClient.open(gw, "stuck"), await JsonClient.open(gw, "lively")
        body = "x" * 20_000
        stuck._socket.transport.pause_reading()
        for number in range(300):  # 6 MB, far beyond every buffer
            await app.push([number, body], session=stuck.sid)
        latencies = []
        for number in range(100):
            began = time.perf_counter()
            await app.push(number, session=lively.sid)
            assert (await lively.take(1))[0]["body"] == number
            latencies.append(time.perf_counter() - began)
            await lively.ack()
        assert sorted(latencies)[90] < 0.1, latencies
        (connection,) = [one for one in gw.delivery.attached.values() if one.sid == stuck.sid]
        stats = connection.statistics()
        assert int(str(stats["pending_count"])) < 30, "the window of 256 KiB bounds what is in flight"
        assert int(str(stats["unsent"])) < 1_000_000
        stuck._socket.transport.resume_reading()
        seen: list[int] = []
        while len(seen) < 300:
            seen.append((await stuck.frame("msg"))["body"][0])
            await stuck.ack()
        assert seen == list(range(300))


def test_health_is_red_when_delivery_is_stuck_not_only_when_the_process_is_dead() -> None:
    well = GatewaySigns(True, 0.0, 0.0, 1.0, 0.0, False, True)
    assert problems(well) == not_ready(well) == []
    assert "pub/sub" in problems(well._replace(hints_arrive=False, hints_missing_for=11.0))[0]
    assert "logs have been unreadable" in problems(well._replace(log_unreadable_for=11.0))[0]
    assert "heartbeat" in problems(well._replace(beat_age=11.0))[0]
    assert "event loop" in problems(well._replace(loop_late_by=3.0))[0]
    assert problems(well._replace(draining=True)) == []
    for signs in (well._replace(draining=True), well._replace(listening=False), well._replace(hints_arrive=False)):
        assert not_ready(signs)


async def test_a_session_that_others_detached_is_resumed_by_its_client(app: App, gw_store: Store) -> None:
    """A gateway that stood still was taken for dead: its clients come back and miss nothing."""
    async with gateway(app, position_check=0.2, heartbeat=0.4) as gw:
        client = await JsonClient.open(gw, "ada")
        assert await gw_store.sessions.detach([(client.sid, 1)]) == [True]
        await app.push("unheard", session=client.sid)
        assert await client.close_code() == 4009
        again = await JsonClient.open(gw, "ada", client.resumption())
        assert again.welcome["result"] == "resumed"
        assert (await again.take(1))[0]["body"] == "unheard"


async def test_a_defect_in_one_connection_ends_that_one_alone(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(app, heartbeat=0.2) as gw:
        broken, sound = await JsonClient.open(gw, "broken"), await JsonClient.open(gw, "sound")
        for method in ("take_output", "tick"):
            connection = gw.delivery.attached[broken.sid]

            def fails(*args: object, **kwargs: object) -> None:
                raise RuntimeError("a defect")

            monkeypatch.setattr(connection.link, method, fails)
            for number in range(3):
                await app.push(number, everyone=True)
            assert [one["body"] for one in await sound.take(3)] == [0, 1, 2]
            assert await broken.close_code() == 1006
            broken = await JsonClient.open(gw, "broken", broken.resumption())
            assert broken.welcome["result"] == "resumed"


async def test_a_log_that_was_being_read_when_the_store_went_away_is_read_afterwards(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(app, position_check=NEVER) as gw:
        client = await JsonClient.open(gw, "ada")
        read, failed = gw.delivery._outbox.read, 0

        async def fails_once(rows: Any) -> Any:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise ConnectionLost("away")
            return await read(rows)

        monkeypatch.setattr(gw.delivery._outbox, "read", fails_once)
        gw.delivery.check_all()
        await until(lambda: failed > 1 and not gw.delivery.degraded)
        await app.push("hi", session=client.sid)
        assert (await client.frame("msg"))["body"] == "hi"


async def test_only_many_unwritten_acks_are_written_before_their_time(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota must not run full; and one more ack of a long session is not worth a write of its own."""
    monkeypatch.setattr(ack_writer, "EVERY", NEVER)

    async def floor() -> int:
        (excerpt,) = await gw_store.outbox.read([(client.sid, 1, 0, 0)])
        assert excerpt is not None
        return excerpt.floor

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        many = ack_writer.EARLY + 10
        await asyncio.gather(*(app.push(n, session=client.sid) for n in range(many)))
        for _ in range(many):
            await client.frame("msg")
        await client.ack()
        await until(lambda: gw.delivery._acks.written == 1)
        assert await until(floor) == many
        await app.push("one more", session=client.sid)
        await client.frame("msg")
        await client.ack()
        await until(lambda: gw.delivery._acks._acks, what="the ack at the gateway")
        await pause(0.05, proves="it waits for its time")
        assert gw.delivery._acks.written == 1
