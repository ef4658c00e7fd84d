"""TcpAcceptor: accepts TCP connections within the limits per address, and gives each a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterable

from veredus.link.transports.base import Admission

logger = logging.getLogger("veredus.link")
BACKLOG = 1024
ACCEPTS_PER_TURN = 32
RECEIVE_BUFFER = 64 * 1024
"""Receive buffer of one connection. It limits what one read returns, and so the work in one turn of the loop."""
NO_FILES_PAUSE = 0.5
"""Pause in seconds when this process has no file descriptors left."""


class AcceptedSocket:
    """One TCP connection, from its accept to its end."""

    __slots__ = ("_admission", "_deadline", "_loop", "hosts", "transport")

    def __init__(
        self, admission: Admission | None, host: str, deadline: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._admission = admission
        self._loop = loop
        self.hosts = [host]
        """The addresses under which it is counted; the last one is the client's."""
        self.transport: asyncio.Transport | None = None
        """Set by the protocol in `connection_made`."""
        self._deadline: asyncio.TimerHandle | None = loop.call_later(deadline, self.give_up)

    @property
    def host(self) -> str:
        return self.hosts[-1]

    def count_client(self, host: str) -> bool:
        """Count the client of a proxy's connection. Returns False if that address has too many."""
        if self._admission is None or not self._admission.enter(host):
            return False
        self.hosts.append(host)
        return True

    def admit(self) -> None:
        """Cancel the deadline: the first request is complete, and the protocol has its own deadlines."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end(self) -> None:
        self.admit()
        self.transport = None
        hosts, self.hosts = self.hosts, [self.host]
        if self._admission is not None:
            for host in hosts:
                self._admission.leave(host)
            self._admission = None

    def give_up(self) -> None:
        """Cut a connection that missed its deadline."""
        if self.transport is not None:  # otherwise TLS is not complete, and the acceptor drops it
            if self._admission is not None:
                self._admission.silent()
            self.transport.abort()


Factory = Callable[[AcceptedSocket], asyncio.BaseProtocol]
"""Makes the protocol of one connection, which calls `admit` in time and `end` when the connection is lost."""


class TcpAcceptor:
    """An open TCP port."""

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        factory: Factory,
        *,
        admission: Admission | None,
        tls: ssl.SSLContext | None,
        deadline: float,
    ) -> None:
        """`deadline`: seconds from the accept until the protocol calls `admit`, TLS included."""
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._factory = factory
        self._admission = admission
        self._tls = tls
        self._deadline = deadline
        self._accepting: set[asyncio.Task[None]] = set()
        for one in self._sockets:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            one.listen(BACKLOG)
            self._loop.add_reader(one.fileno(), self._accept, one)

    def close(self) -> None:
        """Stop accepting."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            self._loop.remove_reader(one.fileno())
            one.close()
        for task in self._accepting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the accepts in progress."""
        if self._accepting:
            await asyncio.wait(self._accepting)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                found, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            host = address[0]
            if self._admission is not None and not self._admission.enter(host):
                found.close()
                continue
            task = self._loop.create_task(self._serve(found, host))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _serve(self, found: socket.socket, host: str) -> None:
        accepted = AcceptedSocket(self._admission, host, self._deadline, self._loop)
        try:
            found.setblocking(False)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._deadline):
                await self._loop.connect_accepted_socket(
                    lambda: self._factory(accepted),
                    found,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._deadline if self._tls is not None else None,
                )
        except TimeoutError:
            if self._admission is not None:
                self._admission.silent()
            self._drop(accepted, found)
        except (OSError, asyncio.CancelledError):
            self._drop(accepted, found)
        except Exception:  # one bad connection must not stop the acceptor
            logger.exception("cannot serve an accepted connection")
            self._drop(accepted, found)

    @staticmethod
    def _drop(accepted: AcceptedSocket, found: socket.socket) -> None:
        accepted.end()
        with contextlib.suppress(OSError):
            found.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Pause instead of failing in every turn of the loop."""
        logger.error("cannot accept connections, retrying in %g s: %s", NO_FILES_PAUSE, error)
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(NO_FILES_PAUSE, self._continue, listening)

    def _continue(self, listening: socket.socket) -> None:
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
