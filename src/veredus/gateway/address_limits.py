"""AddressLimits: connections, handshakes and new sessions that one address may have."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from veredus.clock import Clock
from veredus.errors import ConfigError
from veredus.gateway.limits import Bucket

PREFIX = 64
"""Bits of an IPv6 address that identify a customer, who can choose the other bits."""
FIRST_CLEANUP = 1000
"""Number of known addresses at which idle ones are removed for the first time."""
MAX_ADDRESSES = 50_000
"""Addresses remembered; those without a connection are forgotten first."""
BURST = 5
"""A burst may use the rate of this many seconds at once."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Allowance(NamedTuple):
    """A configured limit, or None for the default. The default does not limit loopback: a proxy on the same machine is
    no attacker."""

    value: float | None
    default: float

    def of(self, is_local: bool) -> float:
        """The limit; 0 means unlimited."""
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


class AddressLimits:
    """The limits of one process. Counts refusals by reason in `refused`."""

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
        self._cleanup_at = FIRST_CLEANUP

    def enter(self, host: str) -> bool:
        """Admit a connection, which counts until `leave`. Returns False if it is refused."""
        if self.is_proxy(host):
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
        """Whether this address may begin one more session."""
        if self.is_proxy(host):
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
        """Open connections of this address."""
        found = self._known.get(prefix_of(host))
        return found.open if found is not None else 0

    def _find(self, host: str) -> _Address:
        name = prefix_of(host)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= self._cleanup_at:
                self._forget()
            found = self._known[name] = _Address(_address(host).is_loopback)
        return found

    def _forget(self) -> None:
        """Remove the addresses without connections whose limits are fully replenished. If too many are left, remove all
        without connections."""
        now = self._clock.monotonic()
        for name in [name for name, found in self._known.items() if found.is_idle(now)]:
            del self._known[name]
        if len(self._known) >= MAX_ADDRESSES:
            for name in [name for name, found in self._known.items() if not found.open]:
                del self._known[name]
        self._cleanup_at = min(MAX_ADDRESSES, max(FIRST_CLEANUP, 2 * len(self._known)))


@lru_cache(maxsize=4096)
def prefix_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or a 64-bit prefix of IPv6."""
    address = _address(host)
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address.packed, PREFIX), strict=False).network_address)


@lru_cache(maxsize=4096)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Treats an IPv4-mapped IPv6 address as IPv4, and anything that is no address (a unix socket) as loopback."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ipaddress.IPv4Address("127.0.0.1")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def networks(name: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse addresses and networks such as 10.0.0.0/8. Raises ConfigError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as exc:
            raise ConfigError(name, text, f"an address or a network such as 10.0.0.0/8 ({exc})") from None
    return tuple(found)
