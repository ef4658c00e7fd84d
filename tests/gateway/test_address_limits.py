"""Limits per address: the rules, with time as an argument; then a gateway that keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.gateway.support import JsonClient, gateway
from tests.hostile.raw import RawQuic, initial, upgrade
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.errors import ConfigError
from veredus.gateway import address_limits
from veredus.gateway.address_limits import AddressLimits, Allowance, prefix_of
from veredus.gateway.config import GatewayConfig
from veredus.gateway.limits import REFUSALS
from veredus.gateway.push_api import PushApi
from veredus.link.transports.certificate import make_local_certificate


class StillClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def _addresses(clock: StillClock | None = None, **given: Any) -> AddressLimits:
    settings: dict[str, Any] = {
        "connections": Allowance(None, 3.0),
        "handshakes": Allowance(None, 100.0),
        "sessions": Allowance(None, 2.0),
        "proxies": (),
        "clock": clock or StillClock(),
        "refused": dict.fromkeys(REFUSALS, 0),
    }
    return AddressLimits(**{**settings, **given})


def test_open_connections_of_one_address_are_limited_until_they_leave() -> None:
    refused = dict.fromkeys(REFUSALS, 0)
    some = _addresses(refused=refused)
    assert [some.enter("192.0.2.1") for _ in range(4)] == [True, True, True, False]
    assert some.enter("192.0.2.2"), "another one has its own"
    some.leave("192.0.2.1")
    assert some.enter("192.0.2.1")
    assert refused["address_connections"] == 1


def test_handshakes_and_sessions_of_one_address_have_a_rate() -> None:
    clock, refused = StillClock(), dict.fromkeys(REFUSALS, 0)
    some = _addresses(clock, connections=Allowance(1000, 3.0), handshakes=Allowance(2.0, 1.0), refused=refused)
    assert [some.enter("192.0.2.1") for _ in range(11)] == [True] * 10 + [False]
    assert [some.may_begin("192.0.2.1") for _ in range(11)] == [True] * 10 + [False]
    clock.now += 0.5
    assert some.enter("192.0.2.1")
    assert some.may_begin("192.0.2.1")
    assert (refused["address_handshakes"], refused["address_sessions"]) == (1, 1)


def test_a_prefix_of_ipv6_counts_as_one_address() -> None:
    some = _addresses()
    assert [some.enter(f"2001:db8:1:2::{n:x}") for n in range(1, 5)] == [True, True, True, False]
    assert some.enter("2001:db8:1:3::1")
    assert prefix_of("2001:db8:1:2:ffff::1%eth0") == "2001:db8:1:2::"
    assert prefix_of("::ffff:192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", ""])
def test_loopback_is_limited_only_by_a_number_that_was_set(host: str) -> None:
    some = _addresses()
    assert all(some.enter(host) and some.may_begin(host) for _ in range(1000))
    some = _addresses(connections=Allowance(3, 500.0), sessions=Allowance(1.0, 50.0))
    assert [some.enter(host) for _ in range(4)] == [True, True, True, False]
    assert sum(some.may_begin(host) for _ in range(100)) == 5


def test_a_trusted_proxy_is_not_limited_itself() -> None:
    some = _addresses(proxies=("10.0.0.0/8", "fd00::/8"))
    assert all(some.enter("10.1.2.3") and some.enter("fd00::1") and some.may_begin("10.1.2.3") for _ in range(100))
    some.leave("10.1.2.3")
    assert sum(some.may_begin("11.1.2.3") for _ in range(100)) < 100, "another address is, beside a proxy too"
    assert not all(some.enter("11.1.2.3") for _ in range(100))
    assert (some.is_proxy("10.1.2.3"), some.is_proxy("11.1.2.3"), some.is_proxy("nonsense")) == (True, False, False)


def test_what_is_known_of_addresses_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_limits, "FIRST_CLEANUP", 100)
    monkeypatch.setattr(address_limits, "MAX_ADDRESSES", 300)
    clock = StillClock()
    some = _addresses(clock)
    assert some.enter("192.0.2.1")
    for number in range(5000):
        clock.now += 0.001
        host = f"10.0.{number // 250}.{number % 250}"
        assert some.enter(host)
        some.leave(host)
        assert some.known <= 301
    assert some.open("192.0.2.1") == 1, "one that is here is not forgotten"


def test_settings_are_checked_by_name() -> None:
    for name, value in (
        ("address_connections", 0), ("address_handshakes", -1.0), ("address_sessions", "x"), ("quic_handshakes", 0),
        ("trusted_proxies", "10.0.0.0/8,nonsense"), ("trusted_proxies", "10.0.0.1/8"), ("http_timeout", 0),
        ("hook_threads", 0), ("ack_rate", 0), ("control_rate", 0), ("http_tls", "yes"), ("quic_datagram_rate", 0),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=name):
            GatewayConfig.make(**{name: value})
    with pytest.raises(ConfigError, match="http_tls"):
        GatewayConfig.make(http_tls="on")
    assert GatewayConfig.make(trusted_proxies="10.0.0.0/8, ::1").trusted_proxies == ("10.0.0.0/8", "::1")


# A gateway.


async def test_a_gateway_limits_the_open_connections_of_an_address(app: App) -> None:
    async with gateway(app, address_connections=2) as gw:
        kept = [await JsonClient.open(gw, name) for name in ("ada", "bob")]
        with pytest.raises((OSError, ConnectionClosed, InvalidMessage, EOFError)):
            await JsonClient.connect(gw)
        assert gw.figures()["refused"]["address_connections"] == 1
        await kept[0].close()
        await until(lambda: gw.addresses.open("127.0.0.1") == 1)
        await JsonClient.open(gw, "ada")


async def test_silent_sockets_count_and_end_after_the_hello_timeout(app: App) -> None:
    async with gateway(app, address_connections=3, hello_timeout=0.3) as gw:
        silent = [await asyncio.open_connection(*gw.ws_address) for _ in range(3)]  # type: ignore[misc]
        await until(lambda: gw.addresses.open("127.0.0.1") == 3)
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
        await until(lambda: gw.addresses.open("127.0.0.1") == 0)
        assert gw.figures()["refused"]["silent"] == 3
        late = await JsonClient.connect(gw)
        assert await late.close_code() == 4502
        assert gw.figures()["refused"]["silent"] == 4


async def test_new_sessions_of_an_address_are_limited_resumed_ones_are_not(app: App) -> None:
    async with gateway(app, address_sessions=0.4) as gw:  # two at once
        first = await JsonClient.open(gw, "ada")
        await JsonClient.open(gw, "bob")
        third = await JsonClient.connect(gw)
        await third.send({"t": "hello", "version": 1, "token": "eve"})
        closing = await third.frame("close")
        assert (closing["code"], closing["retry_after_ms"]) == (4008, 1000)
        first.cut()
        assert (await JsonClient.open(gw, "ada", first.resumption())).welcome["result"] == "resumed"
        assert gw.figures()["refused"]["address_sessions"] == 1


async def test_a_gateway_counts_the_clients_of_a_trusted_proxy_by_their_own_address(app: App) -> None:
    async with gateway(app, address_connections=1, trusted_proxies="127.0.0.1") as gw:
        for host in ("192.0.2.1", "192.0.2.2"):
            reader, writer = await asyncio.open_connection(*gw.ws_address)  # type: ignore[misc]
            writer.write(upgrade("veredus.gw.1.json", "/", f"X-Forwarded-For: {host}"))
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            assert gw.addresses.open(host) == 1
        reader, other = await asyncio.open_connection(*gw.ws_address)  # type: ignore[misc]
        other.write(upgrade("veredus.gw.1.json", "/", "X-Forwarded-For: 192.0.2.2"))
        await reader.readuntil(b"\r\n\r\n")
        assert int.from_bytes((await reader.readexactly(4))[2:]) == 4008
        writer.close()
        other.close()


# QUIC.


def _retries(udp: socket.socket) -> list[bytes]:
    """The retry packets that have come."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while data := udp.recv(2000):
            if data[0] >> 4 == 0xF:
                found.append(data)
    return found


async def test_a_flood_of_quic_initials_keeps_few_connections_and_real_clients_still_come(app: App) -> None:
    async with gateway(app, quic="127.0.0.1:0", quic_handshakes=5, hello_timeout=1.0) as gw:
        assert gw.ports is not None
        port: Any = gw.ports._listeners[1]
        retries: list[bytes] = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for _ in range(40):
                udp.sendto(initial(), gw.quic_address or ())
            udp.setblocking(False)

            def all_but_five() -> bool:
                retries.extend(_retries(udp))
                return len(retries) == 35

            await until(all_but_five, what="a retry for all but five")
            assert len(port._port.handshaking) <= 5
            real = RawQuic(gw.quic_address.port)  # type: ignore[union-attr]
            assert await asyncio.to_thread(real.shake_hands), "it answers the retry"
            real.close()
        await until(lambda: not port._port.handshaking, what="the end of the unfinished")
        await until(lambda: gw.addresses.open("127.0.0.1") == 0, what="the end of all")


async def test_open_quic_connections_of_an_address_are_limited(app: App) -> None:
    async with gateway(app, quic="127.0.0.1:0", address_connections=1) as gw:
        port = gw.quic_address.port  # type: ignore[union-attr]
        first, second = RawQuic(port), RawQuic(port)
        assert await asyncio.to_thread(first.shake_hands)
        assert not await asyncio.to_thread(second.shake_hands, 0.3)
        assert gw.figures()["refused"]["address_connections"] >= 1
        first.close()
        second.close()


# HTTP.


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf",
    ],
)
async def test_http_that_is_half_sent_ends_after_its_timeout(app: App, said: bytes) -> None:
    async with gateway(app, http="127.0.0.1:0", http_timeout=0.3, address_connections=10) as gw:
        reader, writer = await asyncio.open_connection(*gw.http_address)  # type: ignore[misc]
        writer.write(said)
        await asyncio.wait_for(reader.read(), PATIENCE)
        await until(lambda: gw.addresses.open("127.0.0.1") == 0)
        assert gw.figures()["refused"]["silent"] == 1
        writer.close()


async def test_http_that_drips_wins_no_time_and_others_are_served_meanwhile(app: App) -> None:
    async with gateway(app, http="127.0.0.1:0", http_timeout=0.4, address_connections=10) as gw:
        _, writer = await asyncio.open_connection(*gw.http_address)  # type: ignore[misc]
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        async with httpx.AsyncClient(base_url=f"http://{gw.http_address}", timeout=PATIENCE) as http:
            while not gw.figures()["refused"]["silent"]:
                writer.write(b"x")
                assert (await http.get("/healthz")).status_code == 200
                await asyncio.sleep(0.02)
            assert gw.addresses.open("127.0.0.1") == 1, "one that sends whole requests may stay for longer"
        writer.close()


async def test_a_response_that_nobody_reads_ends_the_connection(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(app, http="127.0.0.1:0", http_timeout=0.3, address_connections=10) as gw:
        monkeypatch.setattr(gw, "sessions", lambda: ["x" * 1000] * 20_000)
        _, writer = await asyncio.open_connection(*gw.http_address, limit=1024)  # type: ignore[misc]
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await until(lambda: gw.figures()["refused"]["silent"] == 1)
        await until(lambda: gw.addresses.open("127.0.0.1") == 0)
        writer.transport.abort()


async def test_an_aborted_body_leaves_no_traceback(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[object] = []
    real = PushApi._push

    async def push(self: PushApi, request: Any) -> Any:
        try:
            answer = await real(self, request)
        except BaseException as exc:
            ends.append(exc)
            raise
        ends.append(answer.status_code)
        return answer

    monkeypatch.setattr(PushApi, "_push", push)
    async with gateway(app, http="127.0.0.1:0", address_connections=10) as gw:
        server_log = logging.getLogger("uvicorn.error")
        monkeypatch.setattr(server_log, "handlers", [caplog.handler])  # it does not pass its records on to the root
        _, writer = await asyncio.open_connection(*gw.http_address)  # type: ignore[misc]
        writer.write(
            b"POST /push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        await until(lambda: gw.addresses.open("127.0.0.1") == 1)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await until(lambda: bool(ends), what="the end of the push")
    assert ends == [400]
    assert not [record for record in caplog.records if record.exc_info]


async def test_web_pages_of_elsewhere_cannot_push(app: App) -> None:
    async with gateway(app, http="127.0.0.1:0", origins="https://shop.example") as gw:
        row = '{"target_type": "everyone", "data": 1}'
        async with httpx.AsyncClient(base_url=f"http://{gw.http_address}", timeout=PATIENCE) as http:
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                answer = await http.post("/push", content=row, headers={"content-type": kind})
                assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")
            good = {"content-type": "application/json; charset=utf-8"}
            for origin, status in (("https://evil.example", 403), ("null", 403), ("https://shop.example", 200)):
                answer = await http.post("/push", content=row, headers={**good, "origin": origin})
                assert answer.status_code == status, answer.text
            for path in ("/sessions", "/node"):
                answer = await http.get(path, headers={"host": "evil.example"})
                assert answer.status_code == 403, "a name that was made to point here"
                assert (await http.get(path, headers={"host": "localhost:1"})).status_code == 200
            assert (await http.get("/healthz", headers={"host": "gateway.internal"})).status_code == 200


async def test_the_push_api_speaks_tls_beyond_loopback(
    app: App, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_local_certificate()
    (tmp_path / "c.pem").write_bytes(made.certificate)
    (tmp_path / "k.pem").write_bytes(made.key)
    files = {"certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}
    for http, mode, scheme in (
        ("0.0.0.0:0", "auto", "https"),
        ("0.0.0.0:0", "off", "http"),
        ("127.0.0.1:0", "auto", "http"),
        ("127.0.0.1:0", "on", "https"),
    ):
        caplog.clear()
        async with gateway(app, http=http, http_tls=mode, http_token="t", **files) as gw:
            port = gw.http_address.port  # type: ignore[union-attr]
            async with httpx.AsyncClient(verify=False, timeout=PATIENCE) as client:
                answer = await client.get(f"{scheme}://127.0.0.1:{port}/healthz")
                assert answer.status_code == 200
            assert gw.figures()["http_tls"] == (scheme == "https")
        assert ("HTTP on 0.0.0.0" in caplog.text) == (http.startswith("0") and mode == "off")


# Origins.


async def test_without_an_authenticator_only_pages_of_this_machine_may_connect(app: App) -> None:
    async with gateway(app) as gw:
        for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
            client = await JsonClient.connect(gw, origin=origin)
            assert await client.close_code() == 4507
        for origin in ("http://localhost:8000", "http://127.0.0.1:8000", "https://[::1]"):
            client = await JsonClient.connect(gw, origin=origin)
            await client.hello("ada")


async def test_plain_websocket_beyond_loopback_is_warned_of(app: App, caplog: pytest.LogCaptureFixture) -> None:
    from veredus.gateway.auth import Identity

    async with gateway(app, ws="0.0.0.0:0", authenticate=lambda token: Identity(user=token)) as gw:
        assert "WebSocket on 0.0.0.0:0 is not encrypted" in caplog.text
        port = gw.ws_address.port  # type: ignore[union-attr]
        await JsonClient.open(f"ws://127.0.0.1:{port}/", "ada")
    caplog.clear()
    async with gateway(app):
        assert "not encrypted" not in caplog.text
