"""The way out: settlements are collected for one tick of the loop and written together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.events import Bus, LeaseWasLost
from veredus.model.settlement import Complete, Done, Requeue, Settlement
from veredus.store.batching import in_batches
from veredus.store.work import MOST_BYTES, Work
from veredus.worker.hands import Attempt, Hands

logger = logging.getLogger("veredus.worker")

MAX_ITEMS = 200
LARGE = 256 * 1024
"""Bytes from which batches are written one after the other: on a slow connection, what waits behind them would wait for
all of them."""

Item = tuple[Settlement, Attempt | None]


def _size(item: Item) -> int:
    settlement = item[0]
    if isinstance(settlement, Done | Requeue):
        return 0
    result = settlement.result if isinstance(settlement, Complete) else settlement.traceback
    return len(settlement.message) + len(result or b"")


class Settler:
    """Writes settlements in batches; what Redis refused goes to `keep` (the syncer) as the same values."""

    def __init__(self, work: Work, hands: Hands, bus: Bus, keep: Callable[[str, Sequence[Item]], None]) -> None:
        self.work = work
        self._hands = hands
        self._bus = bus
        self._keep = keep
        self._waiting: dict[tuple[str, type], list[Item]] = {}
        self._scheduled = False
        self._writing: set[asyncio.Task[None]] = set()
        self._large = asyncio.Lock()

    def settle(self, queue: str, settlement: Settlement, attempt: Attempt | None) -> None:
        self._waiting.setdefault((queue, type(settlement)), []).append((settlement, attempt))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._writing

    async def drain(self) -> None:
        """Until everything collected so far was written or handed to the syncer."""
        self._flush()
        while self._writing:
            await asyncio.wait(self._writing)

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, {}
        loop = asyncio.get_running_loop()
        for (queue, kind), items in waiting.items():
            batches = list(in_batches(items, _size, MAX_ITEMS, MOST_BYTES))
            # What goes to the front goes there last first, or the second batch would stand before the first.
            for batch in reversed(batches) if kind is Requeue else batches:
                task = loop.create_task(self._write(queue, batch))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def _write(self, queue: str, items: Sequence[Item]) -> None:
        try:
            if sum(map(_size, items)) < LARGE:
                await self.write(queue, items)
            else:
                async with self._large:
                    await self.write(queue, items)
        except Exception as exc:
            if not isinstance(exc, StoreError):
                logger.exception("settlements of queue %s failed: they are tried again", queue)
            self._keep(queue, items)

    async def write(self, queue: str, items: Sequence[Item], *, first_try: bool = True) -> None:
        """One round trip for settlements of one kind. Raises StoreError; those that hold no longer are only told."""
        lost = await self.work.settle(queue, [settlement for settlement, _ in items])
        for _, attempt in items:
            if attempt is not None:
                self._hands.forget(attempt)
        for position in lost:
            task_id = items[position][0].task_id
            if first_try:  # after a lost reply, "no longer ours" most likely means that our own first try got through
                self.void(queue, task_id)

    def void(self, queue: str, task_id: str) -> None:
        """Tell that an attempt ended for nothing: somebody else has its task."""
        logger.warning("task %s of queue %s was no longer ours: its outcome here is void", task_id, queue)
        self._bus.emit(LeaseWasLost(queue, task_id))
