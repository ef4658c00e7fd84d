"""Where handlers run, how much room there is, and how far into a queue each pool has looked for something to start."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

POOLS = ("loop", "thread", "process")
"""In the order in which the scripts number them, from 1."""


class Rooms(NamedTuple):
    """How many more handlers each pool can start."""

    loop: int = 0
    thread: int = 0
    process: int = 0

    def at_most(self, number: int) -> Rooms:
        return Rooms(min(self.loop, number), min(self.thread, number), min(self.process, number))

    def less(self, number: int) -> Rooms:
        """What is left when so many are kept free, of whatever pool."""
        return Rooms(*[max(0, room - number) for room in self])

    def only(self, places: Container[int]) -> Rooms:
        """The room of some pools, by position; none in the others."""
        return Rooms(*[room if place in places else 0 for place, room in enumerate(self)])


class Look(NamedTuple):
    """Where to look in a queue, and for which pools."""

    rooms: Rooms
    cursor: str = ""
    """A task that was passed over before: look behind it. Empty for the front of the queue."""
    again: bool = False
    """Once more at the front, where tasks are put that somebody gave back: the cursors stay where they are."""


class Progress:
    """How far into one queue a worker has looked, for each pool.

    While the next tasks of a queue can all be started, nothing is remembered here. A task that is passed over, because
    the worker has no handler for it or its pool is full, stays where it is; each pool goes on behind it, so that no
    task is looked at again and again. What arrives while a queue is not empty wakes nobody: a pool that has seen the
    whole queue looks again after `arrivals`.
    """

    def __init__(self) -> None:
        self._cursors = [""] * len(POOLS)
        self._at_end: set[int] = set()
        self._look_at_front = False
        self._order = list(range(len(POOLS)))
        """The pool that looked longest ago comes first."""

    def next(self, rooms: Rooms) -> Look | None:
        """The next look of those pools that have room and have not seen the whole queue, as far as they begin at the
        same place. None if there is nothing to look for."""
        if self._look_at_front:
            return Look(rooms, again=True) if any(rooms) else None
        able = [place for place in self._order if rooms[place] > 0 and place not in self._at_end]
        if not able:
            return None
        cursor = self._cursors[able[0]]
        return Look(rooms.only([place for place in able if self._cursors[place] == cursor]), cursor)

    def answered(self, look: Look, cursors: Sequence[str], taken: int, behind: int) -> None:
        """This look took so many tasks, and ended with these cursors and so many tasks behind the last one seen."""
        if not cursors:
            return
        if look.again:
            self._look_at_front = taken > 0
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
        """Whether some pool has seen the whole queue and waits for arrivals."""
        return bool(self._at_end)

    def arrivals(self, *, at_front: bool) -> None:
        """There may be new tasks at the end of the queue, and from time to time also at its front."""
        self._at_end.clear()
        self._look_at_front = at_front

    def start_over(self) -> None:
        """The queue was empty: nothing that was passed over is left."""
        self.__init__()  # type: ignore[misc]
