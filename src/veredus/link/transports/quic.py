"""QUIC on aioquic: the listener and the client's connect."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import cast

from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.tls import load_pem_private_key, load_pem_x509_certificates

from veredus.errors import ConfigError
from veredus.link.transports.base import AcceptGate, Admission, Handler, HandlerFactory, Listener, Transport
from veredus.link.transports.certificate import make_local_certificate
from veredus.link.transports.quic_port import CID_LENGTH, QuicPort
from veredus.link.transports.quic_reset import reset_key_for
from veredus.link.transports.quic_transport import Address, QuicTransport
from veredus.model.frames import ALPN, MAX_BATCH, MAX_FRAME_FROM_SERVER
from veredus.model.hosts import is_loopback
from veredus.process import forks

IDLE_TIMEOUT = 75.0  # more than two heartbeats with their pongs
KEEPALIVE = 5.0
RETRY_ABOVE = 100
DATAGRAM_RATE = 2000.0
LOOPBACK_DATAGRAM = 1452  # bytes; other paths use 1200, which every path supports
logging.getLogger("quic").setLevel(logging.CRITICAL)  # aioquic logs every client error


class QuicListener:
    """An open port. `certificate` is the PEM text that clients can trust."""

    def __init__(self, port: QuicPort, address: tuple[str, int], certificate: bytes, sha256: bytes) -> None:
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
    admission: Admission | None = None,
    handshake_timeout: float = 5.0,
    retry_above: int = RETRY_ABOVE,
    datagram_rate: float = DATAGRAM_RATE,
    max_datagram: int | None = None,
    reset_key: bytes | None = None,
) -> Listener:
    """Listen. Without a certificate, a local one is generated; this works on loopback only.

    `max_datagram`: bytes of payload that the path to the clients supports (None: 1200, or 1452 on loopback).
    `retry_above`: with more unfinished handshakes than this, new clients must first prove their address.
    `datagram_rate`: datagrams per second from one connection, in addition to as many as it is sent; more are dropped.
    `reset_key`: stays the same over restarts, so that clients of a dead process are reset at once; None derives it
    from `key`.
    """
    if certificate is None and not is_loopback(host):
        raise ConfigError("certificate", None, f"the paths of a certificate and its key, to listen on {host}")
    if (certificate is None) != (key is None):
        raise ConfigError("key", key, "a path, together with the certificate")
    if certificate is None:
        pem, key_pem, sha256 = make_local_certificate()
    else:
        pem, key_pem, sha256 = _read(certificate), _read(key or ""), b""
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
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
            raise ValueError("the key does not match the certificate")
    except (ValueError, IndexError, TypeError) as error:
        raise ConfigError(
            "certificate", str(certificate), f"a PEM certificate with its private key ({error})"
        ) from error
    protocol = QuicPort(
        configuration,
        handler_factory,
        accept=accept,
        admission=admission,
        handshake_timeout=handshake_timeout,
        retry_above=retry_above,
        datagram_rate=datagram_rate,
        reset_key=reset_key or reset_key_for(None if certificate is None else key_pem),
    )
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, local_addr=(host, port))
    _enlarge_buffers(transport)
    name = transport.get_extra_info("sockname")
    return QuicListener(protocol, (name[0], name[1]), pem, sha256)


class _ClientPort(asyncio.DatagramProtocol):
    """A client's UDP port. It is connected, so that a closed port at the other end is noticed at once."""

    def __init__(self) -> None:
        self.connection: QuicTransport | None = None
        self.transport: asyncio.DatagramTransport | None = None
        self.address: Address = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        self.address = transport.get_extra_info("peername")
        forks.register(self)

    def forked(self) -> None:
        """Drop the socket in a forked child: it belongs to the parent."""
        if self.transport is not None and not self.transport.is_closing():
            forks.close_socket(self.transport)
        forks.leak(self.transport, self.connection)
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
    """Connect. Returns after `handler.opened` was called. Raises OSError if it cannot connect.

    `verify`: True uses the system's certificate authorities, a path names a PEM file to trust, False checks nothing.
    None means False on loopback, where the gateway generates its certificate, and True elsewhere.
    """
    if verify is None:
        verify = not is_loopback(host)
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
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
    client_port = _ClientPort()
    transport, _ = await loop.create_datagram_endpoint(lambda: client_port, remote_addr=(host, port))
    _enlarge_buffers(transport)
    connection = client_port.connection = QuicTransport(
        QuicConnection(configuration=configuration),
        lambda: handler,
        client_port.send,
        client_port.gone,
        handshake_timeout=timeout + 1,  # longer than the timeout below, which comes first
        keepalive=keepalive,
    )
    connection.waiter = loop.create_future()
    connection._quic.connect(client_port.address, now=loop.time())
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


def _enlarge_buffers(transport: asyncio.DatagramTransport) -> None:
    """Enlarge the socket buffers for the datagrams of many connections in one turn of the loop."""
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
