"""uvicorn behind our own door: limits per address, TLS, and deadlines for requests and for those who do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from veredus.link.transports.base import Doorkeeper
from veredus.link.transports.door import Door, Visit

_Base: Any = AutoHTTPProtocol


class PatientProtocol(_Base):  # type: ignore[misc]
    """One connection. A request, headers and body, must be complete within `timeout` seconds of its first byte, the
    first one of the accept; a response must be read within as many."""

    def __init__(self, visit: Visit, timeout: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._visit = visit
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._whole: Any = None
        """The last request that has come whole, as uvicorn's `cycle`."""

    def connection_made(self, transport: Any) -> None:
        self._visit.transport = transport
        self._visit.let_in()
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and cycle is not self._whole and not cycle.more_body:
            self._whole = cycle
            self._stop()
        elif self._timer is None:
            self._start()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = asyncio.get_running_loop().call_later(self._timeout, self._visit.give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        self._visit.end()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        cycle = self.cycle
        if cycle is None or cycle.more_body or (cycle is self._whole and cycle.response_complete):
            self._visit.give_up()
        elif cycle is self._whole:  # the one before is being answered, and bytes of the next have come
            self._start()
        else:
            self._whole = cycle


class PatientServer(uvicorn.Server):
    """Signals are the gateway's business, and so is who may connect."""

    servers: list[Any] = []  # noqa: RUF012 - set when it starts

    def __init__(
        self, config: uvicorn.Config, *, keeper: Doorkeeper, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        super().__init__(config)
        self._keeper, self._tls, self._timeout = keeper, tls, timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [Door(sockets or [], self._protocol, keeper=self._keeper, tls=self._tls, deadline=self._timeout)]
        self.started = True

    def _protocol(self, visit: Visit) -> asyncio.BaseProtocol:
        return PatientProtocol(
            visit,
            self._timeout,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
