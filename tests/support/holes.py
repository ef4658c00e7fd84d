"""A black hole in a network: for a while nothing passes, in either direction, and no connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path


class Hole:
    """A relay from a port, or a unix socket, to another. While it is open, bytes are kept and pass at its end, as TCP
    would send them again; or, `swallows`, they are lost, and connections of that time carry nothing ever again."""

    def __init__(self, target: int | str, socket: Path | None = None) -> None:
        self._target = target
        self._socket = socket
        self.port = 0
        self._server: asyncio.Server | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallows = False
        self.kept: list[bytes] = []
        """What waits for the end of the hole."""

    async def start(self) -> None:
        if self._socket is not None:
            self._server = await asyncio.start_unix_server(self._accept, str(self._socket))
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._open:
            writer.transport.abort()

    def open(self, *, swallows: bool) -> None:
        self._swallows = swallows
        if swallows:
            self._dead |= self._open
        self._passing.clear()

    def end(self) -> None:
        self._swallows = False
        self.kept.clear()
        self._passing.set()

    @property
    def is_open(self) -> bool:
        return not self._passing.is_set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._relay(reader, writer))

    def _start(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        if self._swallows:
            self._dead.add(writer)
        await self._passing.wait()
        try:
            if isinstance(self._target, int):
                there, out = await asyncio.open_connection("127.0.0.1", self._target)
            else:
                there, out = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            self._open.discard(writer)
            return
        self._open.add(out)
        if writer in self._dead:
            self._dead.add(out)
        self._start(self._pass(reader, out))
        self._start(self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_open and not self._swallows:
                    self.kept.append(data)
                await self._passing.wait()
                if writer not in self._dead:
                    writer.write(data)
                    await writer.drain()
        await self._passing.wait()
        self._open.discard(writer)
        writer.close()
