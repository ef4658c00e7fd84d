"""Errors that repeat are told once, then counted: no flood of lines, no silence either."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable

from veredus.errors import ConnectionLost, NotReady, ServerFull

logger = logging.getLogger("veredus.worker")

INTERVAL = 3.0
"""Seconds between the first two lines about a subject; from line to line it doubles."""
LONGEST = 600.0
FORGET = 10.0
"""Seconds after which somebody who was refused, or found one of several servers missing, and tried no more does not
count."""
CALM = 1.0
"""Seconds without a failure after which an outage is over. A server that comes back may cut some off once more."""
OUTAGES = (ConnectionLost, NotReady, ServerFull)
"""Errors that are not the fault of whoever called: trying again helps once the server is well."""
OWN_CONNECTION = ("heartbeat", "subscribe", "watch")
"""Subjects with connections of their own: an answer on another one does not show that theirs work."""


class Complaints:
    """What goes on is told less and less often; an outage is told when it begins and when it ends.

    A server that was away is back with the first answer that anybody gets. A server that is there but refuses (its disk
    or its memory is full, it is loading, a replica, or has too many clients) answers others all the same: the outage
    ends when those succeed whom it refused. So it is with each of several servers (`many_servers`). The event loop and
    the heartbeater's thread share one.

    It is told as over once nobody has failed for a second: what flickers is one outage.
    """

    def __init__(self, *, many_servers: bool = False) -> None:
        self._last: dict[Hashable, tuple[float, int, float]] = {}
        """Of each subject: when it was told last, how often not since then, and for how long it is not told again."""
        self._many_servers = many_servers
        self._outage_since = self._failed_at = self._answered_at = 0.0
        self._missing: dict[Hashable, tuple[float, bool]] = {}
        """Who found the server missing, when last, and whether an answer to anybody shows that it is back."""
        self.outages = 0
        """How often the server was found missing."""
        self._lock = threading.Lock()

    def error(self, subject: Hashable, text: str, exc: BaseException) -> None:
        if isinstance(exc, OUTAGES):
            self.outage(exc, subject)
            return
        self.say(subject, f"{text}: {exc}", logging.ERROR)

    def say(self, subject: Hashable, text: str, level: int = logging.WARNING, exc: BaseException | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            last, suppressed, interval = self._last.get(subject, (-INTERVAL, 0, INTERVAL))
            if now - last < interval:
                self._last[subject] = (last, suppressed + 1, interval)
                return
            if len(self._last) > 10_000:
                self._last.clear()
            self._last[subject] = (now, 0, min(2 * interval, LONGEST) if suppressed else INTERVAL)
        logger.log(level, "%s%s", text, f" ({suppressed} more like this)" if suppressed else "", exc_info=exc)

    def outage(self, exc: BaseException, subject: Hashable = None) -> None:
        now = time.monotonic()
        kind = subject[0] if isinstance(subject, tuple) else subject
        was_lost = isinstance(exc, ConnectionLost) and not self._many_servers and kind not in OWN_CONNECTION
        with self._lock:
            self.outages += 1
            self._missing[subject] = (now, was_lost)
            self._failed_at, self._answered_at = now, 0.0
            if self._outage_since:
                return
            self._outage_since = now
        logger.error("Redis is not available: %s; trying again until it is", exc)

    def recovered(self, subject: Hashable = None) -> None:
        """Called after a success, with the subject that would have been missing."""
        if not self._outage_since:
            return
        now = time.monotonic()
        with self._lock:
            self._missing.pop(subject, None)
            if any(now - at < FORGET and not was_lost for at, was_lost in self._missing.values()):
                return
            self._answered_at = self._answered_at or now
            if now - self._failed_at < CALM:
                return
            self._missing.clear()
            since, self._outage_since = self._outage_since, 0.0
        if since:  # else another thread was first
            logger.warning("Redis is available again after %.1f s", self._answered_at - since)
