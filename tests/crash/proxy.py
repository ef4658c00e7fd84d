"""A network between one worker and the server that can be cut, held up and made to lose replies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from tests.support.waiting import PATIENCE


class Proxy:
    """Listens on a port of its own and passes everything on, from a thread."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._links: set[asyncio.WriteTransport] = set()
        self._refusing = False
        self._needle = b""
        self.swallowed = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def drop(self) -> None:
        """Break every connection and refuse new ones."""
        self._call(self._drop)

    def hold(self) -> None:
        """Let nothing through, and lose nothing: what was sent meanwhile, and that a connection was closed, arrives
        late."""
        self._call(self._flowing.clear)

    def restore(self) -> None:
        self._call(self._restore)

    def swallow_reply_to(self, text: str) -> None:
        """Pass the next request with this text on, drop its reply and break its connection."""
        self._needle = text.encode()

    def close(self) -> None:
        self._call(self._drop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _call(self, function: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE)

    def _drop(self) -> None:
        self._refusing = True
        self._flowing.set()
        for transport in list(self._links):
            transport.abort()

    def _restore(self) -> None:
        self._refusing = False
        self._flowing.set()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()
        server.close()
        links = asyncio.all_tasks(self._loop)
        for task in links:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*links, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        muted = asyncio.Event()
        ends = (writer.transport, far_writer.transport)
        self._links.update(ends)
        try:
            await asyncio.gather(
                self._requests(reader, far_writer, muted, ends), self._replies(far_reader, writer, muted)
            )
        except asyncio.CancelledError:
            pass  # the proxy is closed
        finally:
            for transport in ends:
                self._links.discard(transport)
                transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        muted: asyncio.Event,
        ends: tuple[asyncio.WriteTransport, ...],
    ) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if self._needle and self._needle in tail + data:
                    self._needle = b""
                    self.swallowed += 1
                    muted.set()
                    for transport in ends:
                        self._loop.call_later(0.1, transport.abort)
                tail = data[-100:]
                writer.write(data)
        await self._flowing.wait()
        writer.transport.abort()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if not muted.is_set():
                    writer.write(data)
        await self._flowing.wait()
        writer.transport.abort()
