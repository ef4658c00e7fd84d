"""A small HTTP server for health probes and Prometheus scrapes.

It runs on the event loop that it reports on, so that probes fail while the loop is blocked. It is written by hand
because workers serve metrics with the extra `prometheus` alone: Starlette and uvicorn belong to the extras `dash` and
`gateway`, and uvicorn would add its own signal handlers and lifespan to the worker's process for three GET pages.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from veredus.errors import ConfigError

logger = logging.getLogger("veredus.telemetry")

TEXT = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT = 10.0
"""Seconds for one request."""
MAX_REQUEST = 16_384

Page = Callable[[], Awaitable[tuple[int, str, bytes]]]
"""Returns status, content type and body."""


class ProbeServer:
    """`async with ProbeServer(9090, {"/metrics": page})`. Answers GET and HEAD, one request per connection."""

    def __init__(self, port: int, pages: Mapping[str, Page], *, host: str = "127.0.0.1", shared: bool = False) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
            raise ConfigError("metrics port", port, "a number from 0 to 65535")
        self.port = port
        self._host = host
        self._pages = pages
        self._shared = shared
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ProbeServer:
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self.port, limit=MAX_REQUEST, reuse_port=self._shared or None
            )
        except OSError as exc:
            raise ConfigError("metrics port", self.port, f"a free port on {self._host} ({exc})") from exc
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info("serving metrics and health on http://%s:%d%s", self._host, self.port, " ".join(self._pages))
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has disconnected or does not speak HTTP
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            status, kind, body = 405, "text/plain", b"only GET and HEAD are allowed\n"
        elif page is None:
            status, kind, body = 404, "text/plain", f"not found; there are {' '.join(self._pages)}\n".encode()
        else:
            try:
                status, kind, body = await page()
            except Exception as exc:  # a failed page must not end the server
                logger.warning("%s failed: %s", path, exc)
                status, kind, body = 503, "text/plain", f"{exc}\n".encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)


def verdict(problems: Sequence[str], **more: object) -> tuple[int, str, bytes]:
    """A health page: 200 without problems, else 503 with the problems."""
    body = json.dumps({"status": "bad" if problems else "ok", "problems": list(problems), **more})
    return 503 if problems else 200, "application/json", body.encode() + b"\n"


def host_and_port(text: str) -> tuple[str, int]:
    """Parse `9090` or `0.0.0.0:9090`. Without a host, listen on this machine only."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError("metrics", text, "a port, or host:port, such as 9090 or 0.0.0.0:9090")
    return host.strip("[]") or "127.0.0.1", int(port)
