"""GatewayAddress: parses ws://, wss:// and quic:// URLs and opens transports to them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from veredus.errors import ConfigError
from veredus.link.transports.base import Handler, Transport
from veredus.model.hosts import is_loopback

SCHEMES = ("ws", "wss", "quic")
DEFAULT_PORTS = {"ws": 80, "wss": 443, "quic": 8766}
Verify = bool | str | Path | None


class GatewayAddress(NamedTuple):
    url: str
    scheme: str
    host: str
    port: int

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


def parse_addresses(urls: str | Sequence[str]) -> list[GatewayAddress]:
    """Parse one address or several. After a failure the peer tries the next one."""
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise ConfigError("url", given, "at least one address such as ws://127.0.0.1:8765")
    return [parse_address(url) for url in given]


def parse_address(url: str) -> GatewayAddress:
    allowed = "an address such as ws://127.0.0.1:8765, wss://gateway.example or quic://127.0.0.1:8766"
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("url", url, allowed) from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ConfigError("url", url, allowed)
    return GatewayAddress(url, parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme])


async def open_transport(address: GatewayAddress, handler: Handler, verify: Verify, timeout: float) -> Transport:
    """Connect. Returns after `handler.opened` was called. On loopback, a self-signed certificate is accepted."""
    checked: bool | str | Path = (not address.is_local) if verify is None else verify
    if address.scheme == "quic":
        from veredus.link.transports.quic import connect_quic

        return await connect_quic(address.host, address.port, handler, verify=checked, timeout=timeout)
    from veredus.link.transports.websocket import connect_websocket

    tls = _tls(checked) if address.scheme == "wss" else None
    return await connect_websocket(address.url, handler, tls=tls, timeout=timeout)


def _tls(verify: bool | str | Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else str(verify))
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
