"""TimerWheel: one timer for many items, kept in slots of a fraction of a second."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")


class TimerWheel(Generic[T]):
    """`due` returns the items whose time has come, at most one slot late. All times are of one monotonic clock."""

    def __init__(self, slot: float, now: float) -> None:
        self.slot = slot
        self._slots: dict[int, dict[T, None]] = {}
        self._done = math.floor(now / slot)

    def put(self, item: T, at: float) -> int:
        """Add an item. Returns its slot, which `take` needs."""
        number = max(math.ceil(at / self.slot), self._done + 1)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
        slot[item] = None
        return number

    def take(self, item: T, number: int) -> bool:
        """Remove an item from its slot. Returns False if it has become due."""
        slot = self._slots.get(number)
        if slot is None or item not in slot:
            return False
        del slot[item]
        if not slot:
            del self._slots[number]
        return True

    def due(self, now: float) -> list[T]:
        reached = math.floor(now / self.slot)
        found: list[T] = []
        if reached - self._done > len(self._slots):  # after a long pause, visit the existing slots only
            for number in sorted(number for number in self._slots if number <= reached):
                found += self._slots.pop(number)
        else:
            for number in range(self._done + 1, reached + 1):
                found += self._slots.pop(number, ())
        self._done = max(self._done, reached)
        return found

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())
