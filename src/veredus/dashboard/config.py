"""Configuration of a dashboard."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from veredus.errors import ConfigError
from veredus.model.checks import flag, seconds

SHORTEST_TOKEN = 16
_ORIGIN = re.compile(r"https?://[^/\s?#@]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Every field is checked; a wrong value raises ConfigError."""

    token: str = ""
    """The secret for logging in, at least 16 characters. A random one is generated if it is not given."""
    read_only: bool = False
    """Refuse all changes."""
    refresh: float = 1.0
    """Seconds between two updates of an open page."""
    origins: tuple[str, ...] = ()
    """Addresses that browsers use if a proxy changes the Host header."""
    generated: bool = False
    """The token was generated and has to be shown to the user."""

    @classmethod
    def make(
        cls, *, token: str | None = None, read_only: bool = False, refresh: float = 1.0, origins: Sequence[str] = ()
    ) -> DashboardConfig:
        if token is not None and (not isinstance(token, str) or len(token) < SHORTEST_TOKEN or not token.isprintable()):
            raise ConfigError("token", "(hidden)", f"a text of at least {SHORTEST_TOKEN} printable characters")
        if isinstance(origins, str):
            origins = (origins,)
        for origin in origins:
            if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
                raise ConfigError("origins", origin, "addresses like https://ops.example.com, without a path")
        return cls(
            token=token or secrets.token_urlsafe(24),
            read_only=flag("read_only", read_only),
            refresh=seconds("refresh", refresh, least=0.05, most=60),
            origins=tuple(origin.lower() for origin in origins),
            generated=token is None,
        )
