"""Errors that repeat are told once, then counted: no flood of lines, no silence either."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from veredus.errors import ConnectionLost, NotReady

logger = logging.getLogger("veredus.worker")

INTERVAL = 3.0


class Complaints:
    """At most one line per subject in three seconds; an outage is told when it begins and when it ends."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, int]] = {}
        self._outage_since = 0.0
        self.outages = 0
        """How often the server was found missing."""

    def error(self, subject: Hashable, text: str, exc: BaseException) -> None:
        if isinstance(exc, ConnectionLost | NotReady):
            self.outage(exc)
            return
        self.say(subject, f"{text}: {exc}", logging.ERROR)

    def say(self, subject: Hashable, text: str, level: int = logging.WARNING) -> None:
        now = time.monotonic()
        last, suppressed = self._last.get(subject, (-INTERVAL, 0))
        if now - last < INTERVAL:
            self._last[subject] = (last, suppressed + 1)
            return
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[subject] = (now, 0)
        logger.log(level, "%s%s", text, f" ({suppressed} more like this)" if suppressed else "")

    def outage(self, exc: BaseException) -> None:
        self.outages += 1
        if not self._outage_since:
            self._outage_since = time.monotonic()
            logger.error("Redis is not available: %s; trying again until it is", exc)

    def recovered(self) -> None:
        """Called after a success."""
        if self._outage_since:
            logger.warning("Redis is available again after %.1f s", time.monotonic() - self._outage_since)
            self._outage_since = 0.0
