"""A clock that stands still until the test moves it."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

from veredus.clock import ServerClock
from veredus.errors import ConfigError


class ManualClock(ServerClock):
    """Wall-clock time is the test's; durations (timeouts of handlers) are real, or a hung handler would hang it too."""

    def __init__(self, start: datetime | None = None) -> None:
        super().__init__()
        if start is not None and (not isinstance(start, datetime) or start.tzinfo is None):
            raise ConfigError("start", start, "an aware datetime, such as datetime(2030, 1, 1, tzinfo=UTC)")
        self.now_ms = math.ceil((time.time() if start is None else start.timestamp()) * 1000)

    def time(self) -> float:
        return self.now_ms / 1000

    @property
    def now(self) -> datetime:
        """The instant as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def observe(self, server_seconds: float, before: float, after: float) -> None:
        """No server knows this time better."""
