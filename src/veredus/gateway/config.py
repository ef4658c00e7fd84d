"""GatewayConfig: validated settings, from which the command line and the environment variables are derived."""

# ruff: noqa: RUF009 - _setting returns a dataclass field

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.errors import ConfigError
from veredus.gateway.address_limits import networks
from veredus.gateway.auth import Authenticate, MayJoin
from veredus.model import checks
from veredus.model.hosts import is_loopback

if TYPE_CHECKING:
    from veredus.gateway.client_hooks import OnConnect, OnDisconnect

Check = Callable[[str, Any], Any]

HTTP_TLS = ("auto", "on", "off")
ADDRESS_CONNECTIONS = 500
ADDRESS_HANDSHAKES = 50.0
ADDRESS_SESSIONS = 50.0
POLICIES = ("reject", "drop_oldest", "close")


class ListenAddress(NamedTuple):
    """Where one listener listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def shifted(self, by: int) -> ListenAddress:
        """The address of process number `by`. Port 0 stays 0, any free port."""
        return ListenAddress(self.host, self.port + by if self.port else 0)


def _listen_address(name: str, value: Any) -> ListenAddress | None:
    """`host:port`, `[::1]:port` or `:port`; "off" for none."""
    if value is None or value == "off":
        return None
    if isinstance(value, ListenAddress):
        return value
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*):(\d{1,5})", value) if isinstance(value, str) else None
    if found is None or int(found[2]) > 65535:
        raise ConfigError(name, value, "HOST:PORT such as 127.0.0.1:8765, with a port from 0 to 65535, or off")
    return ListenAddress(found[1].strip("[]") or "0.0.0.0", int(found[2]))


def _whole(least: int) -> Check:
    return partial(checks.whole, least=least)


def _choice(choices: tuple[str, ...]) -> Check:
    return partial(checks.choice, choices=choices)


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _networks(name: str, value: Any) -> tuple[str, ...]:
    texts = checks.texts(name, value)
    networks(name, texts)
    return texts


def _functions(name: str, value: Any) -> tuple[Any, ...]:
    """One function, or several."""
    functions = (value,) if callable(value) else tuple(value or ())
    return tuple(checks.function(name, one) for one in functions)


def _setting(default: Any, check: Check, text: str = "", kind: type | None = None) -> Any:
    """A field with its check. With a help text it is also a command-line option; `kind` is the option's type where the
    default does not show it."""
    return field(default=default, metadata={"check": check, "help": text, "kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Durations in seconds, sizes in bytes."""

    ws: ListenAddress | None = _setting(
        ListenAddress("127.0.0.1", 8765), _listen_address, "WebSocket HOST:PORT, shared by all processes; off for none."
    )
    quic: ListenAddress | None = _setting(
        ListenAddress("127.0.0.1", 8766),
        _listen_address,
        "QUIC HOST:PORT of the first process; each further process uses the next port; off for none.",
    )
    http: ListenAddress | None = _setting(
        ListenAddress("127.0.0.1", 8767),
        _listen_address,
        "HTTP HOST:PORT of the first process, for health, sessions and the push API; off for none.",
    )
    processes: int = _setting(1, _whole(1), "Number of gateway processes.")
    certificate: str = _setting(
        "", checks.text, "PEM file with the TLS certificate chain. Without it, QUIC uses a self-signed certificate."
    )
    key: str = _setting("", checks.text, "PEM file with the certificate's private key.")
    path: str = _setting("/", checks.text, "URL path of the WebSocket.")
    origins: tuple[str, ...] = _setting(
        (), checks.texts, "Origins that browsers may connect from, separated by commas; default: any."
    )
    http_token: str = _setting(
        "", checks.text, "Bearer token for the push API. Without it, the push API serves loopback only."
    )
    authenticate: Authenticate | None = _setting(None, _or_none(checks.function))
    """Returns the Identity for a token, or raises Unauthorized. Called at every attach."""
    may_join: MayJoin | None = _setting(None, _or_none(checks.function))
    """(identity, group) to bool: whether a client may join a group by itself. Without this hook, none may."""
    on_connect: tuple[OnConnect, ...] = _setting((), _functions)
    """Called after every welcome."""
    on_disconnect: tuple[OnDisconnect, ...] = _setting((), _functions)
    """Called when such a connection ends, with the reason."""

    heartbeat: float = _setting(25.0, checks.seconds, "Send a ping after this many seconds without a frame.")
    pong: float = _setting(10.0, checks.seconds, "Close a connection that does not answer a ping within this time.")
    hello_timeout: float = _setting(10.0, checks.seconds, "Time limit for a client's first frame.")
    session_ttl: float = _setting(120.0, checks.seconds, "How long a session without a connection lives.")
    window_messages: int = _setting(256, _whole(1), "Unacknowledged messages in flight to one client.")
    window_bytes: int = _setting(256 * 1024, _whole(1024), "Unacknowledged bytes in flight to one client.")
    quota_entries: int = _setting(1000, _whole(1), "Messages stored for one session.")
    quota_bytes: int = _setting(1024 * 1024, _whole(1024), "Bytes stored for one session.")
    policy: str = _setting("reject", _choice(POLICIES), "When the quota is full: reject, drop_oldest or close.")
    sessions_per_user: int = _setting(5, _whole(1), "Sessions of one user; one more ends the oldest.")
    message_timeout: float = _setting(
        30.0, checks.seconds, "Resend a message that is unacknowledged for half this time."
    )
    max_retries: int = _setting(3, _whole(0), "Resends of one message; after these the connection is closed.")
    cleanup_interval: float = _setting(10.0, checks.seconds, "How often unacknowledged messages are checked.")
    max_queue_size: int = _setting(1000, _whole(1), "Messages of one client that wait to be sent.")
    max_frame: int = _setting(64 * 1024, _whole(1024), "Bytes of one frame from a client.")

    request_rate: float = _setting(50.0, checks.rate, "Requests per second of one session.")
    request_burst: int = _setting(100, _whole(1), "Requests that one session may send at once.")
    open_requests: int = _setting(32, _whole(1), "Unanswered requests of one session.")
    handlers: int = _setting(100, _whole(1), 'Concurrent handlers of actions with where="gateway".')
    max_connections: int = _setting(10_000, _whole(1), "Connections of one process.")
    max_request_rate: float = _setting(20_000.0, checks.rate, "Requests per second of one process.")
    max_upstream: int = _setting(10_000, _whole(1), "Unanswered requests of one process.")
    warn_share: float = _setting(0.8, checks.share, "Warn when a process reaches this share of the three limits above.")
    accept_rate: float = _setting(1000.0, checks.rate, "New WebSocket connections per second of one process.")
    quic_accept_rate: float = _setting(200.0, checks.rate, "New QUIC connections per second of one process.")
    quic_handshakes: int = _setting(
        100, _whole(1), "Unfinished QUIC handshakes; above this, clients must prove their address first (Retry)."
    )
    quic_datagram_rate: float = _setting(
        2000.0, checks.rate, "Datagrams per second from one QUIC connection, in addition to as many as it is sent."
    )
    ack_rate: float = _setting(1000.0, checks.rate, "Acks and pongs without news per second from one connection.")
    control_rate: float = _setting(
        100.0, checks.rate, "WebSocket pings, pongs and fragments per second from one connection."
    )
    address_connections: int | None = _setting(
        None,
        _or_none(_whole(1)),
        f"Open connections of one address (IPv6: /64); default {ADDRESS_CONNECTIONS}, unlimited on loopback.",
        int,
    )
    address_handshakes: float | None = _setting(
        None,
        _or_none(checks.rate),
        f"New connections per second of one address; default {ADDRESS_HANDSHAKES:g}, unlimited on loopback.",
        float,
    )
    address_sessions: float | None = _setting(
        None,
        _or_none(checks.rate),
        f"New sessions per second of one address; default {ADDRESS_SESSIONS:g}, unlimited on loopback.",
        float,
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), _networks, "Proxies whose X-Forwarded-For is trusted: addresses or networks, separated by commas."
    )
    http_tls: str = _setting(
        "auto", _choice(HTTP_TLS), "TLS for HTTP: on, off, or auto (on beyond loopback if there is a certificate)."
    )
    http_timeout: float = _setting(10.0, checks.seconds, "Time limit for receiving a complete request of the push API.")
    hook_threads: int = _setting(32, _whole(1), "Threads for synchronous hooks, and connection hooks that run at once.")
    drain: float = _setting(
        30.0, checks.seconds, "At a stop, move the clients to other gateways over this many seconds."
    )
    position_check: float = _setting(
        60.0, checks.seconds, "How often each session's position is compared with its log."
    )
    probe: float = _setting(5.0, checks.seconds, "How often the gateway checks that hints from Redis arrive.")

    @classmethod
    def make(cls, **given: Any) -> GatewayConfig:
        """Validate the settings. Raises ConfigError."""
        checks = {one.name: one.metadata["check"] for one in fields(cls)}
        for name in given:
            if name not in checks:
                raise ConfigError("gateway setting", name, f"one of {', '.join(checks)}", known=checks)
        config = cls(**{name: checks[name](name, value) for name, value in given.items()})
        if config.ws is None and config.quic is None:
            raise ConfigError("ws", None, "an address for WebSocket, QUIC or both")
        if bool(config.certificate) != bool(config.key):
            raise ConfigError("key" if config.certificate else "certificate", "", "certificate and key, or neither")
        if config.message_timeout > config.session_ttl * 100:
            raise ConfigError("message_timeout", config.message_timeout, "at most 100 times session_ttl")
        if config.http_tls == "on" and not config.certificate:
            raise ConfigError("http_tls", "on", "auto or off without a certificate")
        config._check_exposure()
        return config

    @property
    def http_speaks_tls(self) -> bool:
        if self.http_tls == "auto":
            return bool(self.certificate) and self.http is not None and not is_loopback(self.http.host)
        return self.http_tls == "on"

    def _check_exposure(self) -> None:
        """Listeners that other machines can reach need authentication."""
        for name in ("ws", "quic"):
            address: ListenAddress | None = getattr(self, name)
            if self.authenticate is None and address is not None and not is_loopback(address.host):
                raise ConfigError(name, str(address), "a loopback address, or authenticate= as well")
        if self.http is not None and not self.http_token and not is_loopback(self.http.host):
            raise ConfigError("http", str(self.http), "a loopback address, or http_token= as well")
