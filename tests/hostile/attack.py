"""`python -m tests.hostile.attack KIND WS QUIC HTTP SECONDS`: one hostile client at full speed.

It comes back when it is thrown out, and prints how often that was."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable

from tests.hostile.raw import (
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawQuic,
    RawWebSocket,
    initial,
    line,
    noise,
    upgrade,
    ws_frame,
)
from veredus.model.frames import Ack, Join
from veredus.wire.frames import codec

SOURCE = "127.0.0.2"
"""Its address: the limits per address are its own."""
CHUNK = 64 * 1024
_unknown = b"\x06\x82\x08\x03abc"  # type 128, which only newer versions know

WEBSOCKET: dict[str, bytes] = {
    "unknown frames": ws_frame(b'{"t":"x-noise"}\n' * 1000),
    "large unknown frames": ws_frame(b'{"t":"x-noise","v":"' + b"v" * 60_000 + b'"}'),
    "blank lines": ws_frame(b"\n" * 1000),
    "empty messages": ws_frame(b""),
    "fragments": ws_frame(b"", TEXT, fin=False) + ws_frame(b"", CONTINUATION, fin=False) * 1000,
    "pings": ws_frame(b"p" * 100, PING),
    "websocket pongs": ws_frame(b"", PONG),
    "acks": line({"t": "ack", "seq": 0}),
    "pongs": line({"t": "pong", "echo": 1}),
    "joins": line({"t": "join", "group": "g"}),
    "leaves": line({"t": "leave", "group": "g"}),
    "requests": line({"t": "request", "rid": 1, "action": "none"}),
    "cancels": line({"t": "cancel", "rid": 1}),
    "auths": line({"t": "auth", "token": "mallory"}),
    "many requests in a message": ws_frame(b'{"t":"request","rid":1,"action":"ech"}\n' * 900),
    "large requests": line({"t": "request", "rid": 1, "action": "none", "body": "v" * 60_000}),
    "requests that run": line({"t": "request", "rid": 1, "action": "echo", "body": {"text": "x"}}),
    "messages in fragments": ws_frame(b'{"t":"ack",', TEXT, fin=False) + ws_frame(b'"seq":0}', CONTINUATION),
    "compressed messages": bytes([0x80 | 0x40 | TEXT, 0x80 | 10]) + b"\0" * 14,
}
QUIC: dict[str, bytes] = {
    "unknown frames": _unknown * 100,
    "acks": codec("protobuf").encode(Ack(0)) * 100,
    "joins": codec("protobuf").encode(Join("g")) * 20,
}


def websocket(payload: bytes, port: int, logged_in: bool, until: float, *, reads: bool = True) -> int:
    ended = 0
    chunk = payload * max(1, CHUNK // len(payload))
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            client = RawWebSocket(port, source=SOURCE)
            try:
                if logged_in:
                    client.log_in()
                client.socket.settimeout(0.2)
                while time.monotonic() < until:
                    with contextlib.suppress(TimeoutError):
                        client.socket.sendall(chunk)
                    if reads:
                        client.drain()
            finally:
                client.close()
                ended += 1
    return ended


def tiny_segments(port: int, logged_in: bool, until: float) -> int:
    """A frame in as many packets as it has bytes, again and again."""
    ended = 0
    frame = line({"t": "ack", "seq": 0})
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            client = RawWebSocket(port, source=SOURCE)
            try:
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if logged_in:
                    client.log_in()
                while time.monotonic() < until:
                    for byte in frame:
                        client.socket.send(bytes([byte]))
                    client.drain()
            finally:
                client.close()
                ended += 1
    return ended


def logins(port: int, until: float) -> int:
    """Hello, gone, again."""
    count = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            client = RawWebSocket(port, source=SOURCE)
            with contextlib.suppress(OSError):
                client.log_in()
            client.close()
        count += 1
    return count


def crowd(port: int, first: bytes, drop: bytes, until: float) -> int:
    """Many sockets that stay, each of which says a byte now and then."""
    sockets: list[socket.socket] = []
    while time.monotonic() < until:
        if len(sockets) < 300:
            with contextlib.suppress(OSError):
                sockets.append(socket.create_connection(("127.0.0.1", port), 2, (SOURCE, 0)))
                sockets[-1].sendall(first)
        for one in sockets[:]:
            try:
                one.send(drop)
            except OSError:
                sockets.remove(one)
        time.sleep(0.001)
    return len(sockets)


def quic_logins(port: int, until: float) -> int:
    """Handshake, hello, gone without a word, again."""
    count = 0
    while time.monotonic() < until:
        client = RawQuic(port, source=SOURCE)
        if client.shake_hands(0.5):
            client.log_in(0.5)
        client.close()
        count += 1
    return count


def quic_streams(port: int, resets: bool, until: float) -> int:
    """New streams, or resets of the one there is."""
    ended = 0
    while time.monotonic() < until:
        client = RawQuic(port, source=SOURCE)
        try:
            if client.shake_hands(2.0):
                client.log_in(2.0)
                while time.monotonic() < until and client.end is None:
                    with contextlib.suppress(Exception):  # aioquic has its own opinion of a stream that was reset
                        for stream in range(0, 400, 4):
                            if resets:
                                client.quic.reset_stream(stream, 1)
                            else:
                                client.quic.send_stream_data(stream, b"x")
                    client.step()
        finally:
            client.close()
            ended += 1
    return ended


def quic_stream(payload: bytes, port: int, logged_in: bool, until: float) -> int:
    ended = 0
    while time.monotonic() < until:
        client = RawQuic(port, source=SOURCE)
        try:
            if client.shake_hands(2.0):
                if logged_in:
                    client.log_in(2.0)
                while time.monotonic() < until and client.end is None:
                    client.quic.send_stream_data(0, payload)
                    client.step()
        finally:
            client.close()
            ended += 1
    return ended


def quic_noise(port: int, until: float) -> int:
    """Packets for a connection that is open, none of which can be read."""
    client = RawQuic(port, source=SOURCE)
    client.shake_hands()
    client.log_in()
    packets = [noise(client.quic._peer_cid.cid) for _ in range(100)]
    sent = 0
    while time.monotonic() < until:
        for packet in packets:
            with contextlib.suppress(OSError):
                client.socket.sendto(packet, client.address)
        sent += 1
    client.close()
    return sent


def initials(port: int, until: float) -> int:
    packets = [initial() for _ in range(100)]
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((SOURCE, 0))
        while time.monotonic() < until:
            for packet in packets:
                changed = bytearray(packet)
                changed[6:14] = (sent * 1000 + packets.index(packet)).to_bytes(8)  # another connection each
                with contextlib.suppress(OSError):
                    udp.sendto(changed, ("127.0.0.1", port))
            packets = [initial() for _ in range(20)] + packets[:80]
            sent += 1
    return sent


def connections(port: int, first: bytes, until: float) -> int:
    """Open, say something, close, again."""
    count = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind((SOURCE, 0))
            one.settimeout(2.0)
            one.connect(("127.0.0.1", port))
            one.sendall(first)
        count += 1
    return count


def http(port: int, until: float) -> int:
    """Requests as fast as they are answered, over one connection, half of them wrong."""
    request = (
        b"POST /push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    ) * 50
    ended = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, (SOURCE, 0)) as one:
            one.settimeout(2.0)
            while time.monotonic() < until:
                one.sendall(request)
                if not one.recv(1 << 20):
                    break
        ended += 1
    return ended


def http_body(port: int, until: float) -> int:
    """Bodies of many megabytes."""
    head = (
        b"POST /push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
    )
    ended = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, (SOURCE, 0)) as one:
            one.settimeout(2.0)
            one.sendall(head)
            while time.monotonic() < until:
                one.sendall(b"[" * CHUNK)
        ended += 1
    return ended


def busy(until: float) -> int:
    """The control: as busy, and harmless."""
    count = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((SOURCE, 0))
        here = udp.getsockname()
        while time.monotonic() < until:
            udp.sendto(b"x" * 1000, here)
            udp.recv(1000)
            count += 1
    return count


Attack = Callable[[int, int, int, float], int]


def _ws(payload: bytes, logged_in: bool, reads: bool = True) -> Attack:
    return lambda ws, quic, web, until: websocket(payload, ws, logged_in, until, reads=reads)


def _quic(payload: bytes, logged_in: bool) -> Attack:
    return lambda ws, quic, web, until: quic_stream(payload, quic, logged_in, until)


ATTACKS: dict[str, Attack] = {"control": lambda ws, quic, web, until: busy(until)}
for _name, _payload in WEBSOCKET.items():
    ATTACKS[f"ws {_name} before login"] = _ws(_payload, False)
    ATTACKS[f"ws {_name} after login"] = _ws(_payload, True)
for _name, _payload in QUIC.items():
    ATTACKS[f"quic {_name} before login"] = _quic(_payload, False)
    ATTACKS[f"quic {_name} after login"] = _quic(_payload, True)
ATTACKS |= {
    "ws joins after login, nothing read": _ws(WEBSOCKET["joins"], True, False),
    "quic packets of noise": lambda ws, quic, web, until: quic_noise(quic, until),
    "quic initials": lambda ws, quic, web, until: initials(quic, until),
    "ws connections": lambda ws, quic, web, until: connections(ws, upgrade(), until),
    "tcp connections": lambda ws, quic, web, until: connections(ws, b"G", until),
    "http requests": lambda ws, quic, web, until: http(web, until),
    "ws tiny segments before login": lambda ws, quic, web, until: tiny_segments(ws, False, until),
    "ws tiny segments after login": lambda ws, quic, web, until: tiny_segments(ws, True, until),
    "ws logins": lambda ws, quic, web, until: logins(ws, until),
    "ws many slow writers": lambda ws, quic, web, until: crowd(ws, upgrade(), b"\x81", until),
    "ws many half-sent upgrades": lambda ws, quic, web, until: crowd(ws, upgrade()[:-4], b"x", until),
    "quic logins": lambda ws, quic, web, until: quic_logins(quic, until),
    "quic streams": lambda ws, quic, web, until: quic_streams(quic, False, until),
    "quic resets": lambda ws, quic, web, until: quic_streams(quic, True, until),
    "http many half-sent requests": lambda ws, quic, web, until: crowd(
        web, b"POST /push HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX: ", b"x", until
    ),
    "http bodies": lambda ws, quic, web, until: http_body(web, until),
}


if __name__ == "__main__":
    _ports = [int(port) for port in sys.argv[2:5]]
    print(ATTACKS[sys.argv[1]](_ports[0], _ports[1], _ports[2], time.monotonic() + float(sys.argv[5])))
