"""Configuration of a dashboard."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from veredus.errors import ConfigError
from veredus.model.checks import flag, seconds
from veredus.model.hosts import is_address

Access = Callable[[Request], "str | Awaitable[str | None] | None"]
"""What the mounting app lets a request do: "full", "view", or None to ask for a token."""

SHORTEST_TOKEN = 16
_ORIGIN = re.compile(r"https?://[^/\s?#@]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Every field is checked; a wrong value raises ConfigError."""

    token: str = ""
    """The secret for logging in, at least 16 characters. A random one is generated if it is not given."""
    viewer_token: str = ""
    """A second secret, for viewers: they see no payloads and no results, and change nothing. Empty for none."""
    access: Access | None = None
    """Replaces the login where it answers."""
    read_only: bool = False
    """Refuse all changes."""
    refresh: float = 1.0
    """Seconds between two updates of an open page."""
    origins: tuple[str, ...] = ()
    """Addresses that browsers use if a proxy changes the Host header."""
    hosts: tuple[str, ...] = ()
    """Names that the Host header may have, beside IP addresses, localhost and those of `origins`. Empty for all."""
    generated: bool = False
    """The token was generated and has to be shown to the user."""

    @classmethod
    def make(
        cls,
        *,
        token: str | None = None,
        viewer_token: str | None = None,
        access: Access | None = None,
        read_only: bool = False,
        refresh: float = 1.0,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> DashboardConfig:
        for name, value in (("token", token), ("viewer_token", viewer_token)):
            if value is not None and (
                not isinstance(value, str) or len(value) < SHORTEST_TOKEN or not value.isprintable()
            ):
                raise ConfigError(name, "(hidden)", f"a text of at least {SHORTEST_TOKEN} printable characters")
        if viewer_token is not None and viewer_token == token:
            raise ConfigError("viewer_token", "(hidden)", "another text than the token")
        if access is not None and not callable(access):
            raise ConfigError("access", access, 'a function of the request that returns "full", "view" or None')
        if isinstance(origins, str):
            origins = (origins,)
        for origin in origins:
            if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
                raise ConfigError("origins", origin, "addresses like https://ops.example.com, without a path")
        return cls(
            token=token or secrets.token_urlsafe(24),
            viewer_token=viewer_token or "",
            access=access,
            read_only=flag("read_only", read_only),
            refresh=seconds("refresh", refresh, least=0.05, most=60),
            origins=tuple(origin.lower() for origin in origins),
            hosts=tuple(host.lower() for host in hosts),
            generated=token is None,
        )

    def allows_host(self, header: str) -> bool:
        """Whether a request may have this Host header. A page that makes its own name point to this machine has a name
        that is not ours, while nobody can point an IP address elsewhere."""
        if not self.hosts:
            return True
        name = (urlsplit(f"//{header}").hostname or "") if not re.search(r"[/?#@\\]", header) else ""
        known = {*self.hosts, *(urlsplit(origin).hostname for origin in self.origins)}
        return is_address(name) or name.endswith(".localhost") or name in known
