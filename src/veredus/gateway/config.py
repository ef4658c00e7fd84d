"""A gateway's settings: frozen, validated; the command line and the environment are derived from these fields."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.errors import ConfigError
from veredus.gateway.addresses import networks
from veredus.gateway.auth import Authenticate, MayJoin
from veredus.model.hosts import is_loopback

if TYPE_CHECKING:
    from veredus.gateway.lifecycle import OnConnect, OnDisconnect

HTTP_TLS = ("auto", "on", "off")
ADDRESS_CONNECTIONS = 500
ADDRESS_HANDSHAKES = 50.0
ADDRESS_SESSIONS = 50.0
POLICIES = ("reject", "drop_oldest", "close")


class Endpoint(NamedTuple):
    """Where one listener listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def shifted(self, by: int) -> Endpoint:
        """The port of process number `by`; port 0 stays "any"."""
        return Endpoint(self.host, self.port + by if self.port else 0)


def _endpoint(name: str, value: Any) -> Endpoint | None:
    """`host:port`, `[::1]:port` or `:port`; "off" for none."""
    if value is None or value == "off":
        return None
    if isinstance(value, Endpoint):
        return value
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*):(\d{1,5})", value) if isinstance(value, str) else None
    if found is None or int(found[2]) > 65535:
        raise ConfigError(name, value, "HOST:PORT such as 127.0.0.1:8765, with a port from 0 to 65535, or off")
    return Endpoint(found[1].strip("[]") or "0.0.0.0", int(found[2]))


def _whole(least: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(name, value, f"a whole number of at least {least}")
        return value

    return check


def _or_default(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _networks(name: str, value: Any) -> tuple[str, ...]:
    texts = _texts(name, value)
    networks(name, texts)
    return texts


def _seconds(name: str, value: Any) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number) or number <= 0:
        raise ConfigError(name, value, "seconds above 0")
    return float(number)


def _rate(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ConfigError(name, value, "a number per second above 0")
    return float(value)


def _share(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ConfigError(name, value, "a share above 0, at most 1")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(name, value, "a text")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A list, or one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(name, value, "a list of texts, or one text with commas")
    return tuple(part.strip() for part in parts if part.strip())


def _policy(name: str, value: Any) -> str:
    if value not in POLICIES:
        raise ConfigError(name, value, f"one of {', '.join(POLICIES)}", known=POLICIES)
    return str(value)


def _http_tls(name: str, value: Any) -> str:
    if value not in HTTP_TLS:
        raise ConfigError(name, value, f"one of {', '.join(HTTP_TLS)}", known=HTTP_TLS)
    return str(value)


def _function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigError(name, value, "a function")
    return value


def _functions(name: str, value: Any) -> tuple[Any, ...]:
    """One, or several."""
    functions = (value,) if callable(value) else tuple(value or ())
    for one in functions:
        _function(name, one)
    return functions


def _option(check: Callable[[str, Any], Any], text: str = "", kind: type | None = None) -> dict[str, Any]:
    """What is kept with a field: its check; with a text it is an option of the command line too, of this kind if its
    default does not say."""
    return {"check": check, "help": text, "kind": kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Durations in seconds, sizes in bytes."""

    ws: Endpoint | None = field(
        default=Endpoint("127.0.0.1", 8765),
        metadata=_option(_endpoint, "WebSocket: HOST:PORT, shared by all processes; off for none."),
    )
    quic: Endpoint | None = field(
        default=Endpoint("127.0.0.1", 8766),
        metadata=_option(_endpoint, "QUIC: HOST:PORT of the first process, the next has the next port."),
    )
    http: Endpoint | None = field(
        default=Endpoint("127.0.0.1", 8767),
        metadata=_option(_endpoint, "Health, sessions, push API: HOST:PORT of the first process."),
    )
    processes: int = field(default=1, metadata=_option(_whole(1), "Processes under a supervisor."))
    certificate: str = field(
        default="", metadata=_option(_text, "PEM file with the certificate chain for TLS; QUIC makes its own without.")
    )
    key: str = field(default="", metadata=_option(_text, "PEM file with the certificate's private key."))
    path: str = field(default="/", metadata=_option(_text, "The WebSocket's path."))
    origins: tuple[str, ...] = field(
        default=(), metadata=_option(_texts, "Origins that browsers may come from, with commas; default any.")
    )
    http_token: str = field(
        default="", metadata=_option(_text, "Bearer token of the push API; without it, it serves loopback only.")
    )
    authenticate: Authenticate | None = field(default=None, metadata=_option(_function))
    """Token to Identity, or Unauthorized; called at every attach."""
    may_join: MayJoin | None = field(default=None, metadata=_option(_function))
    """(identity, group) to bool: whether a client may join a group by itself; without it none may."""
    on_connect: tuple[OnConnect, ...] = field(default=(), metadata=_option(_functions))
    """Told of every connection that was welcomed."""
    on_disconnect: tuple[OnDisconnect, ...] = field(default=(), metadata=_option(_functions))
    """Told of the end of those, with the reason."""

    heartbeat: float = field(default=25.0, metadata=_option(_seconds, "A ping after so many seconds without a frame."))
    pong: float = field(default=10.0, metadata=_option(_seconds, "A connection without an answer for so long is dead."))
    hello_timeout: float = field(
        default=10.0, metadata=_option(_seconds, "The first frame must come within so many seconds.")
    )
    session_ttl: float = field(
        default=120.0, metadata=_option(_seconds, "A session without a connection lives so long.")
    )
    window_messages: int = field(
        default=256, metadata=_option(_whole(1), "Unacknowledged messages in flight to one client.")
    )
    window_bytes: int = field(
        default=256 * 1024, metadata=_option(_whole(1024), "Unacknowledged bytes in flight to one client.")
    )
    quota_entries: int = field(default=1000, metadata=_option(_whole(1), "Messages kept for one session."))
    quota_bytes: int = field(default=1024 * 1024, metadata=_option(_whole(1024), "Bytes kept for one session."))
    policy: str = field(
        default="reject", metadata=_option(_policy, "When the quota is full: reject, drop_oldest or close.")
    )
    sessions_per_user: int = field(
        default=5, metadata=_option(_whole(1), "Beyond them the user's oldest session is superseded.")
    )
    message_timeout: float = field(
        default=30.0, metadata=_option(_seconds, "Unacknowledged for half of this: sent again.")
    )
    max_retries: int = field(
        default=3, metadata=_option(_whole(0), "How often; then the connection is closed, to be resumed.")
    )
    cleanup_interval: float = field(default=10.0, metadata=_option(_seconds, "How often that is checked."))
    max_queue_size: int = field(
        default=1000, metadata=_option(_whole(1), "Messages of one client that wait for their turn.")
    )
    max_frame: int = field(default=64 * 1024, metadata=_option(_whole(1024), "Bytes of one frame from a client."))

    request_rate: float = field(default=50.0, metadata=_option(_rate, "Requests per second of one session."))
    request_burst: int = field(default=100, metadata=_option(_whole(1), "Requests of one session at once."))
    open_requests: int = field(default=32, metadata=_option(_whole(1), "Unanswered requests of one session."))
    handlers: int = field(default=100, metadata=_option(_whole(1), 'Handlers of where="gateway" at once.'))
    max_connections: int = field(default=10_000, metadata=_option(_whole(1), "Connections of one process."))
    max_request_rate: float = field(default=20_000.0, metadata=_option(_rate, "Requests per second of one process."))
    max_upstream: int = field(default=10_000, metadata=_option(_whole(1), "Unanswered requests of one process."))
    warn_share: float = field(
        default=0.8, metadata=_option(_share, "From this share of the three limits above it warns.")
    )
    accept_rate: float = field(
        default=1000.0, metadata=_option(_rate, "New WebSocket connections per second of one process.")
    )
    quic_accept_rate: float = field(
        default=200.0, metadata=_option(_rate, "New QUIC connections per second of one process.")
    )
    quic_handshakes: int = field(
        default=100,
        metadata=_option(
            _whole(1), "Unfinished QUIC handshakes; beyond them clients show their address first (Retry)."
        ),
    )
    quic_datagram_rate: float = field(
        default=2000.0,
        metadata=_option(_rate, "Datagrams per second of one QUIC connection, beside as many as it is sent."),
    )
    ack_rate: float = field(
        default=1000.0, metadata=_option(_rate, "Acks and pongs per second of one connection that say nothing new.")
    )
    control_rate: float = field(
        default=100.0, metadata=_option(_rate, "WebSocket pings, pongs and fragments per second of one connection.")
    )
    address_connections: int | None = field(
        default=None,
        metadata=_option(
            _or_default(_whole(1)),
            f"Open connections of one address (IPv6: /64); default {ADDRESS_CONNECTIONS}, and any on loopback.",
            int,
        ),
    )
    address_handshakes: float | None = field(
        default=None,
        metadata=_option(
            _or_default(_rate),
            f"New connections per second of one address; default {ADDRESS_HANDSHAKES:g}, and any on loopback.",
            float,
        ),
    )
    address_sessions: float | None = field(
        default=None,
        metadata=_option(
            _or_default(_rate),
            f"New sessions per second of one address; default {ADDRESS_SESSIONS:g}, and any on loopback.",
            float,
        ),
    )
    trusted_proxies: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            _networks, "Proxies, as addresses or networks with commas: X-Forwarded-For is believed of them only."
        ),
    )
    http_tls: str = field(
        default="auto",
        metadata=_option(
            _http_tls, "Whether HTTP speaks TLS: on, off, or auto: beyond loopback, if there is a certificate."
        ),
    )
    http_timeout: float = field(
        default=10.0, metadata=_option(_seconds, "A request of the push API must be complete within so many seconds.")
    )
    hook_threads: int = field(
        default=32,
        metadata=_option(_whole(1), "Threads for synchronous hooks; as many hooks of connections run at once."),
    )
    drain: float = field(
        default=30.0, metadata=_option(_seconds, "At a stop, clients are moved elsewhere over so many seconds.")
    )
    position_check: float = field(
        default=60.0, metadata=_option(_seconds, "How often each session's position is compared with its log.")
    )
    probe: float = field(default=5.0, metadata=_option(_seconds, "How often the way of the wake-ups is probed."))

    @classmethod
    def make(cls, **given: Any) -> GatewayConfig:
        """Check everything, name what is wrong."""
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
        """What is reachable from elsewhere must know who comes."""
        for name in ("ws", "quic"):
            endpoint: Endpoint | None = getattr(self, name)
            if self.authenticate is None and endpoint is not None and not is_loopback(endpoint.host):
                raise ConfigError(name, str(endpoint), "a loopback address: beyond it, authenticate= is needed")
        if self.http is not None and not self.http_token and not is_loopback(self.http.host):
            raise ConfigError("http", str(self.http), "a loopback address: beyond it, http_token= is needed")
