"""A peer's settings: frozen and validated."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from veredus.errors import ConfigError
from veredus.model.delivery import WINDOW_BYTES, WINDOW_MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Durations in seconds."""

    connect_timeout: float = 10.0
    """For the first welcome, with as many attempts as fit; and for each later attempt."""
    give_up_after: float = math.inf
    """Seconds without any connection after which the session counts as lost."""
    backoff_base: float = 0.2
    """The n-th attempt in a row waits a random part of base * 2^n, on top of what the gateway asked for."""
    backoff_max: float = 20.0
    window_messages: int = WINDOW_MESSAGES
    """So many messages may be unhandled here; the gateway may allow less."""
    window_bytes: int = WINDOW_BYTES
    grace: float = 2.0
    """Seconds that a request waits for its answer beyond its deadline."""
    retries: int = 5
    """So often a request is sent again, under its number, that was rejected as retryable; 0 for never."""
    close_timeout: float = 2.0
    """For saying goodbye."""

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if known.name == "retries":
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise ConfigError(known.name, value, "a whole number of at least 0")
                continue
            whole = known.name.startswith("window")
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not value > 0:
                raise ConfigError(known.name, value, "a whole number above 0" if whole else "seconds above 0")
        if self.backoff_max < self.backoff_base:
            raise ConfigError("backoff_max", self.backoff_max, f"at least backoff_base ({self.backoff_base})")

    def backoff(self, failures: int, chance: float, retry_after: float = 0.0) -> float:
        """Seconds before the next attempt after so many failures in a row; `chance` is random in 0..1."""
        most = min(self.backoff_max, self.backoff_base * 2.0 ** min(failures, 30))
        return retry_after + chance * most
