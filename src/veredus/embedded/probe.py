"""A tiny blocking Redis client over a Unix socket: just enough to check a server and to shut it down."""

from __future__ import annotations

import select
import socket
from types import TracebackType

TIMEOUT = 2.0


class ProbeRefused(Exception):
    """The server is alive and answered with an error such as LOADING or BUSY."""


class Probe:
    """One connection. Every method raises OSError if the server is gone or does not answer in time."""

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._reader = self._socket.makefile("rb")

    def ask(self, *words: str) -> str | None:
        """Send one command and return its reply as text. Commands that reply with an array are not supported."""
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)]
        self._socket.sendall(b"".join(parts))
        return self._answer()

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO as a dictionary."""
        lines = (self.ask("INFO", section) or "").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def shut_down(self) -> None:
        """Request a shutdown; returns when the server has closed the connection."""
        try:
            self.ask("SHUTDOWN")
        except ConnectionError:
            return

    def wait_closed(self, seconds: float) -> bool:
        """Sleep that long, or until the server closes the connection (then True)."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return bool(readable) and not self._socket.recv(1)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> str | None:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise ProbeRefused(rest)
        if kind != b"$":
            return rest
        size = int(rest)
        if size < 0:
            return None
        body = self._reader.read(size + 2)
        if len(body) < size + 2:
            raise ConnectionResetError("the server closed the connection")
        return body[:-2].decode()
