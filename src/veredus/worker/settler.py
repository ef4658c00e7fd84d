"""Settler: collects settlements during one iteration of the event loop and writes them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.events import Bus, LeaseWasLost
from veredus.handlers.durable_run import DurableRun
from veredus.handlers.fan_out import is_over, release
from veredus.model.backoff import Backoff
from veredus.model.settlement import Complete, Done, Park, Requeue, Settlement
from veredus.store.connection.batching import in_batches
from veredus.store.tasks.work import MOST_BYTES, Work
from veredus.worker.attempt import Attempt, InFlight

logger = logging.getLogger("veredus.worker")

MAX_ITEMS = 200
LARGE = 256 * 1024
"""Bytes from which batches are written one at a time, so that other calls on a slow connection can go in between."""

RELEASE_TRIES = 5
"""Further tries to delete what the children of a task have left, some two seconds in all."""

Item = tuple[Settlement, Attempt | None]


def _size(item: Item) -> int:
    settlement = item[0]
    if isinstance(settlement, Done | Park):
        return 0
    if isinstance(settlement, Requeue):
        return len(settlement.attempt)
    result = settlement.result if isinstance(settlement, Complete) else settlement.traceback
    return len(settlement.message) + len(result or b"") + len(settlement.attempt)


class Settler:
    """Passes settlements that Redis refused to `keep`, which is the syncer's."""

    def __init__(self, work: Work, in_flight: InFlight, bus: Bus, keep: Callable[[str, Sequence[Item]], None]) -> None:
        self.work = work
        self.in_flight = in_flight
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
        """Wait until all settlements are written or passed to the syncer."""
        self._flush()
        while self._writing:
            await asyncio.wait(self._writing)

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, {}
        loop = asyncio.get_running_loop()
        for (queue, kind), items in waiting.items():
            batches = list(in_batches(items, _size, MAX_ITEMS, MOST_BYTES))
            # Requeued tasks go to the front of the queue, so the last batch must be written first.
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
        except Exception as exc:  # whatever it is, no settlement may be lost
            if not isinstance(exc, StoreError):
                logger.exception("settlements of queue %s failed and are retried", queue)
            self._keep(queue, items)

    async def write(self, queue: str, items: Sequence[Item], *, first_try: bool = True) -> None:
        """Write settlements of one kind in one round trip. Raises StoreError. Lost leases are only reported."""
        lost = await self.work.settle(queue, [settlement for settlement, _ in items])
        for _, attempt in items:
            if attempt is not None:
                self.in_flight.forget(attempt)
        if isinstance(items[0][0], Done | Complete):
            self._release_children([attempt for _, attempt in items], set(lost))
        for position in lost:
            task_id = items[position][0].task_id
            if first_try:  # later, a lost lease most likely means that an earlier try was executed
                self.void(queue, task_id)

    def _release_children(self, attempts: Sequence[Attempt | None], lost: set[int]) -> None:
        """These have ended well: what their children left is deleted, in the background. Those at the positions in
        `lost` were not settled now: an earlier try may have been executed, or another worker runs the task."""
        for position, attempt in enumerate(attempts):
            durable = None if attempt is None else attempt.context.durable
            if durable is not None and durable.fan_outs:
                task = asyncio.get_running_loop().create_task(self._release(durable, position not in lost))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def _release(self, durable: DurableRun, has_ended: bool) -> None:
        backoff = Backoff()
        for tries_left in range(RELEASE_TRIES, -1, -1):
            try:
                if has_ended or await is_over(durable):
                    await release(durable)
                return
            except StoreError as exc:
                if not tries_left:
                    logger.info("children of task %s are kept until their retention ends: %s", durable.job.id, exc)
                    return
                await asyncio.sleep(backoff.take())

    def void(self, queue: str, task_id: str) -> None:
        """Report an attempt whose task another worker owns now."""
        logger.warning("task %s of queue %s has another owner: its outcome here is discarded", task_id, queue)
        self._bus.emit(LeaseWasLost(queue, task_id))
