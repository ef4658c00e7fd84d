"""QUIC by aioquic, both ends: one UDP port for many connections, and a client's own port."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic import events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, encode_quic_version_negotiation, pull_quic_header
from aioquic.tls import load_pem_private_key, load_pem_x509_certificates

from veredus import forks
from veredus.errors import ConfigError
from veredus.link.transports.base import AcceptGate, Doorkeeper, Handler, HandlerFactory, Listener, Transport
from veredus.link.transports.certificate import make_local_certificate
from veredus.link.transports.quic_library import ResettableConnection
from veredus.link.transports.quic_reset import reset_key_for, reset_packet, reset_token
from veredus.link.transports.quic_retry import Retries
from veredus.link.transports.quic_transport import Address, QuicTransport
from veredus.model.bucket import Bucket
from veredus.model.frames import ALPN, MAX_BATCH, MAX_FRAME_FROM_SERVER
from veredus.model.hosts import is_loopback

IDLE_TIMEOUT = 75.0  # more than two heartbeats with their pongs
KEEPALIVE = 5.0
RESETS_PER_SECOND = 50
RETRY_ABOVE = 100
DATAGRAM_RATE = 2000.0
DATAGRAM_COST = 0.0001
"""Seconds of work that a datagram may take; one that takes more counts as several."""
TURN = 0.003
"""Seconds of work on datagrams in one turn of the loop; the rest waits for the next ones."""
WAITING = 256
"""Datagrams that wait; more are dropped."""
LOOPBACK_DATAGRAM = 1452  # bytes; elsewhere the 1200 that every path carries
_CID = 8
logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic tells of every fault of a client


class _ServedTransport(QuicTransport):
    """A connection of the port: it tells the port under which ids its datagrams come."""

    def __init__(self, port: _Port, host: str, names: set[bytes], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.names = names
        self.counted_host = host
        """Where it came from; it may have moved since."""
        self._port = port
        self._allowed = Bucket(port.datagram_rate, max(port.datagram_rate / 2, 50.0), self._loop.time())
        port.connections.update(dict.fromkeys(names, self))
        port.handshaking.add(self)

    def floods(self) -> bool:
        """Whether it sends more datagrams than it may: as many as it is sent, and so many per second."""
        return self._allowed.take(self._loop.time()) > 0

    def worked(self, seconds: float) -> None:
        """So long it took to look at its last datagram."""
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


class _Port(asyncio.DatagramProtocol):
    """The server's UDP port. Datagrams find their connection by id, not by address: a client may move."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        handler_factory: HandlerFactory,
        *,
        accept: AcceptGate | None,
        keeper: Doorkeeper | None,
        handshake_timeout: float,
        retry_above: int,
        datagram_rate: float,
        reset_key: bytes,
    ) -> None:
        self.connections: dict[bytes, _ServedTransport] = {}
        self.handshaking: set[_ServedTransport] = set()
        self.datagram_rate = datagram_rate
        self._keeper = keeper
        self._retry_above = retry_above
        self._retries = Retries()
        self._configuration = configuration
        self._handler_factory = handler_factory
        self._accept = accept
        self._handshake_timeout = handshake_timeout
        self._reset_key = reset_key
        self._resets = (0, 0)  # second, how many in it
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._turn, self._worked = 0.0, 0.0  # the loop's time in this turn, seconds of work in it
        self._transport: asyncio.DatagramTransport | None = None
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Address) -> None:
        now = self._loop.time()
        if now != self._turn and not self._waiting:  # some loops read many in one turn, and ask their clock once
            self._turn, self._worked = now, 0.0
        if self._waiting or self._worked >= TURN:
            self._wait(data, address)
        else:
            self._look(data, address)

    def _wait(self, data: bytes, address: Address) -> None:
        if len(self._waiting) >= WAITING:
            if self._keeper is not None:
                self._keeper.dropped()
            return
        if not self._waiting:
            self._loop.call_soon(self._go_on)
        self._waiting.append((data, address))

    def _go_on(self) -> None:
        self._worked = 0.0
        while self._waiting and self._worked < TURN:
            self._look(*self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._go_on)

    def _look(self, data: bytes, address: Address) -> None:
        began = time.thread_time()
        connection = self._take(data, address)
        took = time.thread_time() - began
        self._worked += took
        if connection is not None:
            connection.worked(took)

    def _take(self, data: bytes, address: Address) -> _ServedTransport | None:
        """The connection that it was for, if it was looked at."""
        if len(data) > _CID and not data[0] & 0x80:  # a short header: the id follows the first byte
            connection = self.connections.get(data[1 : 1 + _CID])
            if connection is not None:
                return self._deliver(connection, data, address)
            self._reset(data, address)
            return None
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=_CID)
        except ValueError:
            return None
        known = self.connections.get(header.destination_cid)
        if known is None:
            known = self._new(header, data, address)
        return None if known is None else self._deliver(known, data, address)

    def _deliver(self, connection: _ServedTransport, data: bytes, address: Address) -> _ServedTransport | None:
        if not connection.floods():
            connection.datagram(data, address)
            return connection
        if self._keeper is not None:
            self._keeper.dropped()
        return None

    def error_received(self, exc: Exception) -> None:
        """A client's port is closed: its heartbeat will tell."""

    def stop(self) -> None:
        """Take no new connections. The port is closed when the last one has ended; what lingers, or is not open yet, is
        forgotten now."""
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
            return None  # the client tries again by itself, ever more slowly
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
        if self._keeper is not None and not self._keeper.enter(host):
            return False
        if self._accept is not None and self._accept(f"{host}:{address[1]}"):
            if self._keeper is not None:
                self._keeper.leave(host)
            return False
        return True

    def _send(self, data: bytes, address: Address) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, address)

    def _reset(self, data: bytes, address: Address) -> None:
        second = int(asyncio.get_running_loop().time())
        count = self._resets[1] if self._resets[0] == second else 0
        packet = reset_packet(self._reset_key, data[1 : 1 + _CID], len(data))
        if packet is not None and count < RESETS_PER_SECOND:
            self._resets = second, count + 1
            self._send(packet, address)

    def _forget(self, connection: QuicTransport) -> None:
        assert isinstance(connection, _ServedTransport)
        for name in connection.names:
            self.connections.pop(name, None)
        if connection in self.handshaking:
            self.handshaking.discard(connection)
            if self._keeper is not None:
                self._keeper.silent()
        if self._keeper is not None:
            self._keeper.leave(connection.counted_host)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.stopped and not self.connections and self._transport is not None:
            self._transport.close()


class QuicListener:
    """An open port. `certificate` is the PEM text that clients can be told to trust."""

    def __init__(self, port: _Port, address: tuple[str, int], certificate: bytes, sha256: bytes) -> None:
        self._port = port
        self.address = address
        self.certificate = certificate
        self.sha256 = sha256

    async def close(self) -> None:
        self._port.stop()


async def listen_quic(
    host: str,
    port: int,
    handler_factory: HandlerFactory,
    *,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    idle_timeout: float = IDLE_TIMEOUT,
    accept: AcceptGate | None = None,
    keeper: Doorkeeper | None = None,
    handshake_timeout: float = 5.0,
    retry_above: int = RETRY_ABOVE,
    datagram_rate: float = DATAGRAM_RATE,
    max_datagram: int | None = None,
    reset_key: bytes | None = None,
) -> Listener:
    """Listen. Without a certificate one for local use is made on the fly, on loopback only.

    `max_datagram`: bytes of payload that the path to the clients carries (None: 1200, or 1452 on loopback).
    `retry_above`: so many unfinished handshakes, and new clients must first show that they have their address.
    `datagram_rate`: datagrams per second that one connection may send beside as many as it is sent; others are dropped.
    `reset_key`: the same over restarts, to tell clients of a dead process at once; None takes it from `key`.
    """
    if certificate is None and not is_loopback(host):
        raise ConfigError("certificate", None, f"paths of a certificate and its key to listen on {host}")
    if (certificate is None) != (key is None):
        raise ConfigError("key", key, "a path, together with the certificate")
    if certificate is None:
        pem, key_pem, sha256 = make_local_certificate()
    else:
        pem, key_pem, sha256 = _read(certificate), _read(key or ""), b""
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        connection_id_length=_CID,
        idle_timeout=idle_timeout,
        max_data=2 * MAX_BATCH,
        max_stream_data=MAX_BATCH,
        max_datagram_size=max_datagram or (LOOPBACK_DATAGRAM if is_loopback(host) else SMALLEST_MAX_DATAGRAM_SIZE),
    )
    try:
        chain = load_pem_x509_certificates(pem)
        configuration.certificate, configuration.certificate_chain = chain[0], chain[1:]
        configuration.private_key = load_pem_private_key(key_pem)
        if chain[0].public_key() != configuration.private_key.public_key():
            raise ValueError("the key is another one's")
    except (ValueError, IndexError, TypeError) as error:
        raise ConfigError("certificate", str(certificate), f"PEM files that belong together ({error})") from error
    protocol = _Port(
        configuration,
        handler_factory,
        accept=accept,
        keeper=keeper,
        handshake_timeout=handshake_timeout,
        retry_above=retry_above,
        datagram_rate=datagram_rate,
        reset_key=reset_key or reset_key_for(None if certificate is None else key_pem),
    )
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, local_addr=(host, port))
    _widen(transport)
    name = transport.get_extra_info("sockname")
    return QuicListener(protocol, (name[0], name[1]), pem, sha256)


class _Line(asyncio.DatagramProtocol):
    """A client's UDP port, connected: a closed port at the other end is noticed at once."""

    def __init__(self) -> None:
        self.connection: QuicTransport | None = None
        self.transport: asyncio.DatagramTransport | None = None
        self.address: Address = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        self.address = transport.get_extra_info("peername")
        forks.hold(self)

    def forked(self) -> None:
        """In a fork: the socket is the parent's."""
        if self.transport is not None and not self.transport.is_closing():
            forks.cut(self.transport)
        forks.leave(self.transport, self.connection)
        self.transport = self.connection = None

    def datagram_received(self, data: bytes, address: Address) -> None:
        if self.connection is not None:
            self.connection.datagram(data, self.address)

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, ConnectionRefusedError) and self.connection is not None:
            self.connection.abort()

    def send(self, data: bytes, address: Address) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.sendto(data)

    def gone(self, connection: QuicTransport) -> None:
        if self.transport is not None:
            self.transport.close()


async def connect_quic(
    host: str,
    port: int,
    handler: Handler,
    *,
    verify: bool | str | Path | None = None,
    server_name: str | None = None,
    idle_timeout: float = IDLE_TIMEOUT,
    keepalive: float = KEEPALIVE,
    max_datagram: int | None = None,
    timeout: float = 10.0,
) -> Transport:
    """Connect; `handler.opened` has been called when this returns. OSError if there is no way.

    `verify`: True by the system's authorities, a path to a PEM file to trust, False not at all; None is False on
    loopback, where the gateway makes its certificate on the fly, and True elsewhere.
    """
    if verify is None:
        verify = not is_loopback(host)
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        connection_id_length=_CID,
        idle_timeout=idle_timeout,
        max_data=2 * MAX_FRAME_FROM_SERVER,
        max_stream_data=2 * MAX_FRAME_FROM_SERVER,
        max_datagram_size=max_datagram or (LOOPBACK_DATAGRAM if is_loopback(host) else SMALLEST_MAX_DATAGRAM_SIZE),
        server_name=server_name or host,
        verify_mode=ssl.CERT_NONE if verify is False else ssl.CERT_REQUIRED,
    )
    if not isinstance(verify, bool):
        configuration.load_verify_locations(cafile=str(verify))
    loop = asyncio.get_running_loop()
    line = _Line()
    transport, _ = await loop.create_datagram_endpoint(lambda: line, remote_addr=(host, port))
    _widen(transport)
    connection = line.connection = QuicTransport(
        QuicConnection(configuration=configuration),
        lambda: handler,
        line.send,
        line.gone,
        handshake_timeout=timeout + 1,  # the one below comes first
        keepalive=keepalive,
    )
    connection.waiter = loop.create_future()
    connection._quic.connect(line.address, now=loop.time())
    connection.transmit_soon()
    try:
        async with asyncio.timeout(timeout):
            await connection.waiter
    except TimeoutError:
        connection.abort()
        raise TimeoutError(f"{host}:{port} did not answer within {timeout:g} s") from None
    except BaseException:
        connection.abort()
        raise
    return connection


def _widen(transport: asyncio.DatagramTransport) -> None:
    """Room in the system for the datagrams of many connections that arrive in one turn of the loop."""
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, 4 * 1024 * 1024)
        except OSError:
            pass


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError("certificate", str(path), f"a readable PEM file ({error.strerror})") from error
