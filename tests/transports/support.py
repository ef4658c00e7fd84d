"""A gateway in miniature (a ServerLink on a real port), handlers that take notes, one way to connect to both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.waiting import PATIENCE
from veredus.link.session import Ended, LinkConfig, ServerLink
from veredus.link.transports.base import HIGH_WATER, Handler, Listener, Transport
from veredus.link.transports.quic import connect_quic, listen_quic
from veredus.link.transports.websocket import connect_websocket, listen_websocket
from veredus.model.delivery import Cursor
from veredus.model.frames import Accept, Frame, Hello, Message, Request, Welcome
from veredus.wire.frames import codec, encode_stored

PROTOBUF = codec("protobuf")
KINDS = ("websocket", "quic")
WAIT = PATIENCE


class Notes:
    """A handler that writes down what happens."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.data = bytearray()
        self.messages: list[bytes] = []
        self.writable_again = 0
        self.end: tuple[int, str] | None = None
        self.changed = asyncio.Event()

    def opened(self, transport: Transport) -> None:
        self.transport = transport
        self.changed.set()

    def received(self, transport: Transport, data: bytes) -> None:
        self.data += data
        self.messages.append(data)
        self.changed.set()

    def writable(self, transport: Transport) -> None:
        self.writable_again += 1
        self.changed.set()

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        assert self.end is None
        self.end = code, reason
        self.changed.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ending(self) -> tuple[int, str]:
        await self.until(lambda: self.end is not None)
        assert self.end is not None
        return self.end

    async def opening(self) -> Transport:
        await self.until(lambda: self.transport is not None)
        assert self.transport is not None
        return self.transport

    def frames(self) -> list[Frame]:
        return PROTOBUF.decoder(2**21).feed(bytes(self.data))


class Desk(Notes):
    """The server's handler: a link on the transport, that welcomes everybody and accepts every request."""

    def __init__(self, config: LinkConfig) -> None:
        super().__init__()
        self.config = config
        self.link: ServerLink | None = None
        self.ticking: asyncio.TimerHandle | None = None
        self.top = 0

    def opened(self, transport: Transport) -> None:
        super().opened(transport)
        self.loop = asyncio.get_running_loop()
        self.link = ServerLink(
            transport.encoding, self.config, self.loop.time(), whole_messages=transport.kind == "websocket"
        )
        self._arm()

    def received(self, transport: Transport, data: bytes) -> None:
        assert self.link is not None
        self.handle(self.link.receive(data, self.loop.time()))
        self.changed.set()

    def writable(self, transport: Transport) -> None:
        super().writable(transport)
        self.flush()

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        super().closed(transport, code, reason)
        if self.ticking is not None:
            self.ticking.cancel()

    def handle(self, events: Any) -> None:
        assert self.link is not None
        now = self.loop.time()
        for event in events:
            if isinstance(event, Hello):
                self.link.welcome(Welcome("p001-s", "k", "new", cursor=Cursor("e", 0, 0)), (), now)
            elif isinstance(event, Request):
                self.link.accept(event.rid, now)
            elif isinstance(event, Ended):
                self.flush()
                assert self.transport is not None
                self.transport.close(event.code, event.reason)
        self.flush()

    def push(self, many: int, size: int = 200) -> int:
        """Offer as many as the window takes; how many it took."""
        assert self.link is not None
        before = self.link.pending_count
        tail = encode_stored(Message(body=b"1" * size))
        self.link.offer_entries([(self.top + i + 1, self.top + i + 1, 0, tail) for i in range(many)], self.loop.time())  # type: ignore[misc]
        took = self.link.pending_count - before
        self.top += took
        self.flush()
        return took

    def flush(self) -> None:
        assert self.link is not None
        assert self.transport is not None
        while self.link.has_output and self.transport.unsent < HIGH_WATER:
            self.transport.send(self.link.take_output())

    def _arm(self) -> None:
        self.ticking = self.loop.call_later(0.02, self._tick)

    def _tick(self) -> None:
        assert self.link is not None
        assert self.transport is not None
        self.handle(self.link.tick(self.loop.time(), unsent=self.transport.unsent))
        if self.end is None:
            self._arm()


class House:
    """A listener of one kind, with the handlers of its connections."""

    def __init__(self, kind: str, config: LinkConfig) -> None:
        self.kind = kind
        self.config = config
        self.desks: list[Desk] = []
        self.clients: list[Handler] = []
        self.listener: Any = None
        self.make: Callable[[LinkConfig], Desk] = Desk

    def desk(self) -> Desk:
        self.desks.append(self.make(self.config))
        return self.desks[-1]

    async def open(self, **options: Any) -> None:
        listen = listen_websocket if self.kind == "websocket" else listen_quic
        self.listener = await listen("127.0.0.1", 0, self.desk, **options)

    async def connect(self, handler: Handler | None = None, **options: Any) -> Any:
        """A bare connection: whatever is sent on it is sent as it is. With its notes, if no handler is given."""
        host, port = self.listener.address
        notes = handler or Notes()
        self.clients.append(notes)
        if self.kind == "websocket":
            await connect_websocket(f"ws://{host}:{port}/", notes, **options)
        else:
            await connect_quic(host, port, notes, **options)
        return notes

    async def close(self) -> None:
        listener: Listener = self.listener
        await listener.close()
        for desk in self.desks:
            if desk.transport is not None and desk.end is None:
                desk.transport.abort()
        for client in self.clients:
            if isinstance(client, Notes) and client.transport is not None and client.end is None:
                client.transport.abort()


@asynccontextmanager
async def house(kind: str, config: LinkConfig | None = None, **options: Any) -> AsyncIterator[House]:
    one = House(kind, config or LinkConfig())
    await one.open(**options)
    try:
        yield one
    finally:
        await one.close()


async def greet(notes: Notes) -> None:
    """Hello and welcome."""
    transport = await notes.opening()
    transport.send([PROTOBUF.encode(Hello())])
    await notes.until(lambda: any(isinstance(frame, Welcome) for frame in _whole(notes)))


async def still_served(notes: Notes, rid: int) -> None:
    """This connection gets an answer."""
    assert notes.transport is not None
    notes.transport.send([PROTOBUF.encode(Request(rid, "a"))])
    await notes.until(lambda: Accept(rid) in _whole(notes))


def _whole(notes: Notes) -> list[Frame]:
    decoder = PROTOBUF.decoder(2**21)
    return decoder.feed(bytes(notes.data))
