"""How long to wait before the next try of a call that failed."""

from __future__ import annotations

import random


class Backoff:
    """Each pause is twice as long as the one before, up to `longest` seconds, with jitter so that callers spread
    out."""

    def __init__(self, first: float = 0.05, longest: float = 1.0) -> None:
        self.next = first
        """Seconds until the next try, on average."""
        self._longest = longest

    def take(self) -> float:
        """Return the pause to make now."""
        pause, self.next = self.next, min(self.next * 2, self._longest)
        return pause * random.uniform(0.5, 1.5)
