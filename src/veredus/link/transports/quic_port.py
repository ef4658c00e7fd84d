"""QuicPort: the server's UDP port, which many QUIC connections share."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import Any, cast

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic import events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.packet import QuicPacketType, encode_quic_version_negotiation, pull_quic_header

from veredus.link.transports.base import AcceptGate, Admission, HandlerFactory
from veredus.link.transports.quic_library import ResettableConnection
from veredus.link.transports.quic_reset import reset_packet, reset_token
from veredus.link.transports.quic_retry import Retries
from veredus.link.transports.quic_transport import Address, QuicTransport
from veredus.model.bucket import Bucket

CID_LENGTH = 8
RESETS_PER_SECOND = 50
DATAGRAM_COST = 0.0001
"""Seconds of work that one datagram may cost. A datagram that costs more counts as several."""
TURN = 0.003
"""Seconds of work on datagrams in one turn of the loop; the rest waits for the next turn."""
MAX_WAITING = 256
"""Datagrams that may wait; more are dropped."""


class _ServedTransport(QuicTransport):
    """A server's connection. It registers its connection ids with the port."""

    def __init__(self, port: QuicPort, host: str, names: set[bytes], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.names = names
        self.counted_host = host
        """The address at the start, under which it is counted; the client may have moved since."""
        self._port = port
        self._allowed = Bucket(port.datagram_rate, max(port.datagram_rate / 2, 50.0), self._loop.time())
        port.connections.update(dict.fromkeys(names, self))
        port.handshaking.add(self)

    def is_flooding(self) -> bool:
        """Whether it exceeds its limit: the datagram rate plus one datagram for each that it was sent."""
        return self._allowed.take(self._loop.time()) > 0

    def worked(self, seconds: float) -> None:
        """Charge the time that its last datagram took."""
        self._allowed.give(1.0 - max(1.0, min(10.0, seconds / DATAGRAM_COST)))

    def _sent(self, datagrams: int) -> None:
        self._allowed.give(datagrams)

    def _handshaken(self) -> None:
        self._port.handshaking.discard(self)

    def _lingers(self) -> bool:
        return not self._port.stopped

    def _renamed(self, event: events.ConnectionIdIssued | events.ConnectionIdRetired) -> None:
        if isinstance(event, events.ConnectionIdIssued):
            self.names.add(event.connection_id)
            self._port.connections[event.connection_id] = self
        else:
            self.names.discard(event.connection_id)
            self._port.connections.pop(event.connection_id, None)


class QuicPort(asyncio.DatagramProtocol):
    """Finds the connection of a datagram by id, not by address, because a client may move."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        handler_factory: HandlerFactory,
        *,
        accept: AcceptGate | None,
        admission: Admission | None,
        handshake_timeout: float,
        retry_above: int,
        datagram_rate: float,
        reset_key: bytes,
    ) -> None:
        self.connections: dict[bytes, _ServedTransport] = {}
        self.handshaking: set[_ServedTransport] = set()
        self.datagram_rate = datagram_rate
        self._admission = admission
        self._retry_above = retry_above
        self._retries = Retries()
        self._configuration = configuration
        self._handler_factory = handler_factory
        self._accept = accept
        self._handshake_timeout = handshake_timeout
        self._reset_key = reset_key
        self._resets = (0, 0)  # a second, and the number of resets in it
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._turn, self._work = 0.0, 0.0  # the loop's time of this turn, and the seconds of work in it
        self._transport: asyncio.DatagramTransport | None = None
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Address) -> None:
        now = self._loop.time()
        if now != self._turn and not self._waiting:  # some loops read several datagrams in one turn
            self._turn, self._work = now, 0.0
        if self._waiting or self._work >= TURN:
            self._wait(data, address)
        else:
            self._process(data, address)

    def _wait(self, data: bytes, address: Address) -> None:
        if len(self._waiting) >= MAX_WAITING:
            if self._admission is not None:
                self._admission.dropped()
            return
        if not self._waiting:
            self._loop.call_soon(self._continue)
        self._waiting.append((data, address))

    def _continue(self) -> None:
        self._work = 0.0
        while self._waiting and self._work < TURN:
            self._process(*self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._continue)

    def _process(self, data: bytes, address: Address) -> None:
        began = time.thread_time()
        connection = self._take(data, address)
        took = time.thread_time() - began
        self._work += took
        if connection is not None:
            connection.worked(took)

    def _take(self, data: bytes, address: Address) -> _ServedTransport | None:
        """Deliver a datagram. Returns its connection, unless it was dropped."""
        if len(data) > CID_LENGTH and not data[0] & 0x80:  # a short header: the id follows the first byte
            connection = self.connections.get(data[1 : 1 + CID_LENGTH])
            if connection is not None:
                return self._deliver(connection, data, address)
            self._reset(data, address)
            return None
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=CID_LENGTH)
        except ValueError:
            return None
        known = self.connections.get(header.destination_cid)
        if known is None:
            known = self._new(header, data, address)
        return None if known is None else self._deliver(known, data, address)

    def _deliver(self, connection: _ServedTransport, data: bytes, address: Address) -> _ServedTransport | None:
        if not connection.is_flooding():
            connection.datagram(data, address)
            return connection
        if self._admission is not None:
            self._admission.dropped()
        return None

    def error_received(self, exc: Exception) -> None:
        """A client's port is closed. Its missing heartbeat ends the connection."""

    def stop(self) -> None:
        """Accept no new connections, and end those that linger or are not open yet. The port closes with the last open
        connection."""
        self.stopped = True
        for connection in set(self.connections.values()):
            if connection.ended or not connection.opened:
                connection.abort()
        self._close_if_done()

    def _new(self, header: Any, data: bytes, address: Address) -> _ServedTransport | None:
        if self.stopped or len(data) < SMALLEST_MAX_DATAGRAM_SIZE:
            return None
        if header.version is not None and header.version not in self._configuration.supported_versions:
            if header.packet_type != QuicPacketType.VERSION_NEGOTIATION:
                self._send(
                    encode_quic_version_negotiation(
                        source_cid=header.destination_cid,
                        destination_cid=header.source_cid,
                        supported_versions=self._configuration.supported_versions,
                    ),
                    address,
                )
            return None
        if header.packet_type != QuicPacketType.INITIAL:
            return None
        now = asyncio.get_running_loop().time()
        original = self._retries.original_id(header, address, now) if header.token else None
        if original is None and (header.token or len(self.handshaking) >= self._retry_above):
            if not header.token:
                self._send(self._retries.packet(header, address, now), address)
            return None
        if not self._admits(address):
            return None  # QUIC clients retry by themselves, with a growing pause
        quic = ResettableConnection(
            reset_token=functools.partial(reset_token, self._reset_key),
            configuration=self._configuration,
            original_destination_connection_id=original or header.destination_cid,
            retry_source_connection_id=None if original is None else header.destination_cid,
        )
        return _ServedTransport(
            self,
            str(address[0]),
            {header.destination_cid, quic.host_cid},
            quic,
            self._handler_factory,
            self._send,
            self._forget,
            handshake_timeout=self._handshake_timeout,
        )

    def _admits(self, address: Address) -> bool:
        host = str(address[0])
        if self._admission is not None and not self._admission.enter(host):
            return False
        if self._accept is not None and self._accept(f"{host}:{address[1]}"):
            if self._admission is not None:
                self._admission.leave(host)
            return False
        return True

    def _send(self, data: bytes, address: Address) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, address)

    def _reset(self, data: bytes, address: Address) -> None:
        second = int(asyncio.get_running_loop().time())
        count = self._resets[1] if self._resets[0] == second else 0
        packet = reset_packet(self._reset_key, data[1 : 1 + CID_LENGTH], len(data))
        if packet is not None and count < RESETS_PER_SECOND:
            self._resets = second, count + 1
            self._send(packet, address)

    def _forget(self, connection: QuicTransport) -> None:
        if not isinstance(connection, _ServedTransport):
            raise TypeError(f"not a connection of this port: {connection!r}")
        for name in connection.names:
            self.connections.pop(name, None)
        if connection in self.handshaking:
            self.handshaking.discard(connection)
            if self._admission is not None:
                self._admission.silent()
        if self._admission is not None:
            self._admission.leave(connection.counted_host)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.stopped and not self.connections and self._transport is not None:
            self._transport.close()
