"""uvicorn behind our own acceptor, with limits per address, TLS, and deadlines for requests and slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from veredus.link.transports.base import Admission
from veredus.link.transports.tcp_acceptor import AcceptedSocket, TcpAcceptor

_Base: Any = AutoHTTPProtocol


class DeadlineProtocol(_Base):  # type: ignore[misc]
    """One connection. A request must be complete within `timeout` seconds of its first byte (the first request: of the
    accept), and the client must read a response within the same time."""

    def __init__(self, accepted: AcceptedSocket, timeout: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._accepted = accepted
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._complete: Any = None
        """The last complete request, as uvicorn's `cycle`."""

    def connection_made(self, transport: Any) -> None:
        self._accepted.transport = transport
        self._accepted.admit()
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and cycle is not self._complete and not cycle.more_body:
            self._complete = cycle
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = asyncio.get_running_loop().call_later(self._timeout, self._accepted.give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._accepted.end()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer = None
        cycle = self.cycle
        if cycle is None or cycle.more_body or (cycle is self._complete and cycle.response_complete):
            self._accepted.give_up()
        elif cycle is self._complete:  # still answering; bytes of the next request have arrived
            self._start_timer()
        else:
            self._complete = cycle


class DeadlineServer(uvicorn.Server):
    """The gateway handles signals and admits connections, not uvicorn."""

    servers: list[Any] = []  # noqa: RUF012 - set when it starts

    def __init__(
        self, config: uvicorn.Config, *, admission: Admission, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        super().__init__(config)
        self._admission, self._tls, self._timeout = admission, tls, timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [
            TcpAcceptor(sockets or [], self._protocol, admission=self._admission, tls=self._tls, deadline=self._timeout)
        ]
        self.started = True

    def _protocol(self, accepted: AcceptedSocket) -> asyncio.BaseProtocol:
        return DeadlineProtocol(
            accepted,
            self._timeout,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
