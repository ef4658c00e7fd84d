"""PeerConfig: the validated settings of a peer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from veredus.errors import ConfigError
from veredus.model.checks import seconds, whole
from veredus.model.delivery import WINDOW_BYTES, WINDOW_MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Durations in seconds."""

    connect_timeout: float = 10.0
    """Time limit for the first welcome, over all attempts, and for each later attempt."""
    give_up_after: float = math.inf
    """Time without a connection after which the session counts as lost."""
    backoff_base: float = 0.2
    """The n-th attempt in a row waits a random part of base * 2^n, in addition to what the gateway asked for."""
    backoff_max: float = 20.0
    window_messages: int = WINDOW_MESSAGES
    """Messages that may be unhandled here; the gateway may allow fewer."""
    window_bytes: int = WINDOW_BYTES
    grace: float = 2.0
    """How long a request waits for its response after its deadline."""
    retries: int = 5
    """How often a request that was rejected as retryable is sent again under its number; 0 means never."""
    close_timeout: float = 2.0
    """Time limit for the closing handshake."""

    def __post_init__(self) -> None:
        for name in ("window_messages", "window_bytes", "retries"):
            whole(name, getattr(self, name), least=0 if name == "retries" else 1)
        for name in ("connect_timeout", "give_up_after", "backoff_base", "backoff_max", "grace", "close_timeout"):
            object.__setattr__(self, name, seconds(name, getattr(self, name), endless=True))
        if self.backoff_max < self.backoff_base:
            raise ConfigError("backoff_max", self.backoff_max, f"at least backoff_base ({self.backoff_base})")

    def backoff(self, failures: int, chance: float, retry_after: float = 0.0) -> float:
        """Seconds before the next attempt, after this many failures in a row; `chance` is random in 0..1."""
        most = min(self.backoff_max, self.backoff_base * 2.0 ** min(failures, 30))
        return retry_after + chance * most
