"""Logs a repeated error once, then counts it. Logs an outage of Redis when it begins and when it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable

from veredus.errors import ConnectionLost, NotReady, ServerFull

logger = logging.getLogger("veredus.worker")

INTERVAL = 3.0
"""Seconds between the first two lines about a subject; doubles from line to line."""
LONGEST = 600.0
FORGET = 10.0
"""Seconds after which a failed caller that has not tried again is ignored."""
QUIET = 1.0
"""Seconds with answers and without a failure before an outage counts as over. A server that comes back may drop
connections again, and a call that began before may still run out of time."""
OUTAGES = (ConnectionLost, NotReady, ServerFull)
"""Errors that the caller did not cause: the same call works once the server does."""
OWN_CONNECTION = ("heartbeat", "subscribe", "watch")
"""Subjects with their own connection: a reply on another connection does not show that theirs works."""


class OutageLog:
    """Logs an error that goes on at growing intervals. Shared by the event loop and the heartbeater's thread.

    After a lost connection, the first reply to any caller shows that the server is back. A server that refuses calls
    (its disk or memory is full, it is loading, it is a replica, it has too many clients) still answers other calls: the
    outage ends when the refused callers succeed. The same holds for each of several servers (`many_servers`).

    An outage ends once there have been answers and no failures for a second, so that short interruptions count as one.
    """

    def __init__(self, *, many_servers: bool = False) -> None:
        self._last: dict[Hashable, tuple[float, int, float]] = {}
        """For each subject: when it was last logged, how many lines were suppressed since, and the current interval."""
        self._many_servers = many_servers
        self._outage_since = self._answered_at = 0.0
        self._failed: dict[Hashable, tuple[float, bool]] = {}
        """For each failed caller: when it last failed, and whether a reply to any caller shows that the server is
        back."""
        self.count = 0
        """How many calls have failed because the server was not available."""
        self._lock = threading.Lock()

    def error(self, subject: Hashable, text: str, exc: BaseException) -> None:
        if isinstance(exc, OUTAGES):
            self.outage(exc, subject)
            return
        self.log(subject, f"{text}: {exc}", logging.ERROR)

    def log(self, subject: Hashable, text: str, level: int = logging.WARNING, exc: BaseException | None = None) -> None:
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
            self.count += 1
            self._failed[subject] = (now, was_lost)
            self._answered_at = 0.0
            if self._outage_since:
                return
            self._outage_since = now
        logger.error("Redis is not available: %s; trying again until it is", exc)

    def recovered(self, subject: Hashable = None) -> None:
        """Call it after a success, with the subject that `outage` would get."""
        if not self._outage_since:
            return
        now = time.monotonic()
        with self._lock:
            self._failed.pop(subject, None)
            if any(now - at < FORGET and not was_lost for at, was_lost in self._failed.values()):
                return
            self._answered_at = self._answered_at or now
            if now - self._answered_at < QUIET:  # each failure takes the first answer back
                return
            self._failed.clear()
            since, self._outage_since = self._outage_since, 0.0
        if since:  # otherwise another thread was first
            logger.warning("Redis is available again after %.1f s", self._answered_at - since)
