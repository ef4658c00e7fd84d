"""RunningStep: the step of a durable handler in which the current code runs."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar


class RunningStep:
    """One run of one step."""

    __slots__ = ("_notified", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        """The same whenever this step of this run is repeated."""
        self._notified = 0

    def next_notify(self) -> str:
        """The dedupe key of the next notify in this step: a repeated step sends the same ones again."""
        self._notified += 1
        return hashlib.sha1(f"{self.key}:{self._notified}".encode(), usedforsecurity=False).hexdigest()


STEP: ContextVar[RunningStep | None] = ContextVar("veredus_step", default=None)
