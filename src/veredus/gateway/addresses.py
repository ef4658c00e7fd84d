"""How much one address may take: open connections, handshakes, new sessions."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from veredus.clock import Clock
from veredus.errors import ConfigError
from veredus.gateway.limits import Bucket

PREFIX = 64
"""Bits of an IPv6 address that one customer has: the others are his to choose."""
LOOK = 1000
"""So many are known: time to look for those that are gone."""
MOST = 50_000
"""Addresses that are remembered; those without a connection are forgotten first."""
BURST = 5
"""Seconds' worth of handshakes or sessions that may come at once."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Allowance(NamedTuple):
    """The number that was set, or None for the default, which does not count loopback: a proxy on the same machine is
    nobody to defend against."""

    value: float | None
    default: float

    def of(self, is_local: bool) -> float:
        """0 for any number."""
        if self.value is not None:
            return self.value
        return 0.0 if is_local else self.default


class _Address:
    __slots__ = ("handshakes", "is_local", "open", "sessions")

    def __init__(self, is_local: bool) -> None:
        self.is_local = is_local
        self.open = 0
        self.handshakes: Bucket | None = None
        self.sessions: Bucket | None = None

    def is_idle(self, now: float) -> bool:
        return not self.open and all(
            bucket is None or bucket.is_full(now) for bucket in (self.handshakes, self.sessions)
        )


class Addresses:
    """The doorkeeper of one process. Refusals are counted by reason in `refused`."""

    def __init__(
        self,
        *,
        connections: Allowance,
        handshakes: Allowance,
        sessions: Allowance,
        proxies: Sequence[str],
        clock: Clock,
        refused: dict[str, int],
    ) -> None:
        self._connections, self._handshakes, self._sessions = connections, handshakes, sessions
        self._proxies = networks("trusted_proxies", proxies)
        self._clock = clock
        self._refused = refused
        self._known: dict[str, _Address] = {}
        self._look_at = LOOK

    def enter(self, host: str) -> bool:
        """A connection from there: it counts until `leave`, unless this is False."""
        if self._proxies and self.is_proxy(host):
            return True
        found = self._find(host)
        most = self._connections.of(found.is_local)
        if most and found.open >= most:
            self._refused["address_connections"] += 1
            return False
        rate = self._handshakes.of(found.is_local)
        if rate:
            now = self._clock.monotonic()
            if found.handshakes is None:
                found.handshakes = Bucket(rate, max(1.0, rate * BURST), now)
            if found.handshakes.take(now):
                self._refused["address_handshakes"] += 1
                return False
        found.open += 1
        return True

    def leave(self, host: str) -> None:
        found = self._known.get(prefix_of(host))
        if found is not None and found.open:
            found.open -= 1
            if not found.open and found.handshakes is None and found.sessions is None:
                del self._known[prefix_of(host)]

    def may_begin(self, host: str) -> bool:
        """Whether one more session may begin from there."""
        if self._proxies and self.is_proxy(host):
            return True
        found = self._find(host)
        rate = self._sessions.of(found.is_local)
        if not rate:
            return True
        now = self._clock.monotonic()
        if found.sessions is None:
            found.sessions = Bucket(rate, max(1.0, rate * BURST), now)
        if found.sessions.take(now):
            self._refused["address_sessions"] += 1
            return False
        return True

    def silent(self) -> None:
        self._refused["silent"] += 1

    def dropped(self) -> None:
        self._refused["datagrams"] += 1

    def is_proxy(self, host: str) -> bool:
        return any(_address(host) in network for network in self._proxies)

    @property
    def known(self) -> int:
        return len(self._known)

    def open(self, host: str) -> int:
        """Connections from there, now."""
        found = self._known.get(prefix_of(host))
        return found.open if found is not None else 0

    def _find(self, host: str) -> _Address:
        name = prefix_of(host)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= self._look_at:
                self._forget()
            found = self._known[name] = _Address(_address(host).is_loopback)
        return found

    def _forget(self) -> None:
        """Those that are gone, and may do again whatever a new one may. If all have come within seconds, all that are
        gone: better no memory of them than no room."""
        now = self._clock.monotonic()
        for name in [name for name, found in self._known.items() if found.is_idle(now)]:
            del self._known[name]
        if len(self._known) >= MOST:
            for name in [name for name, found in self._known.items() if not found.open]:
                del self._known[name]
        self._look_at = min(MOST, max(LOOK, 2 * len(self._known)))


@lru_cache(maxsize=4096)
def prefix_of(host: str) -> str:
    """What is counted as one address: an IPv4 address, or a prefix of 64 bits of IPv6."""
    address = _address(host)
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address.packed, PREFIX), strict=False).network_address)


@lru_cache(maxsize=4096)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """IPv4 in an IPv6 address is taken for what it is; what is no address at all (a unix socket) for this machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ipaddress.IPv4Address("127.0.0.1")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def networks(name: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Addresses and networks such as 10.0.0.0/8. Raises ConfigError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as exc:
            raise ConfigError(name, text, f"an address or a network such as 10.0.0.0/8 ({exc})") from None
    return tuple(found)
