"""What both transports promise: the same frames, back-pressure, close codes, and that no connection harms another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transports.support import KINDS, PROTOBUF, WAIT, Desk, Notes, greet, house, still_served
from veredus.link.session import LinkConfig
from veredus.link.transports.base import ABNORMAL, HIGH_WATER
from veredus.model.frames import Accept, Ack, Close, CloseCode, Hello, Message, Ping, Request, Welcome
from veredus.wire.frames import encode_stored
from veredus.wire.varint import varint

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_frames_travel_both_ways_and_the_clients_close_code_arrives(kind: str) -> None:
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        await still_served(notes, 1)
        assert notes.transport.kind == kind
        assert notes.transport.peer == ":".join(map(str, one.listener.address))
        notes.transport.close(4321, "enough")
        assert await one.desks[0].ending() == (4321, "enough")
        assert await notes.ending() == (4321, "enough")
        notes.transport.send([b"ignored"])


async def test_the_last_words_arrive_before_the_close_code(kind: str) -> None:
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        desk = one.desks[0]
        desk.push(100)
        desk.handle(desk.link.close(CloseCode.GOING_AWAY, "drain", 1.0))  # type: ignore[union-attr]
        assert await notes.ending() == (4000, "drain")
        frames = notes.frames()
        assert frames[-1] == Close(4000, "drain")
        assert len(frames) == 1 + 100 + 1


@pytest.mark.parametrize("reason", ["令牌无效" * 30, "x" * 119 + "é", "a\ud800b", "\ud800" * 200], ids=ascii)
async def test_of_a_reason_arrives_what_fits_in_whole_characters(kind: str, reason: str) -> None:
    """A close frame of WebSocket holds 123 bytes of UTF-8."""
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        desk = one.desks[0]
        desk.handle(desk.link.close(CloseCode.UNAUTHORIZED, reason, 1.0))  # type: ignore[union-attr]
        code, arrived = await notes.ending()
        assert code == 4501
        whole = reason.replace("\ud800", "?")
        assert whole.startswith(arrived)
        assert 117 < len(arrived.encode()) <= 120 or arrived == whole
        assert notes.frames()[-1] == Close(4501, arrived)


async def test_a_cut_connection_has_no_close_code(kind: str) -> None:
    async with house(kind, idle_timeout=1.0) if kind == "quic" else house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        notes.transport.abort()
        assert (await notes.ending())[0] == ABNORMAL
        assert (await one.desks[0].ending())[0] == ABNORMAL


async def test_what_leaves_in_one_turn_arrives_in_order(kind: str) -> None:
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        notes.transport.send([PROTOBUF.encode(Request(rid, "a")) for rid in range(1, 101)])
        for rid in range(101, 201):
            notes.transport.send([PROTOBUF.encode(Request(rid, "a"))])
        await notes.until(lambda: Accept(200) in notes.frames())
        assert [frame.rid for frame in notes.frames() if isinstance(frame, Accept)] == list(range(1, 201))


MALFORMED: list[tuple[bytes, CloseCode]] = [
    (b"\x05hello", CloseCode.BAD_FRAME),
    (b"\x00", CloseCode.BAD_FRAME),
    (b"\xff\xff\xff\xff\xff", CloseCode.BAD_FRAME),
    (varint(10_000_000), CloseCode.TOO_LARGE),
    (PROTOBUF.encode(Request(1, "too early")), CloseCode.BAD_FRAME),
    (PROTOBUF.encode(Hello(version=9)), CloseCode.VERSION_UNSUPPORTED),
    (PROTOBUF.encode(Hello()) + PROTOBUF.encode(Hello()), CloseCode.BAD_FRAME),
    (PROTOBUF.encode(Ping(1)), CloseCode.BAD_FRAME),
    (PROTOBUF.encode(Hello()) * 2000, CloseCode.BAD_FRAME),
]


async def test_malformed_oversized_and_out_of_state_frames_have_their_close_codes_and_harm_nobody(kind: str) -> None:
    async with house(kind) as one:
        good = await one.connect()
        await greet(good)
        for number, (data, code) in enumerate(MALFORMED):
            bad = await one.connect()
            (await bad.opening()).send([data])
            end = await bad.ending()
            assert end[0] == code, data[:20]
            await still_served(good, number + 1)
        assert good.end is None


async def test_an_ack_of_what_was_never_sent_is_a_bad_frame(kind: str) -> None:
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        notes.transport.send([PROTOBUF.encode(Ack(10**6))])
        assert (await notes.ending())[0] == CloseCode.BAD_FRAME


async def test_a_truncated_hello_never_becomes_a_session(kind: str) -> None:
    async with house(kind, LinkConfig(hello_timeout=0.3)) as one:
        notes = await one.connect()
        (await notes.opening()).send([PROTOBUF.encode(Hello(token="x" * 50))[:-1]])
        expected = CloseCode.BAD_FRAME if kind == "websocket" else CloseCode.HELLO_TIMEOUT
        assert (await notes.ending())[0] == expected


async def test_a_connection_that_says_nothing_is_closed_for_it(kind: str) -> None:
    async with house(kind, LinkConfig(hello_timeout=0.3), handshake_timeout=0.3) as one:
        notes = await one.connect()
        assert (await notes.ending())[0] == CloseCode.HELLO_TIMEOUT


async def test_s9_slow_loris_one_byte_at_a_time_is_closed_and_others_are_served(kind: str) -> None:
    async with house(kind, LinkConfig(hello_timeout=0.4)) as one:
        good = await one.connect()
        await greet(good)
        slow = await one.connect()
        transport = await slow.opening()
        for number, byte in enumerate(PROTOBUF.encode(Hello(token="x" * 100))):
            if slow.end is not None:
                break
            transport.send([bytes([byte])])
            await asyncio.sleep(0.02)
            if number % 10 == 0:
                await still_served(good, number + 1)
        assert (await slow.ending())[0] in (CloseCode.HELLO_TIMEOUT, CloseCode.BAD_FRAME)
        await still_served(good, 1000)


async def test_a_half_open_connection_is_found_by_its_missing_pong(kind: str) -> None:
    async with house(kind, LinkConfig(heartbeat=0.2, pong=0.2)) as one:
        notes = await one.connect()
        await greet(notes)
        assert (await one.desks[0].ending())[0] == CloseCode.NO_PONG
        assert (await notes.ending())[0] == CloseCode.NO_PONG
        assert any(isinstance(frame, Ping) for frame in notes.frames())


async def test_a_handler_that_fails_closes_its_own_connection_only(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(Desk):
        def received(self, transport: Any, data: bytes) -> None:
            raise RuntimeError("clumsy")

    async with house(kind) as one:
        good = await one.connect()
        await greet(good)
        one.make = Clumsy
        bad = await one.connect()
        (await bad.opening()).send([b"x"])
        assert (await bad.ending())[0] == CloseCode.INTERNAL
        await still_served(good, 1)
    assert "clumsy" in caplog.text


async def test_the_gate_is_asked_and_a_refused_connection_costs_little(kind: str) -> None:
    asked: list[str] = []

    def gate(address: str) -> float:
        asked.append(address)
        return 0.0 if len(asked) == 1 else 2.5

    async with house(kind, accept=gate) as one:
        notes = await one.connect()
        await greet(notes)
        assert asked[0].startswith("127.0.0.1:")
        if kind == "websocket":
            turned = await one.connect()
            assert (await turned.ending())[0] == CloseCode.SERVER_OVERLOADED
            assert turned.frames() == [Close(CloseCode.SERVER_OVERLOADED, "too many connections", 2500)]
        else:
            with pytest.raises(TimeoutError):
                await one.connect(timeout=0.5)
        assert len(one.desks) == 1
        await still_served(notes, 1)


async def test_nobody_there_is_an_os_error(kind: str) -> None:
    async with house(kind) as one:
        host, port = one.listener.address
    one.listener.address = (host, port)
    with pytest.raises(OSError):
        await one.connect(timeout=3)


async def test_a_listener_that_is_closed_takes_no_more_but_serves_those_it_has(kind: str) -> None:
    async with house(kind) as one:
        notes = await one.connect()
        await greet(notes)
        await one.listener.close()
        await still_served(notes, 1)
        with pytest.raises(OSError):
            await one.connect(timeout=0.5)


async def test_o10_a_client_that_stops_reading_leaves_memory_bounded_and_others_alone(kind: str) -> None:
    """Nothing beyond the window and the high-water mark is ever held, and reading again brings all the rest."""
    config = LinkConfig(window_messages=10**6, window_bytes=10**8)
    async with house(kind, config) as one:
        good = await one.connect()
        await greet(good)
        stuck = await one.connect()
        await greet(stuck)
        desk = one.desks[1]
        server: Any = desk.transport
        _stop_reading(kind, stuck)
        size = len(PROTOBUF.message_frame(1, 1, encode_stored(Message(body=b"1" * 1000))))
        whole = len(stuck.data)
        async with asyncio.timeout(WAIT):
            while server.unsent < HIGH_WATER:  # first the system's own buffers fill up
                whole += size * desk.push(200, size=1000)
                await asyncio.sleep(0)
        for _ in range(50):
            whole += size * desk.push(10, size=1000)
            await asyncio.sleep(0)
        assert HIGH_WATER <= server.unsent < HIGH_WATER + 20 * 1024
        await still_served(good, 1)
        assert desk.writable_again == 0
        _read_again(kind, stuck)
        await stuck.until(lambda: len(stuck.data) == whole)
        await desk.until(lambda: desk.writable_again)
        assert len(stuck.frames()) == desk.top + 1


def _stop_reading(kind: str, notes: Notes) -> None:
    transport: Any = notes.transport
    if kind == "websocket":
        transport._out.pause_reading()
    else:
        transport.datagram_kept, transport.held = transport.datagram, []
        transport.datagram = lambda data, address: transport.held.append((data, address))


def _read_again(kind: str, notes: Notes) -> None:
    transport: Any = notes.transport
    if kind == "websocket":
        transport._out.resume_reading()
    else:
        transport.datagram = transport.datagram_kept
        for data, address in transport.held:
            transport.datagram(data, address)


async def test_a_flood_of_frames_does_not_keep_others_waiting(kind: str) -> None:
    async with house(kind) as one:
        good, flood = await one.connect(), await one.connect()
        await greet(good)
        await greet(flood)
        burst = PROTOBUF.encode(Request(1, "a")) * 500
        for _ in range(20):
            if not flood.transport.closed and flood.transport.unsent < HIGH_WATER:
                flood.transport.send([burst])
            await asyncio.sleep(0)
        await still_served(good, 1)


def test_arbitrary_bytes_on_a_real_socket_end_with_a_documented_code(kind: str) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4))
    def fuzz(chunks: list[bytes]) -> None:
        asyncio.run(run(chunks))

    async def run(chunks: list[bytes]) -> None:
        async with house(kind) as one:
            good = await one.connect()
            (await good.opening()).send([PROTOBUF.encode(Hello())])
            one.config = LinkConfig(hello_timeout=0.05)  # of those that come from now on
            bad = await one.connect()
            (await bad.opening()).send(chunks)
            code, _ = await bad.ending()
            assert code in set(CloseCode)
            await good.until(lambda: any(isinstance(frame, Welcome) for frame in good.frames()))
            await still_served(good, 1)

    fuzz()
