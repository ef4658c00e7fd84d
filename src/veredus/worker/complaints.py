"""Errors that repeat are told once, then counted: no flood of lines, no silence either."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from veredus.errors import ConnectionLost, NotReady

logger = logging.getLogger("veredus.worker")

INTERVAL = 3.0
FORGET = 10.0
"""Seconds after which somebody who found one of several servers missing and tried no more does not count."""


class Complaints:
    """At most one line per subject in three seconds; an outage is told when it begins and when it ends.

    Of one server, any answer shows that it is there again. Of several (`many_servers`), each subject speaks for itself.
    """

    def __init__(self, *, many_servers: bool = False) -> None:
        self._last: dict[Hashable, tuple[float, int]] = {}
        self._many_servers = many_servers
        self._outage_since = 0.0
        self._missing: dict[Hashable, float] = {}
        """Who found the server missing, and when last."""
        self.outages = 0
        """How often the server was found missing."""

    def error(self, subject: Hashable, text: str, exc: BaseException) -> None:
        if isinstance(exc, ConnectionLost | NotReady):
            self.outage(exc, subject)
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

    def outage(self, exc: BaseException, subject: Hashable = None) -> None:
        self.outages += 1
        self._missing[subject] = time.monotonic()
        if not self._outage_since:
            self._outage_since = time.monotonic()
            logger.error("Redis is not available: %s; trying again until it is", exc)

    def recovered(self, subject: Hashable = None) -> None:
        """Called after a success, with the subject that would have been missing."""
        if not self._outage_since:
            return
        if self._many_servers:
            self._missing.pop(subject, None)
            now = time.monotonic()
            if any(now - at < FORGET for at in self._missing.values()):
                return
        self._missing.clear()
        logger.warning("Redis is available again after %.1f s", time.monotonic() - self._outage_since)
        self._outage_since = 0.0
