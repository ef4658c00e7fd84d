"""Pipe: messages between a worker and a handler's process. Each is a JSON head and bytes; nothing is pickled."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

_SIZES = struct.Struct("!IQ")
Head = dict[str, Any]


def pack(head: Head, body: bytes = b"") -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return _SIZES.pack(len(text), len(body)) + text + body


class Unpacker:
    """Decodes messages from chunks of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Head, bytes]]:
        self._data += data
        while len(self._data) >= _SIZES.size:
            head, body = _SIZES.unpack_from(self._data)
            start, end = _SIZES.size + head, _SIZES.size + head + body
            if len(self._data) < end:
                return
            message = json.loads(self._data[_SIZES.size : start]), bytes(self._data[start:end])
            del self._data[:end]
            yield message


class Pipe:
    """The handler's end. Blocking. Only the process that opened it may use it, not a fork."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """False in a fork of the process that opened it."""
        return os.getpid() == self._pid

    def send(self, head: Head, body: bytes = b"") -> None:
        """Raises OSError if the worker is gone."""
        if not self.is_ours:
            raise BrokenPipeError(f"the connection to the worker belongs to process {self._pid}, not to a fork of it")
        data = pack(head, body)
        with self._writing:
            self._socket.sendall(data)

    def receive(self) -> tuple[Head, bytes]:
        """Raises EOFError if the worker is gone."""
        head, body = _SIZES.unpack(self._read(_SIZES.size))
        return json.loads(self._read(head)), self._read(body)

    def ask(self, head: Head, body: bytes = b"") -> Head:
        """Send and wait for the answer, from any thread of the handler."""
        with self._asking:
            self.send(head, body)
            return self.receive()[0]

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise EOFError
            got += count
        return bytes(data)
