"""Which workers are dead: they were subscribed to their channels, and have been missing for a while without a sign of
life."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PATIENCE = 2.0
"""Seconds for which a worker must be missing. A living one that has lost its connections notices that at once."""
INTERVAL = 0.5
"""Seconds between two looks."""
SLACK = 2.0
"""A look that is later than expected by more seconds means that this process or the server has stood still."""
LEAST_LOOKS = 3
"""A worker must be missing in this many consecutive looks."""
MASS = 4
"""If several workers are missing, more than one in this many, the network is the more likely cause."""


class Sign(NamedTuple):
    """What one look shows of a worker."""

    life: int
    """Changes with each of its heartbeats."""
    subscribers: int
    """How many of its connections are open."""


@dataclass(slots=True)
class Absence:
    since_ms: int
    """The server's time."""
    life: int
    looks: int = 1


class Absences:
    """What one worker that looks for dead ones knows of the others. Time is an argument: `at` is the monotonic clock.

    Only a worker that was seen subscribed here can be missing: one of an earlier version, of Go, or whose user may not
    subscribe never is. After a disturbance no worker is found dead for one lease, and each must be seen again. A
    disturbance is a restart of the server or a failover (this worker has lost its own connections too), a standstill,
    or many workers missing at once."""

    def __init__(self, own: str, *, calm: float, idle: float) -> None:
        self._own = own
        self._calm = calm
        self._idle = idle
        self._seen: set[str] = set()
        self._missing: dict[str, Absence] = {}
        self._calm_until = -math.inf
        self._last: tuple[int, float] | None = None
        """The server's time and ours at the last look."""
        self.pause = idle
        """Seconds until the next look: longer if no other worker is known."""

    def look(self, now_ms: int, at: float, signs: Mapping[str, Sign], *, was_cut_off: bool = False) -> list[str]:
        """The workers that are dead. `was_cut_off`: this worker has lost its own connections since the last look."""
        if self._own not in signs:
            if self._last is not None:  # else it has not begun: on a cluster its first record may come later
                self.stop(at)
            return []
        late = self.pause + SLACK
        if was_cut_off or signs[self._own].subscribers < 1:
            self._forget(at)
        elif self._last is not None:
            last_ms, last_at = self._last
            if at - last_at > late or not 0 <= now_ms - last_ms <= late * 1000:
                self._forget(at)
        self._last = now_ms, at
        self._note(now_ms, signs)
        if len(self._missing) > 1 and len(self._missing) * MASS > len(self._seen):
            self._forget(at)
        self.pause = self._next_pause(now_ms)
        if at < self._calm_until:
            return []
        return [
            worker
            for worker, absence in self._missing.items()
            if now_ms - absence.since_ms >= PATIENCE * 1000 and absence.looks >= LEAST_LOOKS
        ]

    def stop(self, at: float) -> None:
        """This worker no longer looks. If it starts again within one lease, it finds no worker dead until then."""
        self._forget(at)
        self._last, self.pause = None, self._idle

    def is_over(self, worker: str) -> None:
        """The tasks of a dead worker have been recovered: it is no longer looked for."""
        self._seen.discard(worker)
        self._missing.pop(worker, None)

    def _note(self, now_ms: int, signs: Mapping[str, Sign]) -> None:
        self._seen.intersection_update(signs)  # the others have stopped in an orderly way
        for worker, sign in signs.items():
            if sign.subscribers:
                self._seen.add(worker)
        here = {worker for worker in self._seen if signs[worker].subscribers}
        missing = self._seen - here
        self._missing = {worker: one for worker, one in self._missing.items() if worker in missing}
        for worker in missing:
            absence, life = self._missing.get(worker), signs[worker].life
            if absence is None or absence.life != life:
                self._missing[worker] = Absence(now_ms, life)
            else:
                absence.looks += 1

    def _next_pause(self, now_ms: int) -> float:
        if len(self._seen) < 2:
            return self._idle
        verdicts = [absence.since_ms / 1000 + PATIENCE - now_ms / 1000 for absence in self._missing.values()]
        return min([INTERVAL, *[seconds for seconds in verdicts if seconds > 0]])

    def _forget(self, at: float) -> None:
        self._seen.clear()
        self._missing.clear()
        self._calm_until = at + self._calm
