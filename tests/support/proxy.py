"""A proxy before a server that can lose requests or replies, as a network does."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes on. Its connections break when told to; the server never notices anything but a closed socket."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._folder = tempfile.mkdtemp(prefix="vp-", dir="/tmp")
        self.socket = f"{self._folder}/s"
        self.url = f"unix://{self.socket}"
        self.connections = 0
        self.lose_request = 0
        """Break the connection instead of passing on the next so many requests that contain `marker`."""
        self.lose_reply = 0
        """Pass the next so many such requests on, and break the connection instead of giving their reply back."""
        self.pass_on = 0
        """So many bytes of a reply that is lost arrive."""
        self.may_break = asyncio.Event()
        """Cleared by a test to keep a connection whose reply is lost open and silent, until it is set again."""
        self.may_break.set()
        self.rate = 0
        """Bytes that pass in a second, each way; 0 for all there are."""
        self.delay = 0.0
        """Seconds for which requests that contain `marker` are held up, each on its own connection."""
        self.marker = b"EVAL"
        self.instead: dict[bytes, bytes] = {}
        """What stands in replies, and what to say instead; as long as that."""
        self._doomed: set[asyncio.StreamWriter] = set()
        self._open: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        """Every connection that was made, and the one to the server behind it."""
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._forgets_requests = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.socket)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ends in self._open.items():
            for writer in ends:
                writer.transport.abort()
        shutil.rmtree(self._folder)  # from Python 3.13 on, the server has removed its socket itself

    def forget(self, *, replies_only: bool = False) -> None:
        """What is sent on the present connections vanishes from now on, without an error, as behind a NAT that has
        forgotten them; with `replies_only` what the server sends."""
        self._forgotten |= self._open.keys()
        self._forgets_requests = not replies_only

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        self._open[writer] = server_writer
        for task in (
            asyncio.create_task(self._requests(reader, writer, server_writer)),
            asyncio.create_task(self._replies(server_reader, writer)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 20):
            if writer in self._forgotten and self._forgets_requests:
                continue
            if self.marker in data:
                if self.lose_request:
                    self.lose_request -= 1
                    writer.transport.abort()
                    break
                if self.lose_reply:
                    self.lose_reply -= 1
                    self._doomed.add(writer)
                await asyncio.sleep(self.delay)
            await self._pass(data, server)
        server.close()

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        part = max(4096, self.rate // 20) if self.rate else len(data)
        for first in range(0, len(data), part):
            if self.rate:
                await asyncio.sleep(part / self.rate)
            writer.write(data[first : first + part])
            await writer.drain()

    async def _replies(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await server.read(1 << 20):
            if writer in self._forgotten:
                continue
            if writer in self._doomed:
                await self.may_break.wait()
                if self.pass_on:
                    writer.write(data[: self.pass_on])
                    await writer.drain()
                    writer.close()
                else:
                    writer.transport.abort()
                return
            for said, instead in self.instead.items():
                assert len(said) == len(instead)
                data = data.replace(said, instead)
            await self._pass(data, writer)
        writer.close()


@asynccontextmanager
async def proxy_before(socket: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(socket)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
