"""Where one message of the Redis protocol ends and the next begins."""

from __future__ import annotations

from collections.abc import Iterator


class Frames:
    """Cuts a stream of RESP2 into messages, which stay the bytes that they are."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole now."""
        self._data += data
        start = 0
        while (end := _end(self._data, start)) is not None:
            yield bytes(self._data[start:end])
            start = end
        del self._data[:start]


def _end(data: bytearray, start: int) -> int | None:
    """Where the message that begins here ends; None if it is not all there."""
    missing, at = 1, start
    while missing:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        kind, missing = bytes(data[at : at + 1]), missing - 1
        size = int(data[at + 1 : line_end]) if kind in (b"$", b"*") else -1
        at = line_end + 2
        if kind == b"*":
            missing += max(0, size)
        elif kind == b"$" and size >= 0:
            at += size + 2
            if at > len(data):
                return None
    return at


def words(request: bytes) -> list[bytes]:
    """The arguments of a request, which is an array of strings."""
    found, at = [], request.index(b"\r\n") + 2
    while at < len(request):
        line_end = request.index(b"\r\n", at)
        size = int(request[at + 1 : line_end])
        found.append(request[line_end + 2 : line_end + 2 + size])
        at = line_end + 4 + size
    return found
