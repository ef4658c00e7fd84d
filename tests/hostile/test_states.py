"""Every frame in every state, on every carrier: what ends the connection, and with which code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.support import gateway
from tests.transports.support import WAIT, Notes
from veredus import App
from veredus.gateway.auth import Identity
from veredus.gateway.gateway import Gateway
from veredus.link.transports.quic import connect_quic
from veredus.link.transports.websocket import connect_websocket
from veredus.model.delivery import Cursor
from veredus.model.frames import (
    FRAMES,
    Accept,
    Ack,
    Auth,
    Bye,
    Cancel,
    Close,
    Frame,
    Gap,
    GoAway,
    Hello,
    Join,
    Leave,
    Message,
    Ping,
    Pong,
    Reject,
    Request,
    Volatile,
    Welcome,
)
from veredus.wire.frames import codec

SAMPLES: list[Frame] = [
    Hello(token="mallory"), Request(1, "none"), Ack(0), Cancel(1), Pong(1), Join("g"), Leave("g"), Auth("mallory"),
    Bye(), Welcome("p001-s", "k", "new", cursor=Cursor("e", 0, 0)), Message(1, 1), Accept(1), Reject(1, 400),
    Ping(1), GoAway(1, "r"), Gap(1, 1, "quota"), Close(4000, "r"), Volatile("t", b"1"),
]  # fmt: skip
UNKNOWN = {"json": b'{"t":"x-new","v":1}\n', "protobuf": b"\x06\x82\x08\x03abc"}
EMPTY = {"json": b"\n", "protobuf": b""}
ALLOWED = (Request, Ack, Cancel, Pong, Join, Leave, Auth, bytes)
CARRIERS = (("websocket", "json"), ("websocket", "protobuf"), ("quic", "protobuf"))


def test_every_frame_has_a_sample() -> None:
    assert {type(frame) for frame in SAMPLES} == set(FRAMES.values())


class Client:
    """A bare connection."""

    def __init__(self, encoding: str) -> None:
        self.notes = Notes()
        self.codec = codec(encoding)

    @classmethod
    async def connect(cls, gw: Gateway, carrier: str, encoding: Any) -> Client:
        client = cls(encoding)
        if carrier == "quic":
            assert gw.quic_address is not None
            await connect_quic(*gw.quic_address, client.notes)
        else:
            await connect_websocket(f"ws://{gw.ws_address}/", client.notes, encoding=encoding)
        return client

    def send(self, what: Frame | bytes) -> None:
        assert self.notes.transport is not None
        self.notes.transport.send([what if isinstance(what, bytes) else self.codec.encode(what)])

    def frames(self) -> list[Frame]:
        return self.codec.decoder(2**21).feed(bytes(self.notes.data))

    async def until(self, kind: type, **fields: Any) -> None:
        def found() -> bool:
            return any(
                isinstance(frame, kind) and all(getattr(frame, name) == value for name, value in fields.items())
                for frame in self.frames()
            )

        await self.notes.until(found)

    async def log_in(self) -> None:
        self.send(Hello(token="mallory"))
        await self.until(Welcome)

    async def is_served(self) -> None:
        self.send(Request(99, "none"))
        await self.until(Reject, rid=99)

    async def code(self) -> int:
        return (await self.notes.ending())[0]


@pytest.fixture
async def held() -> AsyncIterator[asyncio.Event]:
    """An authenticator waits for it: until then a connection stands between hello and welcome."""
    event = asyncio.Event()
    yield event
    event.set()


@pytest.mark.parametrize(("carrier", "encoding"), CARRIERS)
async def test_before_the_hello(app: App, carrier: str, encoding: str) -> None:
    async with gateway(app, quic="127.0.0.1:0") as gw:
        for sent in (*SAMPLES, UNKNOWN[encoding], EMPTY[encoding]):
            if carrier == "quic" and sent == b"":
                continue
            client = await Client.connect(gw, carrier, encoding)
            client.send(sent)
            if isinstance(sent, Hello):
                await client.until(Welcome)
                client.notes.transport.close(1000)  # type: ignore[union-attr]
            else:
                assert await client.code() == 4500, sent


@pytest.mark.parametrize(("carrier", "encoding"), CARRIERS)
async def test_between_hello_and_welcome(app: App, carrier: str, encoding: str, held: asyncio.Event) -> None:
    async def authenticate(token: str) -> Identity:
        await held.wait()
        return Identity(user=token)

    async with gateway(app, quic="127.0.0.1:0", authenticate=authenticate) as gw:
        for sent in (*SAMPLES, UNKNOWN[encoding]):
            client = await Client.connect(gw, carrier, encoding)
            client.send(Hello(token="mallory"))
            client.send(sent)
            assert await client.code() == 4500, sent
        held.set()


@pytest.mark.parametrize(("carrier", "encoding"), CARRIERS)
async def test_after_the_welcome(app: App, carrier: str, encoding: str) -> None:
    async with gateway(app, quic="127.0.0.1:0", sessions_per_user=100) as gw:
        patient = await Client.connect(gw, carrier, encoding)
        await patient.log_in()
        for sent in (*SAMPLES, UNKNOWN[encoding], EMPTY[encoding]):
            if isinstance(sent, ALLOWED):
                patient.send(sent)
                await patient.is_served()
                patient.notes.data.clear()
                continue
            client = await Client.connect(gw, carrier, encoding)
            await client.log_in()
            client.send(sent)
            assert await client.code() == (4504 if isinstance(sent, Bye) else 4500), sent
        async with asyncio.timeout(WAIT):
            await patient.is_served()
