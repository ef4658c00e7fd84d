"""Deadlines of attempts: one timer for all that end about the same time, instead of one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

GRAIN = 0.02
"""Seconds by which an alarm may be late. Timeouts are whole seconds."""


class Alarms(Generic[Item]):
    """Calls `ring` with every item that was not dismissed before its instant. Instants are on the monotonic clock."""

    def __init__(self, ring: Callable[[Item], None]) -> None:
        self._ring = ring
        self._due: dict[int, set[Item]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def set(self, item: Item, at: float, now: float) -> int:
        """Returns the slot to dismiss it from."""
        slot = int(at / GRAIN) + 1
        items = self._due.get(slot)
        if items is None:
            items = self._due[slot] = set()
            self._timers[slot] = asyncio.get_running_loop().call_later(slot * GRAIN - now, self._fire, slot)
        items.add(item)
        return slot

    def dismiss(self, item: Item, slot: int) -> None:
        items = self._due.get(slot)
        if items is None:
            return
        items.discard(item)
        if not items:
            del self._due[slot]
            self._timers.pop(slot).cancel()

    def _fire(self, slot: int) -> None:
        self._timers.pop(slot, None)
        for item in self._due.pop(slot, ()):
            self._ring(item)
