"""Which function aggregates a group, when a group is ripe, and how long to wait after a failure."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from veredus.errors import ConfigError
from veredus.model.checks import seconds, whole
from veredus.model.job import Job
from veredus.model.names import check_name

GRACE = 60.0
MAX_BACKOFF = 60.0
MAX_SIZE = 100_000
"""Members of one set: they are read, passed to the function and deleted in one step each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """A declared aggregator: its groups, when they are ripe, and its function. Durations in seconds."""

    pattern: str
    queue: str | None
    """None: every queue that the worker serves."""
    grace: float
    max_delay: float | None
    max_size: int | None
    function: Callable[..., Any]
    decode: Callable[[Job], Any]
    """Makes the function's argument for a member. Raises PayloadError if the payload does not fit."""

    @property
    def is_prefix(self) -> bool:
        return self.pattern.endswith("*")

    def fits(self, queue: str, group: str) -> bool:
        if self.queue is not None and self.queue != queue:
            return False
        return group.startswith(self.pattern[:-1]) if self.is_prefix else group == self.pattern


def check_pattern(pattern: Any) -> str:
    """`digest:42` for one group, `digest:*` for all with that beginning, `*` for all."""
    if not isinstance(pattern, str) or not pattern.strip() or "*" in pattern[:-1]:
        raise ConfigError("pattern", pattern, "a group's name, or a prefix that ends in *")
    return check_name("pattern", pattern)


def check_seconds(name: str, value: Any) -> float:
    """Asynq counts whole seconds and refuses less than one; so does Veredus."""
    return seconds(name, value, least=1)


def check_size(value: Any) -> int:
    return whole("max_size", value, 1, MAX_SIZE)


def find(aggregations: Iterable[Aggregation], queue: str, group: str) -> Aggregation | None:
    """The exact name wins, then the longest prefix; of two equal patterns, the one for this queue only."""
    fitting = [one for one in aggregations if one.fits(queue, group)]
    if not fitting:
        return None
    return max(fitting, key=lambda one: (not one.is_prefix, len(one.pattern), one.queue is not None))


def backoff(failures: int) -> float:
    """Seconds until the next try of a group whose function has failed that many times in a row."""
    return min(MAX_BACKOFF, 2.0 ** min(failures - 1, 10))


def aggregated_id(set_id: str, number: int) -> str:
    """The id of a task made from a set. It is the same whenever the set is aggregated again, so that the task exists
    once."""
    return str(uuid.uuid5(uuid.UUID(set_id), str(number)))


GroupKey = tuple[str, str]
"""Queue and group."""


class Agenda:
    """When to check which group next; efficient for very many groups of which few are due."""

    def __init__(self) -> None:
        self._at: dict[GroupKey, float] = {}
        self._heap: list[tuple[float, GroupKey]] = []

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._at

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: GroupKey, at: float) -> None:
        if self._at.get(key) != at:
            self._at[key] = at
            heapq.heappush(self._heap, (at, key))

    def keep(self, queue: str, groups: set[str]) -> None:
        """Forget the groups of a queue that are no longer there."""
        for key in [key for key in self._at if key[0] == queue and key[1] not in groups]:
            del self._at[key]

    def next(self) -> float | None:
        """When the first group is due."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now: float, most: int) -> list[GroupKey]:
        """Take up to `most` groups that are due, the most overdue first. They are gone from the agenda until put on
        it again."""
        taken: list[GroupKey] = []
        while len(taken) < most:
            self._drop_stale()
            if not self._heap or self._heap[0][0] > now:
                break
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            taken.append(key)
        return taken

    def _drop_stale(self) -> None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
