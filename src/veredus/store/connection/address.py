"""The address of Redis: parses every usual form of URL, with errors that say what is allowed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from veredus.errors import ConfigError

Kind = Literal["tcp", "unix", "sentinel", "cluster"]

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("tcp", False),
    "rediss": ("tcp", True),
    "valkey": ("tcp", False),
    "valkeys": ("tcp", True),
    "unix": ("unix", False),
    "redis-socket": ("unix", False),
    "redis+socket": ("unix", False),
    "redis-sentinel": ("sentinel", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis-cluster": ("cluster", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_FORMS = (
    "redis://host:6379/0, rediss://host, unix:///path/to.sock, "
    "redis+sentinel://host1,host2/master/0 or redis+cluster://host1,host2"
)
_QUERY = {
    "db",
    "master",
    "username",
    "password",
    "sentinel_username",
    "sentinel_password",
    "sentinel_tls",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URL."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    master: str = ""
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    sentinel_tls: ssl.SSLContext | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def describe(self) -> str:
        """For logs; without the password."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        if self.kind == "unix":
            return f"unix://{self.path}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls else "redis"
        if self.kind == "sentinel":
            return f"{scheme}+sentinel://{hosts}/{self.master}/{self.db}"
        if self.kind == "cluster":
            return f"{scheme}+cluster://{hosts}"
        return f"{scheme}://{hosts}/{self.db}"


def parse_url(url: str) -> Address:
    """Raises ConfigError for the field `redis url`; the error text never contains a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("redis url", _masked(url), f"a URL such as {_FORMS}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigError("redis url", _masked(url), f"a URL such as {_FORMS}")
    kind, secure = _SCHEMES[parts.scheme]
    if kind != "unix" and _is_cut_short(parts):
        raise ConfigError("redis url", _masked(url), "a password with / ? and # written as %2F %3F and %23")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name in query:
        if name not in _QUERY:
            raise ConfigError("redis url", f"?{name}=", f"one of {', '.join(sorted(_QUERY))}", known=_QUERY)
    userinfo, _, location = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    username, password = unquote(username), unquote(password)
    path = unquote(parts.path)
    common: dict[str, object] = {
        "username": query.get("username", username),
        "password": query.get("password", password),
        "tls": _tls(query) if secure else None,
    }
    if kind == "unix":
        if not location + path:
            raise ConfigError("redis url", "no path", f"a URL such as {_FORMS}")
        return Address(kind=kind, path=location + path, db=_db(query.get("db", "0")), **common)  # type: ignore[arg-type]
    hosts = _hosts(location, 26379 if kind == "sentinel" else 6379)
    segments = [segment for segment in path.split("/") if segment]
    if kind == "sentinel":
        # Asynq's URI has the sentinels' password there, not the master's.
        if parts.scheme == "redis-sentinel" and "sentinel_password" not in query:
            query["sentinel_password"], common["password"] = password, query.get("password", "")
        return _sentinel(hosts, segments, query, common)
    db = query.get("db", segments[0] if segments else "0")
    if kind == "cluster" and _db(db):
        raise ConfigError("redis url", f"db {db}", "no database number: a cluster has only database 0")
    return Address(kind=kind, hosts=hosts, db=_db(db), **common)  # type: ignore[arg-type]


def _sentinel(
    hosts: tuple[tuple[str, int], ...],
    segments: list[str],
    query: dict[str, str],
    common: dict[str, object],
) -> Address:
    """Two forms: `redis+sentinel://host/master/db`, and Go's `redis-sentinel://:pw@host/db?master=name`."""
    master = query.get("master", "")
    if not master and segments:
        master = segments.pop(0)
    if not master:
        raise ConfigError("redis url", "no master name", "redis+sentinel://host1,host2/<master>/<db>")
    db = query.get("db", segments[0] if segments else "0")
    return Address(
        kind="sentinel",
        hosts=hosts,
        db=_db(db),
        master=master,
        sentinel_username=query.get("sentinel_username", ""),
        sentinel_password=query.get("sentinel_password", ""),
        sentinel_tls=common["tls"] if _flag("sentinel_tls", query.get("sentinel_tls", "yes")) else None,  # type: ignore[arg-type]
        **common,  # type: ignore[arg-type]
    )


def _hosts(location: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for item in (location or "localhost").split(","):
        host, port = item, ""
        if item.startswith("["):
            host, _, port = item[1:].partition("]")
            port = port.lstrip(":")
        elif ":" in item:
            host, _, port = item.rpartition(":")
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError("redis url", f"port {port!r}", "a port from 1 to 65535")
        hosts.append((host or "localhost", int(port) if port else default_port))
    return tuple(hosts)


def _db(text: str) -> int:
    if not text.isdigit():
        raise ConfigError("redis url", f"database {text!r}", "a database number such as 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("yes", "true", "1", "no", "false", "0"):
        raise ConfigError("redis url", f"{name}={text}", "yes or no")
    return text.lower() in ("yes", "true", "1")


def _tls(query: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"))
        if query.get("ssl_certfile"):
            context.load_cert_chain(query["ssl_certfile"], query.get("ssl_keyfile"))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError("redis url", str(exc), "readable certificate files") from exc
    if not _flag("ssl_check_hostname", query.get("ssl_check_hostname", "yes")):
        context.check_hostname = False
    if query.get("ssl_cert_reqs", "").lower() in ("none", "cert_none", "0"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _is_cut_short(parts: SplitResult) -> bool:
    """Whether a character of the password ended the host part too early, so that the rest looks like a port or a
    path."""
    if "@" in parts.netloc:
        return False
    return "@" in parts.path or "@" in parts.fragment or "@" in parts.query.partition("=")[0]


def _masked(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if "password" in rest.lower():
        rest = "***"
    elif "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + separator + rest
