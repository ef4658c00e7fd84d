"""Accepts TCP connections: asks who may come, gives each a deadline, and counts those that are there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterable

from veredus.link.transports.base import Doorkeeper

logger = logging.getLogger("veredus.link")
BACKLOG = 1024
ACCEPTS_PER_TURN = 32
RECEIVE_BUFFER = 64 * 1024
"""Bytes that the system keeps of one connection for us: what one read can bring, and so what one turn of the loop has
to look at."""
NO_FILES_PAUSE = 0.5
"""Seconds without accepting, when this process has no file descriptors left."""


class Visit:
    """One TCP connection, from its accept to its end."""

    __slots__ = ("_deadline", "_keeper", "_loop", "hosts", "transport")

    def __init__(self, keeper: Doorkeeper | None, host: str, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self._keeper = keeper
        self._loop = loop
        self.hosts = [host]
        """The addresses that it is counted under; the last one is the client's."""
        self.transport: asyncio.Transport | None = None
        """Set by the protocol when it is connected."""
        self._deadline: asyncio.TimerHandle | None = loop.call_later(deadline, self.give_up)

    @property
    def host(self) -> str:
        return self.hosts[-1]

    def stands_for(self, host: str) -> bool:
        """The connection is a proxy's, and this is its client. False if there are too many from there."""
        if self._keeper is None or not self._keeper.enter(host):
            return False
        self.hosts.append(host)
        return True

    def let_in(self) -> None:
        """It has said what it wants: whoever serves it now has deadlines of its own."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end(self) -> None:
        self.let_in()
        self.transport = None
        hosts, self.hosts = self.hosts, [self.host]
        if self._keeper is not None:
            for host in hosts:
                self._keeper.leave(host)
            self._keeper = None

    def give_up(self) -> None:
        """It took too long: cut it."""
        if self.transport is not None:  # else it is not through TLS: the door itself gives it up
            if self._keeper is not None:
                self._keeper.silent()
            self.transport.abort()


Factory = Callable[[Visit], asyncio.BaseProtocol]
"""Makes the protocol of one connection. It calls `let_in` in time, and `end` when the connection is lost."""


class Door:
    """An open TCP port."""

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        factory: Factory,
        *,
        keeper: Doorkeeper | None,
        tls: ssl.SSLContext | None,
        deadline: float,
    ) -> None:
        """`deadline`: seconds from the accept until the protocol has let the connection in, TLS included."""
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._factory = factory
        self._keeper = keeper
        self._tls = tls
        self._deadline = deadline
        self._coming: set[asyncio.Task[None]] = set()
        for one in self._sockets:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            one.listen(BACKLOG)
            self._loop.add_reader(one.fileno(), self._accept, one)

    def close(self) -> None:
        """Accept nobody any more."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            self._loop.remove_reader(one.fileno())
            one.close()
        for task in self._coming:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until nobody is on the way in."""
        if self._coming:
            await asyncio.wait(self._coming)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                found, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(listening, error)
                return
            host = address[0]
            if self._keeper is not None and not self._keeper.enter(host):
                found.close()
                continue
            task = self._loop.create_task(self._serve(found, host))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _serve(self, found: socket.socket, host: str) -> None:
        visit = Visit(self._keeper, host, self._deadline, self._loop)
        try:
            found.setblocking(False)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._deadline):
                await self._loop.connect_accepted_socket(
                    lambda: self._factory(visit),
                    found,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._deadline if self._tls is not None else None,
                )
        except TimeoutError:
            if self._keeper is not None:
                self._keeper.silent()
            self._gave_up(visit, found)
        except (OSError, asyncio.CancelledError):
            self._gave_up(visit, found)
        except Exception:
            logger.exception("a connection that was accepted cannot be served")
            self._gave_up(visit, found)

    @staticmethod
    def _gave_up(visit: Visit, found: socket.socket) -> None:
        visit.end()
        with contextlib.suppress(OSError):
            found.close()

    def _rest(self, listening: socket.socket, error: OSError) -> None:
        """Nobody can be accepted now: instead of trying in every turn of the loop, wait a little."""
        logger.error("no connection can be accepted for %g s: %s", NO_FILES_PAUSE, error)
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(NO_FILES_PAUSE, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)


async def bind(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets for every address of this host. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, proto)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
