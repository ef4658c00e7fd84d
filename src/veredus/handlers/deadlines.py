"""Deadlines: one timer for all attempts that end at about the same time, instead of one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

GRAIN = 0.02
"""Seconds by which a deadline may fire late. Timeouts are whole seconds."""
FAR = 1.0
"""Seconds in one slot of distant deadlines. Nearly all are dismissed before their slot begins."""


class Deadlines(Generic[Item]):
    """Calls `on_due` with every item that was not dismissed before its time, on the monotonic clock.

    Items that are due soon are in slots of GRAIN seconds. Distant items are in slots of FAR seconds, and move to the
    small ones when their slot begins.
    """

    def __init__(self, on_due: Callable[[Item], None]) -> None:
        self._on_due = on_due
        self._near: dict[int, set[Item]] = {}
        self._far: dict[int, dict[Item, float]] = {}
        self._moved: dict[Item, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """By slot; those of distant slots by its negative."""
        self._ahead = 0.0  # the loop's clock minus the monotonic clock

    def set(self, item: Item, at: float, now: float) -> int:
        """Returns the slot to dismiss it from; negative for a distant one."""
        if at - now < 2 * FAR:
            return self._set_near(item, at, now)
        slot = int(at / FAR)
        items = self._far.get(slot)
        if items is None:
            items = self._far[slot] = {}
            self._ahead = asyncio.get_running_loop().time() - now
            self._timers[-slot] = asyncio.get_running_loop().call_later(slot * FAR - now, self._approach, slot)
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

    def close(self) -> None:
        """Nothing is due any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._near.clear()
        self._far.clear()
        self._moved.clear()

    def _set_near(self, item: Item, at: float, now: float) -> int:
        slot = int(at / GRAIN) + 1
        items = self._near.get(slot)
        if items is None:
            items = self._near[slot] = set()
            self._timers[slot] = asyncio.get_running_loop().call_later(slot * GRAIN - now, self._fire, slot)
        items.add(item)
        return slot

    def _approach(self, slot: int) -> None:
        self._timers.pop(-slot, None)
        now = asyncio.get_running_loop().time() - self._ahead
        for item, at in self._far.pop(slot).items():
            self._moved[item] = self._set_near(item, at, now)

    def _fire(self, slot: int) -> None:
        self._timers.pop(slot, None)
        for item in self._near.pop(slot, ()):
            self._moved.pop(item, None)
            self._on_due(item)
