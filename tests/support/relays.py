"""Relays before servers: they count round trips, and speak TLS where the servers do not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

CERTIFICATE = Path(__file__).parents[1] / "data" / "tls.crt"
"""For localhost and 127.0.0.1; its own authority."""
KEY = CERTIFICATE.with_suffix(".key")


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


class Relay:
    """Passes bytes on between a port and a server's port.

    A request that comes after an answer begins a new round trip; with a `delay`, requests that were sent one after the
    other without waiting for an answer are one.
    """

    def __init__(self, port: int, target: int, *, tls: ssl.SSLContext | None = None, delay: float = 0.0) -> None:
        self.port = port
        self.trips = 0
        self._target = target
        self._tls = tls
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        answered = asyncio.Event()
        answered.set()

        async def requests() -> None:
            while data := await reader.read(1 << 20):
                if answered.is_set():
                    answered.clear()
                    self.trips += 1
                if self._delay:
                    await asyncio.sleep(self._delay)
                server_writer.write(data)

        async def replies() -> None:
            while data := await server_reader.read(1 << 20):
                answered.set()
                writer.write(data)

        for work, end in ((requests, server_writer), (replies, writer)):
            task = asyncio.create_task(_until_closed(work(), end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _until_closed(work: object, end: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError, ssl.SSLError):
            await work  # type: ignore[misc]
    finally:
        end.close()


@contextlib.asynccontextmanager
async def relayed(
    ports: Mapping[int, int], *, tls: ssl.SSLContext | None = None, delay: float = 0.0
) -> AsyncIterator[list[Relay]]:
    """Relays from ports to the servers' ports."""
    relays = [Relay(port, target, tls=tls, delay=delay) for port, target in ports.items()]
    for relay in relays:
        await relay.start()
    try:
        yield relays
    finally:
        for relay in relays:
            await relay.close()
