"""The pools that run handlers, their free slots, and how far each pool has looked into a queue."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

POOLS = ("loop", "thread", "process")
"""In the order in which scripts number them, starting at 1."""
CUT_LOOKS = 100
"""Looks at the front that end before they have seen all of it, until the whole queue is looked at anew."""


class FreeSlots(NamedTuple):
    """How many more handlers each pool can start."""

    loop: int = 0
    thread: int = 0
    process: int = 0

    def at_most(self, number: int) -> FreeSlots:
        return FreeSlots(min(self.loop, number), min(self.thread, number), min(self.process, number))

    def less(self, number: int) -> FreeSlots:
        """The room that remains if `kept` slots stay free, of any pool."""
        return FreeSlots(*[max(0, room - number) for room in self])

    def only(self, places: Container[int]) -> FreeSlots:
        """The room of some pools, by position; none in the others."""
        return FreeSlots(*[room if place in places else 0 for place, room in enumerate(self)])


class ScanPosition(NamedTuple):
    """Where to look in a queue, and for which pools."""

    rooms: FreeSlots
    cursor: str = ""
    """A task that was passed over before: look behind it. Empty for the front of the queue."""
    again: bool = False
    """Look at the front once more, where requeued tasks are put. The cursors do not move."""


class QueueScan:
    """How far into one queue a worker has looked, for each pool.

    While the next tasks of a queue can all be started, nothing is remembered here. A task is passed over, and stays
    where it is, if the worker has no handler for it or its pool is full. Each pool goes on behind it, so that no task
    is examined again and again. A task that arrives in a non-empty queue wakes nobody: a pool that has seen the whole
    queue looks again after `arrivals`.
    """

    def __init__(self) -> None:
        self._cursors = [""] * len(POOLS)
        self._at_end: set[int] = set()
        self._look_at_front = False
        self._cut_looks = 0
        self._order = list(range(len(POOLS)))
        """The pool that looked longest ago comes first."""

    def next(self, rooms: FreeSlots) -> ScanPosition | None:
        """The next look of the pools that have room and have not seen the whole queue, as far as they start at the
        same place. None if there is nothing to look for."""
        if self._look_at_front:
            return ScanPosition(rooms, again=True) if any(rooms) else None
        able = [place for place in self._order if rooms[place] > 0 and place not in self._at_end]
        if not able:
            return None
        cursor = self._cursors[able[0]]
        return ScanPosition(rooms.only([place for place in able if self._cursors[place] == cursor]), cursor)

    def answered(self, look: ScanPosition, cursors: Sequence[str], taken: int, behind: int) -> None:
        """This look took `taken` tasks, and ended with these cursors and `behind` tasks behind the last one
        examined."""
        if not cursors:
            return
        if look.again:
            self._look_at_front = taken > 0
            if taken == 0 and behind > 0:  # more tasks than one look passes over: what they hide is found later
                self._cut_looks += 1
                if self._cut_looks >= CUT_LOOKS:
                    self.start_over()
            return
        places = [place for place, room in enumerate(look.rooms) if room > 0]
        for place in places:
            self._cursors[place] = cursors[place]
            self._order.remove(place)
            self._order.append(place)
        if any(self._cursors) and taken == 0 and behind == 0:
            self._at_end.update(places)

    @property
    def is_at_end(self) -> bool:
        """Whether a pool has seen the whole queue and waits for arrivals."""
        return bool(self._at_end)

    def arrivals(self, *, at_front: bool) -> None:
        """There may be new tasks at the end of the queue and, from time to time, at its front."""
        self._at_end.clear()
        self._look_at_front = at_front

    def start_over(self) -> None:
        """Look at the whole queue again: it was empty, so that no task that was passed over is left, or what hides
        tasks at its front may be gone."""
        self.__init__()  # type: ignore[misc]
