"""`python -m benchmarks.transports`: pushes per second by the bare libraries, through our interface, and with the link.

One server process, one client process, loopback, 200-byte messages, ten connections. `one by one` is a write per
message, `coalesced` sixteen per write. `link` is everything but Redis: numbered, windowed, and
acknowledged by the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from typing import Any

import uvloop
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_connect, ws_create_server

from veredus.link.session import ClientLink, Ended, LinkConfig, Received, ServerLink
from veredus.link.transports.base import HIGH_WATER, Transport
from veredus.link.transports.certificate import make_local_certificate
from veredus.link.transports.quic import connect_quic, listen_quic
from veredus.link.transports.websocket import connect_websocket, listen_websocket
from veredus.model.delivery import Cursor
from veredus.model.frames import Hello, Message, Welcome
from veredus.wire.frames import codec, encode_stored

CONNECTIONS = 10
PROTOBUF = codec("protobuf")
TAIL = encode_stored(Message(type="tick", body=b'"' + b"x" * 180 + b'"'))
FRAME = PROTOBUF.message_frame(1, 1_700_000_000_000_000, TAIL)


class Count:
    """Bytes received by all clients, until there are enough."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.got = wanted, 0
        self.first = 0.0
        self.done = asyncio.Event()

    def add(self, size: int) -> None:
        if not self.got:
            self.first = time.perf_counter()
        self.got += size
        if self.got >= self.wanted:
            self.done.set()


class Pusher:
    """Gives each connection `many` messages, `batch` per write, never far ahead of the socket."""

    def __init__(self, many: int, batch: int) -> None:
        self.left, self.chunk, self.batch = many, FRAME * batch, batch

    def push(self, send: Any, unsent: Any, again: Any) -> None:
        if self.left <= 0:
            return
        for _ in range(max(1, 64 // self.batch)):
            if self.left <= 0 or unsent() >= HIGH_WATER:
                break
            send(self.chunk)
            self.left -= self.batch
        again()


# ---- the bare libraries


class BareWebSocket(WSListener):
    def __init__(self, pusher: Pusher) -> None:
        self.pusher = pusher

    def on_ws_connected(self, transport: WSTransport) -> None:
        out, loop = transport.underlying_transport, asyncio.get_running_loop()

        def turn() -> None:
            self.pusher.push(
                lambda chunk: transport.send(WSMsgType.BINARY, chunk),
                out.get_write_buffer_size,
                lambda: (
                    loop.call_soon(turn) if out.get_write_buffer_size() < HIGH_WATER else loop.call_later(0.001, turn)
                ),
            )

        turn()

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class CountingWebSocket(WSListener):
    def __init__(self, count: Count) -> None:
        self.count = count

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.count.add(frame.payload_size)


class BareQuic(QuicConnectionProtocol):
    pusher: Pusher

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, StreamDataReceived):
            self._turn()

    def _turn(self) -> None:
        sender = self._quic._streams[0].sender
        loop = asyncio.get_running_loop()

        def again() -> None:
            self.transmit()
            if sender._buffer_stop - sender._buffer_start < HIGH_WATER:
                loop.call_soon(self._turn)
            else:
                loop.call_later(0.001, self._turn)

        self.pusher.push(
            lambda chunk: self._quic.send_stream_data(0, chunk),
            lambda: sender._buffer_stop - sender._buffer_start,
            again,
        )


class CountingQuic(QuicConnectionProtocol):
    count: Count

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, StreamDataReceived):
            self.count.add(len(event.data))


# ---- ours


class Plain:
    """Our transport without the link."""

    def __init__(self, pusher: Pusher) -> None:
        self.pusher = pusher

    def opened(self, transport: Transport) -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            self.pusher.push(
                lambda chunk: transport.send([chunk]),
                lambda: transport.unsent,
                lambda: loop.call_soon(turn) if transport.unsent < HIGH_WATER else loop.call_later(0.001, turn),
            )

        turn()

    def received(self, transport: Transport, data: bytes) -> None: ...
    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


class Linked:
    """The gateway's end without Redis: as many entries as the window takes, sixteen or one per turn of the loop."""

    def __init__(self, many: int, batch: int) -> None:
        self.many, self.batch, self.top = many, batch, 0
        self.turning = False

    def opened(self, transport: Transport) -> None:
        self.loop = asyncio.get_running_loop()
        self.link = ServerLink(transport.encoding, LinkConfig(), self.loop.time())
        self.transport = transport

    def received(self, transport: Transport, data: bytes) -> None:
        now = self.loop.time()
        for event in self.link.receive(data, now):
            if isinstance(event, Hello):
                self.link.welcome(Welcome("p000-x", "k", "new", cursor=Cursor("e", 0, 0)), (), now)
            assert not isinstance(event, Ended), event
        if not self.turning:
            self.turning = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        """Messages come to a gateway from elsewhere, so many per turn of the loop."""
        self.turning = False
        link, now, many = self.link, self.loop.time(), min(self.batch, self.many - self.top)
        if 0 < many <= 256 - link.pending_count:
            top = self.top
            link.offer_entries([(top + i, 1_700_000_000_000_000 + top + i, 0, TAIL) for i in range(1, many + 1)], now)  # type: ignore[misc]
            self.top += many
            self.turning = True
            self.loop.call_soon(self.turn)
        if link.has_output and self.transport.unsent < HIGH_WATER:
            self.transport.send(link.take_output())

    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


class Reader:
    """A client without a link: it counts."""

    def __init__(self, count: Count) -> None:
        self.count = count

    def opened(self, transport: Transport) -> None:
        transport.send([b"!"])

    def received(self, transport: Transport, data: bytes) -> None:
        self.count.add(len(data))

    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


class LinkedReader(Reader):
    """The client's end: every message decoded, checked, counted and acknowledged."""

    def opened(self, transport: Transport) -> None:
        self.link = ClientLink()
        self.loop = asyncio.get_running_loop()
        self.link.connected(self.loop.time())
        transport.send(self.link.take_output())

    def received(self, transport: Transport, data: bytes) -> None:
        now, size = self.loop.time(), len(FRAME)
        for event in self.link.receive(data, now):
            if isinstance(event, Received):
                self.link.done(event.cursor, now)
                self.count.add(size)
        self.link.tick(now)
        if self.link.has_output:
            transport.send(self.link.take_output())


# ---- one run


async def serve_one(kind: str, way: str, many: int, batch: int, pipe: Any) -> None:
    if way == "bare" and kind == "websocket":

        def answer(request: WSUpgradeRequest) -> BareWebSocket:
            return BareWebSocket(Pusher(many, batch))

        server = await ws_create_server(answer, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname())
    elif way == "bare":
        made = make_local_certificate()
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["bench"], max_datagram_size=1452)
        from aioquic.tls import load_pem_private_key, load_pem_x509_certificates

        configuration.certificate = load_pem_x509_certificates(made.certificate)[0]
        configuration.private_key = load_pem_private_key(made.key)

        def protocol(*arguments: Any, **more: Any) -> BareQuic:
            one = BareQuic(*arguments, **more)
            one.pusher = Pusher(many, batch)
            return one

        quic = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=protocol)
        assert quic._transport is not None
        pipe.send(quic._transport.get_extra_info("sockname"))
    else:
        listen: Any = listen_websocket if kind == "websocket" else listen_quic
        make = (lambda: Linked(many, batch)) if way == "link" else (lambda: Plain(Pusher(many, batch)))
        pipe.send((await listen("127.0.0.1", 0, make)).address)
    began = time.process_time()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    pipe.send(time.process_time() - began)


def _serve(*arguments: Any) -> None:
    uvloop.run(serve_one(*arguments))


async def read_all(kind: str, way: str, address: tuple[str, int], count: Count) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_read_one(kind, way, address, count))


async def _read_one(kind: str, way: str, address: tuple[str, int], count: Count) -> None:
    host, port = address
    if way == "bare" and kind == "websocket":
        await ws_connect(lambda: CountingWebSocket(count), f"ws://{host}:{port}/")
        await count.done.wait()
    elif way == "bare":
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=["bench"], verify_mode=0, max_datagram_size=1452
        )

        def protocol(*arguments: Any, **more: Any) -> CountingQuic:
            one = CountingQuic(*arguments, **more)
            one.count = count
            return one

        async with connect(host, port, configuration=configuration, create_protocol=protocol) as client:
            client._quic.send_stream_data(0, b"!")
            client.transmit()
            await count.done.wait()
    else:
        reader = LinkedReader(count) if way == "link" else Reader(count)
        if kind == "websocket":
            await connect_websocket(f"ws://{host}:{port}/", reader)
        else:
            await connect_quic(host, port, reader)
        await count.done.wait()


def run(kind: str, way: str, many: int, batch: int) -> tuple[float, float, float]:
    """Messages per second, and CPU microseconds per message of the server and of the client process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    per_connection = many // CONNECTIONS // batch * batch
    process = context.Process(target=_serve, args=(kind, way, per_connection, batch, theirs), daemon=True)
    process.start()
    address = ours.recv()[:2]
    total = per_connection * CONNECTIONS

    async def client() -> tuple[float, float]:
        count = Count(total * len(FRAME))
        cpu = time.process_time()
        await read_all(kind, way, address, count)
        return time.perf_counter() - count.first, time.process_time() - cpu

    seconds, cpu = uvloop.run(client())
    ours.send("enough")
    server_cpu = ours.recv()
    process.kill()
    process.join()
    return total / seconds, server_cpu / total * 1e6, cpu / total * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--quic-messages", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=3, help="the best of so many is shown")
    options = parser.parse_args()
    print(f"{'':10} {'':12} {'bare library':>26} {'interface':>26} {'with link':>26}")
    for kind, many in (("websocket", options.messages), ("quic", options.quic_messages)):
        for name, batch in (("one by one", 1), ("coalesced", 16)):
            cells = []
            for way in ("bare", "interface", "link"):
                rate, server, client = max(run(kind, way, many, batch) for _ in range(options.runs))
                cells.append(f"{rate:9,.0f}/s {server:5.1f} {client:5.1f} us")
            print(f"{kind:10} {name:12} " + " ".join(f"{cell:>26}" for cell in cells), flush=True)
    print("rates, then CPU per message of the server and of the client process")


if __name__ == "__main__":
    main()
