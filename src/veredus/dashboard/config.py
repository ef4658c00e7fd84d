"""How a dashboard is set up: who may enter, what they may do, how often it looks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import ConfigError

SHORTEST_TOKEN = 16
_ORIGIN = re.compile(r"https?://[^/\s?#@]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Every field is checked; what is wrong raises ConfigError."""

    token: str = ""
    """What one must know to enter, at least 16 characters; empty: one is made up."""
    read_only: bool = False
    """Refuse whatever changes something."""
    refresh: float = 1.0
    """Seconds between two looks of a page that is open."""
    origins: tuple[str, ...] = ()
    """Other addresses under which browsers know this dashboard, behind a proxy that changes the Host header."""
    generated: bool = False
    """The token was made up here, so somebody has to be told."""

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
            read_only=_flag("read_only", read_only),
            refresh=_seconds("refresh", refresh),
            origins=tuple(origin.lower() for origin in origins),
            generated=token is None,
        )


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(field, value, "True or False")
    return value


def _seconds(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 60:
        raise ConfigError(field, value, "seconds from 0.05 to 60")
    return float(value)
