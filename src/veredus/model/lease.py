"""A lease as the worker knows it: until when a task is ours, shared by the heartbeater's thread and the event loop."""

from __future__ import annotations

import threading


class Lease:
    """Valid until its deadline. Times are monotonic seconds and come in as arguments."""

    __slots__ = ("_event", "_expires_at", "_lock", "_notified")

    def __init__(self, expires_at: float) -> None:
        self._lock = threading.Lock()
        self._expires_at = expires_at
        self._notified = False
        self._event: threading.Event | None = None  # made when somebody asks for it: most leases end unexpired

    def is_valid(self, now: float) -> bool:
        with self._lock:
            return now <= self._expires_at and not self._notified

    def reset(self, expires_at: float, now: float) -> bool:
        """Move the deadline; refused, with False, once the lease has expired."""
        with self._lock:
            if now > self._expires_at or self._notified:
                return False
            self._expires_at = expires_at
            return True

    def revive(self, expires_at: float) -> bool:
        """Redis says that an expired lease is still ours, because nobody claimed it: go on. Refused once notified."""
        with self._lock:
            if self._notified:
                return False
            self._expires_at = expires_at
            return True

    def lose(self, now: float) -> bool:
        """Redis says that somebody else has the task: the lease ends now, whatever time was left."""
        with self._lock:
            self._expires_at = min(self._expires_at, now - 1e-9)
        return self.notify_expiration(now)

    def notify_expiration(self, now: float) -> bool:
        """Tell whoever waits that the lease has expired. True the one time it does; False while it is still valid."""
        with self._lock:
            if now <= self._expires_at or self._notified:
                return False
            self._notified = True
            if self._event is not None:
                self._event.set()
            return True

    @property
    def done(self) -> threading.Event:
        """Set once the expiration was notified."""
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self._notified:
                    self._event.set()
            return self._event

    @property
    def deadline(self) -> float:
        with self._lock:
            return self._expires_at
