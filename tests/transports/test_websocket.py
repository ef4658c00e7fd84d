"""What only WebSocket has: an independent client, subprotocols, origins, paths, fragments, pings, TLS, raw nonsense."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import websockets

from tests.transports.support import PROTOBUF, WAIT, House, Notes, greet, house, still_served
from veredus.link.session import LinkConfig
from veredus.link.transports.base import LOW_WATER
from veredus.link.transports.certificate import make_local_certificate
from veredus.link.transports.websocket import connect_websocket, listen_websocket
from veredus.link.transports.websocket_transport import _READ_AT_ONCE, WebSocketTransport
from veredus.model.frames import SUBPROTOCOL, SUBPROTOCOL_JSON, Accept, CloseCode, Hello, Request, Welcome, resumable


def url(one: House, path: str = "/") -> str:
    host, port = one.listener.address
    return f"ws://{host}:{port}{path}"


def library(one: House, subprotocol: str = SUBPROTOCOL, path: str = "/", **options: Any) -> Any:
    return websockets.connect(url(one, path), subprotocols=[websockets.Subprotocol(subprotocol)], **options)


async def closing(socket: Any) -> int:
    """The close code that comes."""
    async with asyncio.timeout(WAIT):
        await socket.wait_closed()
    return int(socket.close_code)


async def test_an_independent_client_speaks_protobuf_without_compression() -> None:
    async with house("websocket") as one, library(one, compression="deflate") as socket:
        assert socket.subprotocol == SUBPROTOCOL
        assert socket.protocol.extensions == []
        await socket.send(PROTOBUF.encode(Hello()))
        (welcome,) = PROTOBUF.decoder(10**6).feed(await socket.recv())
        assert isinstance(welcome, Welcome)
        for rid in (1, 2):  # in fragments, one message after the other
            frame = PROTOBUF.encode(Request(rid, "a"))
            await socket.send([frame[:5], frame[5:]])
            assert PROTOBUF.decoder(10**6).feed(await socket.recv()) == [Accept(rid)]


async def test_an_independent_client_speaks_json_in_text_messages() -> None:
    async with house("websocket") as one, library(one, SUBPROTOCOL_JSON) as socket:
        await socket.send('{"t":"hello","version":1}\n')
        text = await socket.recv()
        assert isinstance(text, str)
        assert text.startswith('{"t":"welcome"')
        await socket.send('{"t":"request","rid":1,"action":"a","body":{"n":1}}\n{"t":"request","rid":2,"action":"b"}')
        assert await socket.recv() == '{"t":"accept","rid":1}\n{"t":"accept","rid":2}\n'


@pytest.mark.parametrize("code", [1000, 4321])
async def test_a_close_is_answered_with_its_own_code(code: int) -> None:
    async with house("websocket") as one, library(one) as socket:
        await socket.close(code)
        assert socket.protocol.close_rcvd is not None
        assert socket.protocol.close_rcvd.code == code


async def test_text_where_binary_was_agreed_is_a_bad_frame() -> None:
    async with house("websocket") as one, library(one) as socket:
        await socket.send("text")
        assert await closing(socket) == CloseCode.BAD_FRAME


async def test_without_a_subprotocol_of_ours_or_on_another_path_there_is_no_gateway() -> None:
    async with house("websocket", path="/gw") as one:
        for path, subprotocol, status in (("/gw", "chat", 400), ("/", SUBPROTOCOL, 404), ("/gwx", SUBPROTOCOL, 404)):
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with library(one, subprotocol, path):
                    pass
            assert caught.value.response.status_code == status
        async with library(one, path="/gw?token=1") as socket:
            await socket.send(PROTOBUF.encode(Hello()))
            assert await socket.recv()
        with pytest.raises(ConnectionRefusedError, match="is not a gateway"):
            await connect_websocket(url(one, "/elsewhere"), Notes())


async def test_a_foreign_origin_is_told_so_by_the_close_code() -> None:
    async with house("websocket", origins=["https://good.example"]) as one:
        async with library(one, origin="https://evil.example") as socket:
            assert await closing(socket) == CloseCode.ORIGIN_FORBIDDEN
        for origin in ("https://good.example", None):
            async with library(one, origin=origin) as socket:
                await socket.send(PROTOBUF.encode(Hello()))
                assert await socket.recv()
        assert len(one.desks) == 2


async def test_an_oversized_message_is_refused_whole_or_in_fragments() -> None:
    async with house("websocket", max_message=1000) as one:
        async with library(one) as socket:
            await socket.send(b"x" * 1001)
            code = await closing(socket)
            assert code == 1009  # by the library, before the message is there
            assert not resumable(code)
        async with library(one) as socket:
            await socket.send([b"x" * 400] * 3)
            assert await closing(socket) == CloseCode.TOO_LARGE
        async with library(one) as socket:
            await socket.send([b""] * 100)
            assert await closing(socket) == CloseCode.TOO_LARGE


async def test_pings_are_answered_but_not_to_a_client_that_does_not_read() -> None:
    async with house("websocket", control_rate=10.0**9) as one:
        async with library(one, ping_interval=None) as socket:
            async with asyncio.timeout(WAIT):
                await (await socket.ping(b"there?"))
        host, port = one.listener.address
        reader, writer = await asyncio.open_connection(host, port, limit=2**10)
        await _upgrade(reader, writer)
        desk = one.desks[-1]
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        ping = b"\x89\xfd\0\0\0\0" + b"p" * 125
        transport: Any = desk.transport
        for _ in range(300):
            writer.write(ping * 400)
            await asyncio.wait_for(writer.drain(), WAIT)
            assert transport.unsent < LOW_WATER + 200
        writer.transport.abort()
        await desk.ending()


async def _upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: veredus.gw.1\r\n\r\n"
    )
    assert b"101" in await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("name", "frame", "code"),
    [
        ("unmasked", b"\x82\x01x", 1002),
        ("opcode", b"\x83\x81\0\0\0\0x", 1002),
        ("reserved bit", b"\xc2\x81\0\0\0\0x", 4500),
        ("continuation first", b"\x80\x81\0\0\0\0x", 4500),
        ("new message inside fragments", b"\x02\x81\0\0\0\0x\x82\x81\0\0\0\0x", 4500),
        ("fragmented ping", b"\x09\x80\0\0\0\0", 1002),
        ("length that lies", b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1009),
    ],
)
async def test_broken_websocket_frames_have_their_close_codes(name: str, frame: bytes, code: int) -> None:
    async with house("websocket") as one:
        good = await one.connect()
        await greet(good)
        reader, writer = await asyncio.open_connection(*one.listener.address)
        await _upgrade(reader, writer)
        writer.write(frame)
        async with asyncio.timeout(WAIT):
            answer = await reader.read(200)
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4]) == code
        writer.close()
        assert (await one.desks[-1].ending())[0] == code
        await still_served(good, 1)


async def test_the_last_fragment_counts_towards_the_size_of_a_message() -> None:
    async with house("websocket", max_message=1000) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        await _upgrade(reader, writer)
        for first, size in ((b"\x02", 900), (b"\x80", 200)):
            writer.write(first + b"\xfe" + size.to_bytes(2) + bytes(4) + b"x" * size)
        assert await one.desks[-1].ending() == (CloseCode.TOO_LARGE, "a message may have at most 1,000 bytes")
        writer.close()


@pytest.mark.parametrize("request_", [b"", b"GET / HT", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_what_is_no_upgrade_ends_in_time(request_: bytes) -> None:
    async with house("websocket", handshake_timeout=0.2) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(request_)
        async with asyncio.timeout(WAIT):
            while await reader.read(1000):
                pass
        writer.close()
        assert one.desks == []


async def test_a_client_that_leaves_without_a_word() -> None:
    async with house("websocket") as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        await _upgrade(reader, writer)
        writer.transport.abort()
        assert (await one.desks[0].ending())[0] == 1006


async def test_a_peer_that_does_not_answer_a_close_is_cut_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.link.transports.websocket_transport.CLOSE_GRACE", 0.1)
    async with house("websocket") as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        await _upgrade(reader, writer)
        one.desks[0].transport.close(4000, "go")  # type: ignore[union-attr]
        assert await one.desks[0].ending() == (4000, "go")
        writer.close()


async def test_over_tls_with_a_certificate_of_our_own(tmp_path: Path) -> None:
    made = make_local_certificate()
    (tmp_path / "c.pem").write_bytes(made.certificate)
    (tmp_path / "k.pem").write_bytes(made.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
    desk = House("websocket", LinkConfig())
    listener = await listen_websocket("127.0.0.1", 0, desk.desk, tls=server)
    try:
        notes = Notes()
        await connect_websocket(f"wss://localhost:{listener.address[1]}/", notes, tls=trusting)
        await greet(notes)
        await still_served(notes, 1)
        with pytest.raises(OSError):
            await connect_websocket(f"wss://localhost:{listener.address[1]}/", Notes())
        notes.transport.close(1000)  # type: ignore[union-attr]
        await notes.ending()
    finally:
        await listener.close()


@pytest.mark.parametrize(("times", "pauses"), [((1.0, 1.0), 1), ((1.0, 2.0), 0), ((1.0, 2.0, 2.0), 1)])
async def test_what_is_read_in_one_turn_counts_together_and_each_turn_begins_anew(
    monkeypatch: pytest.MonkeyPatch, times: tuple[float, ...], pauses: int
) -> None:
    transport = WebSocketTransport(Notes(), "json", 1000, control_rate=100.0)
    steps: list[str] = []
    out: Any = SimpleNamespace(
        pause_reading=lambda: steps.append("pause"), resume_reading=lambda: steps.append("resume")
    )
    transport._out = out
    for now in times:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)
            transport._count(_READ_AT_ONCE // 2 + 1, True)
    await asyncio.sleep(0)
    assert steps == ["pause", "resume"] * pauses
