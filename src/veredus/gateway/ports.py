"""The ports that clients come through, and the gate in front of them."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from veredus.clock import Clock
from veredus.errors import ConfigError
from veredus.gateway.addresses import Addresses
from veredus.gateway.config import Endpoint, GatewayConfig
from veredus.gateway.limits import Bucket, Overload
from veredus.link.transports.base import HandlerFactory, Listener
from veredus.model.hosts import is_loopback

logger = logging.getLogger("veredus.gateway")

COME_AGAIN = 1.0
"""Seconds after which a client that was refused may come again at the earliest: until then the others have come too."""
LATEST = 30.0
"""And at the latest, however many were refused: a flood must not keep others away for long."""


class Ports:
    """WebSocket and QUIC of one process. `index` says which of several it is: each has a UDP port of its own, because a
    client that changes its address must find the same process again."""

    def __init__(
        self,
        config: GatewayConfig,
        index: int,
        overload: Overload,
        addresses: Addresses,
        clock: Clock,
        handler_factory: HandlerFactory,
    ) -> None:
        self._config = config
        self._index = index
        self._overload = overload
        self._addresses = addresses
        self._clock = clock
        self._handler_factory = handler_factory
        self._listeners: list[Listener] = []
        self._closing = False
        now = clock.monotonic()
        self._accepts = {
            "ws": Bucket(config.accept_rate, max(config.accept_rate, 1.0), now),
            "quic": Bucket(config.quic_accept_rate, max(config.quic_accept_rate, 1.0), now),
        }
        self._next = 0.0  # when the last one that was refused may come again
        self.ws: Endpoint | None = None
        self.quic: Endpoint | None = None
        """Where it really listens."""

    @property
    def open(self) -> bool:
        return bool(self._listeners)

    async def listen(self) -> None:
        """Raises ConfigError for an address that cannot be had."""
        if self._config.ws is not None:
            await self._listen_websocket(self._config.ws)
        if self._config.quic is not None:
            await self._listen_quic(self._config.quic.shifted(self._index))

    async def _listen_websocket(self, place: Endpoint) -> None:
        from veredus.link.transports.websocket import listen_websocket

        config = self._config
        tls = tls_of(config)
        if tls is None and not is_loopback(place.host):
            logger.warning(
                "WebSocket on %s is not encrypted: tokens and messages can be read on the way, unless a proxy in front "
                "of it speaks TLS; certificate= and key= encrypt it",
                place,
            )
        with _free("ws", place):
            listener = await listen_websocket(
                place.host,
                place.port,
                self._handler_factory,
                tls=tls,
                path=config.path,
                origins=config.origins or (None if config.authenticate is not None else is_local_origin),
                reuse_port=config.processes > 1,
                accept=lambda address: self._let_in("ws"),
                keeper=self._addresses,
                handshake_timeout=config.hello_timeout,
                control_rate=config.control_rate,
            )
        self._listeners.append(listener)
        self.ws = Endpoint(*listener.address)

    async def _listen_quic(self, place: Endpoint) -> None:
        from veredus.link.transports.quic import listen_quic

        config = self._config
        with _free("quic", place):
            listener = await listen_quic(
                place.host,
                place.port,
                self._handler_factory,
                certificate=config.certificate or None,
                key=config.key or None,
                idle_timeout=2 * (config.heartbeat + config.pong),
                accept=lambda address: self._let_in("quic"),
                keeper=self._addresses,
                handshake_timeout=config.hello_timeout,
                retry_above=config.quic_handshakes,
                datagram_rate=config.quic_datagram_rate,
            )
        self._listeners.append(listener)
        self.quic = Endpoint(*listener.address)

    def _let_in(self, kind: str) -> float:
        """Asked before anything expensive is done for a new connection: 0.0 if it may come in now, else seconds after
        which it may come again. When another node dies, its clients come all at once: each one beyond the rate is given
        a time of its own, so that it is not refused again."""
        if self._closing or not self._overload.admit_connection():
            return COME_AGAIN
        now = self._clock.monotonic()
        if not self._accepts[kind].take(now):
            return 0.0
        self._overload.refused["accepts"] += 1
        if kind == "quic":  # gets no answer
            return COME_AGAIN
        self._next = min(max(self._next, now + COME_AGAIN) + 1 / self._config.accept_rate, now + LATEST)
        return self._next - now

    async def close(self) -> None:
        """Nobody comes in any more; those who are there stay."""
        self._closing = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()


def tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    """TLS with the certificate, if there is one. Raises ConfigError."""
    if not config.certificate:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError("certificate", config.certificate, f"PEM files that belong together ({exc})") from exc
    return tls


def is_local_origin(origin: str) -> bool:
    """Whether a page comes from this machine: without an authenticator, no other page may speak for its visitor."""
    return is_loopback(urlsplit(origin).hostname or "")


@contextlib.contextmanager
def _free(name: str, place: Endpoint) -> Iterator[None]:
    """A port that cannot be had is a wrong setting."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(name, str(place), f"an address that is free: {exc.strerror or exc}") from exc
