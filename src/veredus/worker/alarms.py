"""Deadlines of attempts: one timer for all that end about the same time, instead of one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

GRAIN = 0.02
"""Seconds by which an alarm may be late. Timeouts are whole seconds."""
FAR = 1.0
"""Seconds in one slot of those that are far off: nearly all are dismissed before it begins."""


class Alarms(Generic[Item]):
    """Calls `ring` with every item that was not dismissed before its instant. Instants are on the monotonic clock.

    What is due soon waits in a slot one grain wide. What is far off waits in a wide one, which many share, and is put
    into the narrow ones when that begins.
    """

    def __init__(self, ring: Callable[[Item], None]) -> None:
        self._ring = ring
        self._near: dict[int, set[Item]] = {}
        self._far: dict[int, dict[Item, float]] = {}
        self._moved: dict[Item, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._ahead = 0.0  # how far the loop's clock is ahead of the one that instants are on

    def set(self, item: Item, at: float, now: float) -> int:
        """Returns the slot to dismiss it from; those of the wide ones are negative."""
        if at - now < 2 * FAR:
            return self._set_near(item, at, now)
        slot = int(at / FAR)
        items = self._far.get(slot)
        if items is None:
            items = self._far[slot] = {}
            self._ahead = asyncio.get_running_loop().time() - now
            asyncio.get_running_loop().call_later(slot * FAR - now, self._approach, slot)
        items[item] = at
        return -slot

    def dismiss(self, item: Item, slot: int) -> None:
        if slot < 0:
            items = self._far.get(-slot)
            if items is not None:
                items.pop(item, None)
                return
            slot = self._moved.pop(item, 0)
        narrow = self._near.get(slot)
        if narrow is None:
            return
        narrow.discard(item)
        if not narrow:
            del self._near[slot]
            self._timers.pop(slot).cancel()

    def _set_near(self, item: Item, at: float, now: float) -> int:
        slot = int(at / GRAIN) + 1
        items = self._near.get(slot)
        if items is None:
            items = self._near[slot] = set()
            self._timers[slot] = asyncio.get_running_loop().call_later(slot * GRAIN - now, self._fire, slot)
        items.add(item)
        return slot

    def _approach(self, slot: int) -> None:
        now = asyncio.get_running_loop().time() - self._ahead
        for item, at in self._far.pop(slot).items():
            self._moved[item] = self._set_near(item, at, now)

    def _fire(self, slot: int) -> None:
        self._timers.pop(slot, None)
        for item in self._near.pop(slot, ()):
            self._moved.pop(item, None)
            self._ring(item)
