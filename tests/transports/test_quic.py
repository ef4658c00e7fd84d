"""What only QUIC has: certificates, ALPN, one stream, clients that move, restarted servers, lost packets."""

from __future__ import annotations

import asyncio
import random
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from aioquic.asyncio.client import connect as library_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from aioquic.tls import load_pem_private_key
from cryptography import x509

from tests.support.waiting import pause, pause_sync, until
from tests.transports.support import PROTOBUF, WAIT, House, Notes, greet, house, still_served
from veredus.errors import ConfigError
from veredus.link.session import LinkConfig
from veredus.link.transports.base import ABNORMAL
from veredus.link.transports.certificate import VALID_FOR, make_local_certificate
from veredus.link.transports.quic import connect_quic, listen_quic
from veredus.link.transports.quic_library import ResettableConnection
from veredus.link.transports.quic_port import MAX_WAITING, TURN, QuicPort, _ServedTransport
from veredus.link.transports.quic_reset import reset_packet, reset_token
from veredus.link.transports.quic_transport import QuicTransport
from veredus.model.frames import ALPN, Accept, CloseCode, Hello, Message, Request, Welcome
from veredus.model.hosts import is_loopback


class Stranger(QuicConnectionProtocol):
    """An independent client: the library's own."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.data = bytearray()
        self.end: ConnectionTerminated | None = None
        self.changed = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self.data += event.data
        elif isinstance(event, ConnectionTerminated):
            self.end = event
        self.changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ending(self) -> int:
        await self.until(lambda: self.end is not None)
        assert self.end is not None
        return self.end.error_code

    def say(self, data: bytes, stream: int = 0, end_stream: bool = False) -> None:
        self._quic.send_stream_data(stream, data, end_stream)
        self.transmit()


def stranger(one: House, alpn: str = ALPN) -> Any:
    host, port = one.listener.address
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn])
    configuration.load_verify_locations(cadata=one.listener.certificate)
    configuration.server_name = "localhost"
    return library_connect(host, port, configuration=configuration, create_protocol=Stranger)


async def test_an_independent_client_that_trusts_our_certificate() -> None:
    async with house("quic") as one, stranger(one) as client:
        client.say(PROTOBUF.encode(Hello()))
        client.say(b"")
        await client.until(lambda: client.data)
        (welcome,) = PROTOBUF.decoder(10**6).feed(bytes(client.data))
        assert isinstance(welcome, Welcome)
        client.say(b"\x05hello")
        assert await client.ending() == CloseCode.BAD_FRAME


async def test_another_alpn_is_refused_in_the_handshake() -> None:
    async with house("quic") as one:
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(WAIT), stranger(one, "h3"):
                pass
        assert one.desks == []


async def test_a_second_stream_is_a_bad_frame_and_the_end_of_the_first_is_the_end() -> None:
    async with house("quic") as one:
        async with stranger(one) as client:
            client.say(PROTOBUF.encode(Hello()), 4)
            assert await client.ending() == CloseCode.BAD_FRAME
        async with stranger(one) as client:
            client.say(PROTOBUF.encode(Hello()), 2)
            assert await client.ending() == CloseCode.BAD_FRAME
        async with stranger(one) as client:
            client.say(PROTOBUF.encode(Hello()), end_stream=True)
            await client.ending()
            assert (await one.desks[-1].ending())[0] == 1000
        async with stranger(one) as client:
            client.say(PROTOBUF.encode(Hello()))
            await client.until(lambda: client.data)
            client._quic.reset_stream(0, 7)
            client.transmit()
            assert await client.ending() == CloseCode.BAD_FRAME


async def test_a_connection_that_is_made_no_longer_counts_as_unfinished() -> None:
    """Of those there may be few: beyond that new clients must prove their address, and an end counts as silence."""
    async with house("quic") as one:
        notes = await one.connect()
        await greet(notes)
        await until(lambda: not one.listener._port.handshaking, what="the end of the handshake")


class Slow(QuicPort):
    """On a loop that reads all its datagrams at one instant; each of them is work for a whole turn."""

    def __init__(self, admission: Any = None) -> None:
        super().__init__(
            QuicConfiguration(is_client=False), Notes, accept=None, admission=admission, handshake_timeout=1.0,
            retry_above=1, datagram_rate=1000, reset_key=b"key",
        )  # fmt: skip
        self.loop = self._loop
        self._loop = cast(Any, SimpleNamespace(time=lambda: 1.0, call_soon=self.loop.call_soon))
        self.seen: list[bytes] = []

    def _process(self, data: bytes, address: Any) -> None:
        self.seen.append(data)
        self._work += TURN


async def test_datagrams_that_take_longer_than_a_turn_leave_turns_to_others_and_keep_their_order() -> None:
    port, turns = Slow(), list[int]()
    for number in range(5):
        port.datagram_received(b"%d" % number, ("127.0.0.1", 1))
    assert port.seen == [b"0"]
    while len(port.seen) < 5 and len(turns) < 50:
        turns.append(len(port.seen))
        await asyncio.sleep(0)
    assert port.seen == [b"0", b"1", b"2", b"3", b"4"]
    assert turns == [1, 2, 3, 4]
    port.datagram_received(b"5", ("127.0.0.1", 1))
    await until(lambda: port.seen[-1] == b"5")


async def test_more_datagrams_than_may_wait_are_dropped_and_counted() -> None:
    admission = Mock()
    port = Slow(admission)
    for number in range(MAX_WAITING + 11):
        port.datagram_received(b"%d" % number, ("127.0.0.1", 1))
    await until(lambda: len(port.seen) == MAX_WAITING + 1)
    assert port.seen == [b"%d" % number for number in range(MAX_WAITING + 1)]
    assert admission.dropped.call_count == 10


@pytest.mark.parametrize(("rate", "burst"), [(10, 50), (100, 50), (1000, 500)])
async def test_a_connection_may_send_half_a_second_of_its_rate_at_once_but_never_less_than_fifty(
    rate: int, burst: int
) -> None:
    port = Slow()
    port.datagram_rate = rate
    with patch.object(QuicTransport, "__init__", lambda self, *given: setattr(self, "_loop", port._loop)):
        one = _ServedTransport(port, "127.0.0.1", {b"name"})
    assert sum(not one.is_flooding() for _ in range(2000)) == burst
    one._sent(7)
    assert sum(not one.is_flooding() for _ in range(2000)) == 7, "and one for each that it was sent"
    assert port.connections == {b"name": one}
    assert port.handshaking == {one}


async def test_nonsense_datagrams_change_nothing() -> None:
    chance = random.Random(3)
    async with house("quic") as one:
        notes = await one.connect()
        await greet(notes)
        port = one.listener._port
        known = next(iter(port.connections))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(300):
                data = bytearray(chance.randbytes(chance.choice([0, 1, 8, 21, 100, 1200, 1400])))
                if data and chance.random() < 0.5:
                    data[0] |= 0xC0  # a long header
                    data[1:5] = b"\0\0\0\1"
                if len(data) > 9 and chance.random() < 0.3:
                    data[0] &= 0x7F
                    data[1:9] = known
                sock.sendto(bytes(data), one.listener.address)
        await still_served(notes, 1)
        assert len(one.desks) == 1


async def test_a_client_whose_address_changes_is_still_served() -> None:
    async with house("quic") as one:
        notes = await one.connect()
        await greet(notes)
        transport: Any = notes.transport
        before = one.desks[0].transport.peer  # type: ignore[union-attr]
        line = transport._sendto.__self__
        moved, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Passing(transport, line.address), remote_addr=one.listener.address
        )
        line.transport, old = moved, line.transport
        old.close()
        await still_served(notes, 1)
        await one.desks[0].until(lambda: one.desks[0].transport.peer != before)  # type: ignore[union-attr]
        await still_served(notes, 2)
        transport.abort()


class _Passing(asyncio.DatagramProtocol):
    def __init__(self, transport: Any, address: Any) -> None:
        self.transport, self.address = transport, address

    def datagram_received(self, data: bytes, _: Any) -> None:
        self.transport.datagram(data, self.address)


async def test_a_restarted_server_tells_its_old_clients_at_once() -> None:
    first = House("quic", LinkConfig())
    await first.open()
    notes = await first.connect()
    await greet(notes)
    host, port = first.listener.address
    # as kill -9 would leave it: no farewell, and the same port taken by another process
    first.listener._port._transport.abort()
    await asyncio.sleep(0)
    second = House("quic", LinkConfig())
    second.listener = await listen_quic(host, port, second.desk)
    try:
        notes.transport.send([PROTOBUF.encode(Request(1, "a"))])
        async with asyncio.timeout(10):
            assert (await notes.ending())[0] == ABNORMAL
    finally:
        await second.close()
        for desk in first.desks:
            desk.transport.abort()  # type: ignore[union-attr]


async def test_a_closed_port_is_noticed_by_a_client_that_says_nothing() -> None:
    one = House("quic", LinkConfig())
    await one.open()
    notes = await one.connect(keepalive=0.1)
    await greet(notes)
    one.listener._port._transport.abort()
    async with asyncio.timeout(10):
        assert (await notes.ending())[0] == ABNORMAL
    one.desks[0].transport.abort()  # type: ignore[union-attr]


async def test_an_idle_connection_ends_by_its_timeout_unless_kept_alive() -> None:
    async with house("quic", idle_timeout=2.0) as one:
        quiet = await one.connect(keepalive=0, idle_timeout=2.0)
        lively = await one.connect(keepalive=0.1, idle_timeout=2.0)
        await greet(quiet)
        await greet(lively)
        assert (await quiet.ending())[0] == ABNORMAL
        assert (await one.desks[0].ending())[0] == ABNORMAL
        await still_served(lively, 1)


async def test_a_server_that_answers_no_ping_is_given_up() -> None:
    async with house("quic") as one:
        notes = await one.connect(keepalive=0.05)
        await greet(notes)
        one.desks[0].transport._sendto = lambda data, address: None  # type: ignore[union-attr]
        assert (await notes.ending())[0] == ABNORMAL


async def test_a_client_that_stood_still_keeps_its_connection() -> None:
    async with house("quic") as one:
        notes = await one.connect(keepalive=0.05)
        await greet(notes)
        pause_sync(0.3, proves="it is this process that was silent: nothing was asked, so nothing is unanswered")
        await still_served(notes, 1)
        notes.transport.abort()


async def test_lost_and_reordered_packets_change_nothing() -> None:
    """A tenth of the datagrams is dropped and some come late, in both directions; every message arrives in order."""
    async with house("quic", LinkConfig(window_messages=10**6, window_bytes=10**8)) as one:
        notes = await one.connect()
        await greet(notes)
        _make_lossy(notes.transport, 5)
        _make_lossy(one.desks[0].transport, 6)
        one.desks[0].push(500, size=200)
        async with asyncio.timeout(WAIT):
            await notes.until(lambda: sum(isinstance(frame, Message) for frame in notes.frames()) == 500)
        assert [frame.seq for frame in notes.frames() if isinstance(frame, Message)] == list(range(1, 501))
        notes.transport.abort()
        one.desks[0].transport.abort()  # type: ignore[union-attr]


def _make_lossy(transport: Any, seed: int) -> None:
    chance, send, loop = random.Random(seed), transport._sendto, asyncio.get_running_loop()

    def sendto(data: bytes, address: Any) -> None:
        luck = chance.random()
        if luck < 0.1:
            return
        if luck < 0.25:
            loop.call_later(0.01, send, data, address)
        else:
            send(data, address)

    transport._sendto = sendto


async def test_a_certificate_is_needed_beyond_loopback_and_must_fit_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        await listen_quic("0.0.0.0", 0, Notes)
    made, other = make_local_certificate(), make_local_certificate()
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(made.certificate)
    with pytest.raises(ConfigError, match="key"):
        await listen_quic("127.0.0.1", 0, Notes, certificate=certificate)
    with pytest.raises(ConfigError, match="readable"):
        await listen_quic("127.0.0.1", 0, Notes, certificate=certificate, key=key)
    key.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="PEM"):
        await listen_quic("127.0.0.1", 0, Notes, certificate=certificate, key=key)
    key.write_bytes(other.key)
    with pytest.raises(ConfigError, match="the key does not match the certificate"):
        await listen_quic("127.0.0.1", 0, Notes, certificate=certificate, key=key)
    key.write_bytes(made.key)
    one = House("quic", LinkConfig())
    one.listener = await listen_quic("127.0.0.1", 0, one.desk, certificate=certificate, key=key)
    host, port = one.listener.address
    notes = Notes()
    await connect_quic(host, port, notes, verify=certificate, server_name="localhost")
    await greet(notes)
    await still_served(notes, 1)
    with pytest.raises(OSError):
        await connect_quic(host, port, Notes(), verify=True)
    with pytest.raises(OSError):
        await connect_quic(host, port, Notes(), verify=certificate, server_name="elsewhere.example")
    await one.close()


def test_the_local_certificate_is_short_lived_and_for_this_machine_only() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    made = make_local_certificate(now)
    certificate = x509.load_pem_x509_certificate(made.certificate)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == VALID_FOR <= timedelta(days=14)
    assert certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [True] * 3 + [
        False,
        False,
    ]


async def test_a_connection_that_was_cut_off_sends_nothing_more() -> None:
    async with house("quic") as one:
        notes = await one.connect()
        await greet(notes)
        server: Any = one.desks[0].transport
        sent: list[bytes] = []
        server._sendto = lambda data, address: sent.append(data)
        one.desks[0].push(100)
        server.abort()
        await pause(0.3, proves="it sends nothing more, in the time of several probe timeouts")
        assert sent == []
        assert one.listener._port.connections == {}
        notes.transport.abort()


async def test_answers_come_also_to_requests_in_many_small_pieces() -> None:
    async with house("quic") as one:
        notes = await one.connect()
        await greet(notes)
        for byte in PROTOBUF.encode(Request(1, "bit by bit")):
            notes.transport.send([bytes([byte])])
            await asyncio.sleep(0)
        await notes.until(lambda: Accept(1) in notes.frames())


def test_every_connection_id_of_a_server_has_a_reset_token_that_its_successor_can_make() -> None:
    """Clients change to another id now and then: a reset under the first one would mean nothing to them by then."""
    key = b"k" * 32
    configuration = QuicConfiguration(is_client=False)
    made = make_local_certificate()
    configuration.certificate = x509.load_pem_x509_certificate(made[0])
    configuration.private_key = load_pem_private_key(made[1])
    server = ResettableConnection(
        reset_token=lambda cid: reset_token(key, cid),
        configuration=configuration,
        original_destination_connection_id=b"12345678",
    )
    server._host_cids[0].was_sent = True
    for _ in range(2):
        server._remote_active_connection_id_limit += 2
        server._replenish_connection_ids()
    ids = [(one.cid, one.stateless_reset_token) for one in server._host_cids]
    assert len(ids) > 3
    assert ids == [(cid, reset_token(key, cid)) for cid, _ in ids]


@pytest.mark.parametrize(("answered", "size"), [(22, 21), (21, None), (43, 42), (44, 43), (5000, 43)])
def test_a_reset_is_smaller_than_what_it_answers_and_never_too_small(answered: int, size: int | None) -> None:
    packet = reset_packet(b"k", b"id", answered)
    assert (None if packet is None else len(packet)) == size
    if packet is not None:
        assert packet[0] & 0xC0 == 0x40, "it looks like any other packet of a connection"
        assert packet.endswith(reset_token(b"k", b"id"))
