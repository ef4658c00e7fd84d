"""WebSocket and QUIC clients made of sockets: they send what no library would, as fast as they can."""

from __future__ import annotations

import json
import random
import select
import socket
import time
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamDataReceived

from veredus.model.frames import ALPN, Hello
from veredus.wire.frames import codec

TEXT, BINARY, PING, PONG, CONTINUATION = 1, 2, 9, 10, 0
JSON, PROTOBUF = "veredus.gw.1.json", "veredus.gw.1"
HELLO = {"t": "hello", "version": 1, "token": "mallory"}


def upgrade(subprotocol: str = JSON, path: str = "/", *headers: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Sec-WebSocket-Protocol: {subprotocol}", *headers,
    ]  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def ws_frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True) -> bytes:
    """One WebSocket frame, with a mask of zeros."""
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2) if length < 65536 else b""
    size = size or b"\xff" + length.to_bytes(8)
    return bytes([(0x80 if fin else 0) | opcode]) + size + b"\0\0\0\0" + payload


def line(frame: dict[str, Any]) -> bytes:
    return ws_frame(json.dumps(frame).encode())


class RawWebSocket:
    """Blocking."""

    def __init__(self, port: int, subprotocol: str = JSON, *, source: str = "127.0.0.1", headers: tuple[str, ...] = ()):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5.0, source_address=(source, 0))
        self.socket.sendall(upgrade(subprotocol, "/", *headers))
        self.received = b""
        self.read_until(b"\r\n\r\n")
        self.received = b""

    def read_until(self, mark: bytes) -> None:
        while mark not in self.received:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the gateway has closed it")
            self.received += data

    def log_in(self) -> None:
        self.socket.sendall(line(HELLO))
        self.read_until(b'"welcome"')

    def drain(self) -> None:
        """Take what has come. Raises ConnectionResetError at the end."""
        while select.select([self.socket], [], [], 0)[0]:
            if not self.socket.recv(65536):
                raise ConnectionResetError("the gateway has closed it")

    def close(self) -> None:
        self.socket.close()


class RawQuic:
    """One connection, driven by hand."""

    def __init__(self, port: int, *, source: str = "127.0.0.1") -> None:
        self.address = ("127.0.0.1", port)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((source, 0))
        self.quic = QuicConnection(
            configuration=QuicConfiguration(
                is_client=True, alpn_protocols=[ALPN], verify_mode=0, server_name="localhost"
            )
        )
        self.quic.connect(self.address, now=time.monotonic())
        self.data = b""
        self.is_up = False
        self.end: ConnectionTerminated | None = None

    def step(self, wait: float = 0.0) -> None:
        """Send what there is, take what has come."""
        now = time.monotonic()
        for data, _ in self.quic.datagrams_to_send(now):
            self.socket.sendto(data, self.address)
        while select.select([self.socket], [], [], wait)[0]:
            wait = 0.0
            self.quic.receive_datagram(self.socket.recv(65536), self.address, time.monotonic())
        timer = self.quic.get_timer()
        if timer is not None and time.monotonic() >= timer:
            self.quic.handle_timer(time.monotonic())
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.is_up = True
            elif isinstance(event, StreamDataReceived):
                self.data += event.data
            elif isinstance(event, ConnectionTerminated):
                self.end = event

    def shake_hands(self, seconds: float = 10.0) -> bool:
        give_up = time.monotonic() + seconds
        while not self.is_up and self.end is None and time.monotonic() < give_up:
            self.step(0.02)
        return self.is_up

    def log_in(self, seconds: float = 10.0) -> None:
        self.quic.send_stream_data(0, codec("protobuf").encode(Hello(token="mallory")))
        give_up = time.monotonic() + seconds
        while not self.data and self.end is None and time.monotonic() < give_up:
            self.step(0.02)

    def close(self) -> None:
        self.socket.close()


def initial() -> bytes:
    """The first packet of a handshake that nobody will go on with."""
    quic = QuicConnection(
        configuration=QuicConfiguration(is_client=True, alpn_protocols=[ALPN], verify_mode=0, server_name="localhost")
    )
    quic.connect(("127.0.0.1", 1), now=0.0)
    return bytes(quic.datagrams_to_send(0.0)[0][0])


def noise(connection_id: bytes) -> bytes:
    """A packet for this connection that cannot be decrypted."""
    return bytes([0x40 | random.randrange(64)]) + connection_id + random.randbytes(1200)
