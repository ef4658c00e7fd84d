"""Small tools for tests of links: entries, a server link that is open, frames read back."""

from __future__ import annotations

from typing import Any

from veredus.link.session import LinkConfig, LogEntry, ServerLink
from veredus.model.delivery import Cursor
from veredus.model.frames import Frame, Hello, Message, Welcome
from veredus.wire.frames import codec, encode_stored

PROTOBUF = codec("protobuf")
EPOCH = "e1"
START = Cursor(EPOCH, 0, 0)


def tail(text: str = "x", size: int = 0) -> bytes:
    return encode_stored(Message(type=text, body=b"1" * size))


def entry(seq: int, *, ts: int = 0, expiry: int = 0, size: int = 0) -> LogEntry:
    return LogEntry(seq, ts or 1000 + seq, expiry, tail(f"m{seq}", size))


def entries(first: int, last: int, **more: int) -> list[LogEntry]:
    return [entry(seq, **more) for seq in range(first, last + 1)]


def sent(*frames: Frame) -> bytes:
    """What the other end would have sent."""
    return b"".join(PROTOBUF.encode(frame) for frame in frames)


def drain(link: Any) -> list[Frame]:
    """Everything that a link has to send, read back."""
    frames: list[Frame] = []
    decoder = PROTOBUF.decoder(2**21)
    while link.has_output:
        for chunk in link.take_output():
            frames += decoder.feed(chunk)
    decoder.end_of_message()
    return frames


def seqs(frames: list[Frame]) -> list[int]:
    return [frame.seq for frame in frames if isinstance(frame, Message)]


def open_server(
    config: LinkConfig | None = None, *, hello: Hello | None = None, cursor: Cursor = START, top: int = 0
) -> ServerLink:
    """A server link at time 0 that has welcomed its client; its output is empty."""
    link = ServerLink("protobuf", config or LinkConfig(), 0.0)
    link.receive(sent(hello or Hello()), 0.0)
    link.welcome(Welcome("p001-s", "secret", "new", cursor=cursor, top=top), (), 0.0)
    drain(link)
    return link
