"""Processes of the gateway's benchmark: a lean reader, a producer, and the bare libraries pushing the same bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

from veredus.link.transports.quic import connect_quic
from veredus.link.transports.websocket import connect_websocket
from veredus.model.frames import Ack, ALPN, Hello, Kind, Message, Ping, Pong, Welcome
from veredus.wire.frames import codec, encode_stored

SIZE = 200
CODEC = codec("protobuf")
_MESSAGE = b"\x8a\x04"
"""How a message frame begins, after its length."""


class Reader:
    """One client: counts messages by their length prefixes, looks only at their numbers, acknowledges every 32."""

    def __init__(self, bare: bool) -> None:
        self.count: float = 0
        self.seq = self.acked = self.disorder = 0
        self.sid = ""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bare = bare
        self._rest = b""

    def opened(self, transport: Any) -> None:
        transport.send([CODEC.encode(Hello())])
        if self._bare:
            self.ready.set_result(None)

    def received(self, transport: Any, data: Any) -> None:
        if self._bare:
            self.count += len(data) / SIZE
            return
        data = self._rest + bytes(data)
        at, end, seq = 0, len(data), self.seq
        while at < end:
            size = shift = 0
            begin = at
            while begin < end:
                byte = data[begin]
                begin += 1
                size |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            if begin + size > end or data[begin - 1] > 127:
                break
            if data[begin : begin + 2] == _MESSAGE:
                field = begin + 2
                while data[field] > 127:
                    field += 1
                number = int.from_bytes(data[field + 2 : field + 10], "little")
                self.disorder += number != seq + 1
                seq = number
                self.count += 1
            else:
                self._control(transport, data[at : begin + size])
            at = begin + size
        self._rest, self.seq = data[at:], seq
        if seq - self.acked >= 32:
            self.acked = seq
            transport.send([CODEC.encode(Ack(seq))])

    def _control(self, transport: Any, data: bytes) -> None:
        for frame in CODEC.decoder(2**20, 100).feed(data):
            if isinstance(frame, Welcome):
                self.sid = frame.sid
                self.ready.set_result(None)
            elif isinstance(frame, Ping):
                transport.send([CODEC.encode(Pong(frame.echo, self.seq))])

    def writable(self, transport: Any) -> None: ...

    def closed(self, transport: Any, code: int, reason: str) -> None: ...


async def read(kind: str, port: int, clients: int, bare: bool, seconds: float) -> None:
    """Prints the sessions once all are connected, then what was read in the steady part, as JSON."""
    readers = [Reader(bare) for _ in range(clients)]
    transports = []
    for reader in readers:
        if kind == "ws":
            transports.append(await connect_websocket(f"ws://127.0.0.1:{port}/", reader))
        else:
            transports.append(await connect_quic("127.0.0.1", port, reader, verify=False))
        await reader.ready
    print(json.dumps([reader.sid for reader in readers]), flush=True)
    while not sum(reader.count for reader in readers):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    before, cpu, began = sum(reader.count for reader in readers), time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    print(
        json.dumps(
            {
                "rate": (sum(reader.count for reader in readers) - before) / took,
                "cpu": (time.process_time() - cpu) / took,
                "disorder": sum(reader.disorder for reader in readers),
            }
        ),
        flush=True,
    )


async def produce(url: str, seconds: float, sids: list[str]) -> None:
    """As fast as the logs take it: one that is full is given a moment."""
    from veredus.store.sessions.outbox import Append
    from veredus.store.store import connect, Store

    store = Store(connect(url))
    tail = encode_stored(Message(kind=Kind.NOTIFY, type="n", body=b"x" * (SIZE - 20)))
    ends, position, pending = time.monotonic() + seconds, 0, set()
    while time.monotonic() < ends:
        rows = [Append(sids[(position + n) % len(sids)], tail) for n in range(200)]
        position += 200
        pending.add(asyncio.ensure_future(store.outbox.append(rows)))
        if len(pending) >= 3:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(not result.ok for one in done for result in one.result()):
                await asyncio.sleep(0.005)
    await asyncio.gather(*pending)
    await store.close()


async def bare_ws(port: int, expected: int) -> None:
    """picows alone: one write for each message, to whoever has room, once all are there."""
    import picows

    clients: dict[Any, None] = {}

    class Pusher(picows.WSListener):
        def on_ws_connected(self, transport: Any) -> None:
            clients[transport] = None

        def on_ws_disconnected(self, transport: Any) -> None:
            clients.pop(transport, None)

    server = await picows.ws_create_server(
        lambda request: picows.WSUpgradeResponseWithListener(
            picows.WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": "veredus.gw.1"}), Pusher()
        ),
        "127.0.0.1",
        port,
    )
    payload = b"x" * SIZE
    async with server:
        while True:
            for client in list(clients) if len(clients) >= expected else ():
                under = client.underlying_transport
                if not under.is_closing() and under.get_write_buffer_size() < 65536:
                    client.send(picows.WSMsgType.BINARY, payload)
            await asyncio.sleep(0)


async def bare_quic(port: int, expected: int) -> None:
    """aioquic alone: each message is its own write to the stream, sent at once."""
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.asyncio.server import serve
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import StreamDataReceived
    from aioquic.tls import load_pem_private_key, load_pem_x509_certificates

    from veredus.link.transports.certificate import make_local_certificate

    streams: dict[Any, int] = {}

    class Pusher(QuicConnectionProtocol):
        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, StreamDataReceived):
                streams[self] = event.stream_id

        def connection_lost(self, exc: Any) -> None:
            streams.pop(self, None)

    local = make_local_certificate()
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN], max_datagram_size=1452)
    configuration.certificate = load_pem_x509_certificates(local.certificate)[0]
    configuration.private_key = load_pem_private_key(local.key)
    await serve("127.0.0.1", port, configuration=configuration, create_protocol=Pusher)
    payload = b"x" * SIZE
    while True:
        for client, stream in list(streams.items()) if len(streams) >= expected else ():
            sender = client._quic._streams[stream].sender
            if sender._buffer_stop - sender._buffer_start < 65536:
                client._quic.send_stream_data(stream, payload)
                client.transmit()
        await asyncio.sleep(0)


def main() -> None:
    logging.disable(logging.WARNING)  # picows tells of every full buffer, which is the point here
    role, *given = sys.argv[1:]
    if role == "read":
        work = read(given[0], int(given[1]), int(given[2]), given[3] == "bare", float(given[4]))
    elif role == "produce":
        work = produce(given[0], float(given[1]), given[2:])
    else:
        work = {"bare-ws": bare_ws, "bare-quic": bare_quic}[role](int(given[0]), int(given[1]))
    try:
        import uvloop

        uvloop.run(work)
    except ImportError:
        asyncio.run(work)


if __name__ == "__main__":
    main()
