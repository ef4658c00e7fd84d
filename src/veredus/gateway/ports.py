"""Ports: the WebSocket and QUIC listeners of one process, and the limit on new connections."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from veredus.errors import ConfigError
from veredus.gateway.config import GatewayConfig, ListenAddress
from veredus.gateway.limits import Bucket
from veredus.gateway.services import Services
from veredus.link.transports.base import HandlerFactory, Listener
from veredus.model.hosts import is_loopback

logger = logging.getLogger("veredus.gateway")

RETRY_AFTER = 1.0
"""Earliest retry of a refused client, in seconds. By then, all clients of a burst have tried once."""
MAX_RETRY_AFTER = 30.0
"""Latest retry, in seconds, so that a flood cannot keep other clients away for long."""


class Ports:
    """`index` is the number of the process. Each process has its own UDP port, because a client whose address changes
    must reach the same process."""

    def __init__(self, services: Services, index: int, handler_factory: HandlerFactory) -> None:
        config, clock = services.config, services.clock
        self._config = config
        self._index = index
        self._overload = services.overload
        self._addresses = services.addresses
        self._clock = clock
        self._handler_factory = handler_factory
        self._listeners: list[Listener] = []
        self._closing = False
        now = clock.monotonic()
        self._accepts = {
            "ws": Bucket(config.accept_rate, max(config.accept_rate, 1.0), now),
            "quic": Bucket(config.quic_accept_rate, max(config.quic_accept_rate, 1.0), now),
        }
        self._next_retry = 0.0
        """When the last refused client may retry."""
        self.ws: ListenAddress | None = None
        self.quic: ListenAddress | None = None
        """The real addresses, once listening."""

    @property
    def open(self) -> bool:
        return bool(self._listeners)

    async def listen(self) -> None:
        """Raises ConfigError for an address that is not available."""
        if self._config.ws is not None:
            await self._listen_websocket(self._config.ws)
        if self._config.quic is not None:
            await self._listen_quic(self._config.quic.shifted(self._index))

    async def _listen_websocket(self, place: ListenAddress) -> None:
        from veredus.link.transports.websocket import listen_websocket

        config = self._config
        tls = tls_of(config)
        if tls is None and not is_loopback(place.host):
            logger.warning(
                "WebSocket on %s is not encrypted: others on the network can read tokens and messages. Set "
                "certificate= and key=, or use a proxy that terminates TLS",
                place,
            )
        with _available("ws", place):
            listener = await listen_websocket(
                place.host,
                place.port,
                self._handler_factory,
                tls=tls,
                path=config.path,
                origins=config.origins or (None if config.authenticate is not None else is_local_origin),
                reuse_port=config.processes > 1,
                accept=lambda address: self._wait_to_enter("ws"),
                admission=self._addresses,
                handshake_timeout=config.hello_timeout,
                control_rate=config.control_rate,
            )
        self._listeners.append(listener)
        self.ws = ListenAddress(*listener.address)

    async def _listen_quic(self, place: ListenAddress) -> None:
        from veredus.link.transports.quic import listen_quic

        config = self._config
        with _available("quic", place):
            listener = await listen_quic(
                place.host,
                place.port,
                self._handler_factory,
                certificate=config.certificate or None,
                key=config.key or None,
                idle_timeout=2 * (config.heartbeat + config.pong),
                accept=lambda address: self._wait_to_enter("quic"),
                admission=self._addresses,
                handshake_timeout=config.hello_timeout,
                retry_above=config.quic_handshakes,
                datagram_rate=config.quic_datagram_rate,
            )
        self._listeners.append(listener)
        self.quic = ListenAddress(*listener.address)

    def _wait_to_enter(self, kind: str) -> float:
        """0.0 if a new connection may enter, otherwise the seconds after which it may retry. Called before anything
        expensive is done. When another node dies, all its clients connect at once: each one above the rate gets its own
        time, so that it is not refused twice."""
        if self._closing or not self._overload.admit_connection():
            return RETRY_AFTER
        now = self._clock.monotonic()
        if not self._accepts[kind].take(now):
            return 0.0
        self._overload.refused["accepts"] += 1
        if kind == "quic":  # gets no answer
            return RETRY_AFTER
        self._next_retry = min(
            max(self._next_retry, now + RETRY_AFTER) + 1 / self._config.accept_rate, now + MAX_RETRY_AFTER
        )
        return min(self._next_retry - now, MAX_RETRY_AFTER)  # the difference of two clock readings may be a little more

    async def close(self) -> None:
        """Stop listening. Open connections stay."""
        self._closing = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()


def tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    """The TLS context of the certificate, if there is one. Raises ConfigError."""
    if not config.certificate:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError("certificate", config.certificate, f"a certificate and its key as PEM ({exc})") from exc
    return tls


def is_local_origin(origin: str) -> bool:
    """Whether a web page is local. Without an authenticator, a page from elsewhere must not act for its visitor."""
    return is_loopback(urlsplit(origin).hostname or "")


@contextlib.contextmanager
def _available(name: str, place: ListenAddress) -> Iterator[None]:
    """Turn an OSError into a ConfigError that names the setting."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(name, str(place), f"a free address ({exc.strerror or exc})") from exc
