"""Forwarder: moves due tasks to pending, to the millisecond. Sleeps until the next due time or a wake-up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.events import Bus, Forwarded, ItemDropped
from veredus.process.outage_log import OUTAGES, OutageLog
from veredus.store.tasks.delays import Delays
from veredus.worker.alarm import Alarm
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

UNKNOWN = 1e-9
"""In place of the next time: look now whether anything waits in the queue."""


class Forwarder(Role):
    name = "forwarder"

    def __init__(
        self,
        delays: Delays,
        queues: Sequence[str],
        interval: float,
        outages: OutageLog,
        bus: Bus,
        on_work: Callable[[str], None],
    ) -> None:
        super().__init__(interval, outages)
        self._delays = delays
        self._bus = bus
        self._on_work = on_work
        self._wake = asyncio.Event()
        self._next_at = dict.fromkeys(queues, UNKNOWN)
        """When to forward each queue next, on the monotonic clock. 0 for a queue in which a task is due."""
        self._due = dict.fromkeys(queues, False)
        """Whether a task is known to be due at that time."""
        self._pending: set[str] = set()
        """Queues whose server has not answered yet."""
        self._calls: set[asyncio.Task[None]] = set()

    def wake(self, queue: str | None) -> None:
        """A new task is due earlier than expected; None if a wake-up of any queue may have been lost."""
        if queue is None:
            self._next_at.update(dict.fromkeys(self._next_at, UNKNOWN))
        else:
            self._next_at[queue] = 0.0
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        alarm = Alarm(self._wake.set)
        try:
            await self._run(alarm)
        finally:
            alarm.close()
            for call in self._calls:
                call.cancel()

    async def _run(self, alarm: Alarm) -> None:
        while not self.stopping.is_set():
            self._wake.clear()
            now = time.monotonic()
            due = [queue for queue, at in self._next_at.items() if at <= now and queue not in self._pending]
            if due and self._delays.one_server:
                await self._forward(await self._narrow(due))
            elif due:
                self._forward_each(self._delays.by_server(due))
            free = [at for queue, at in self._next_at.items() if queue not in self._pending]
            wait = min(free) - time.monotonic() if free else self.interval
            if wait > 0:
                alarm.set(wait)
                await self._wake.wait()
                alarm.cancel()

    async def _narrow(self, queues: Sequence[str]) -> list[str]:
        """Without those in which nothing is known to be due, and nothing waits at all."""
        unsure = [queue for queue in queues if self._next_at[queue] > 0 and not self._due[queue]]
        seen = {queue: self._next_at[queue] for queue in unsure}
        empty = set(unsure).difference(await self._delays.find_waiting(unsure))
        next_at = time.monotonic() + self.interval
        for queue in empty:
            if self._next_at[queue] == seen[queue]:  # else a task has come since
                self._next_at[queue] = next_at
        return [queue for queue in queues if queue not in empty]

    def _forward_each(self, parts: Sequence[Sequence[str]]) -> None:
        """One call per server: a server that hangs delays only its own queues."""
        for part in parts:
            self._pending.update(part)
            call = asyncio.create_task(self._forward(part))
            self._calls.add(call)
            call.add_done_callback(lambda done, part=part: self._call_ended(done, part))  # type: ignore[misc]

    def _call_ended(self, call: asyncio.Task[None], part: Sequence[str]) -> None:
        self._calls.discard(call)
        self._pending.difference_update(part)
        if not call.cancelled() and call.exception() is not None:
            logger.error("forwarding %s failed", ", ".join(part), exc_info=call.exception())
            self._next_at.update(dict.fromkeys(part, time.monotonic() + 1.0))
        self._wake.set()

    async def step(self) -> None:
        await self._forward(list(self._next_at))

    async def _forward(self, queues: Sequence[str]) -> None:
        if not queues:
            return
        # A wake-up during the call sets the time of its queue to 0 again, so that -1 means: none came.
        expected = {queue: self._next_at[queue] for queue in queues if self._due[queue] and self._next_at[queue] > 0}
        for queue in queues:
            self._next_at[queue] = -1.0
        sent = time.monotonic()
        forwarding = asyncio.ensure_future(self._delays.forward(queues))
        for queue in expected:
            # What is ready first runs first: the processor dequeues right behind this call, one round trip earlier.
            self._on_work(queue)
        results = await forwarding
        now = time.monotonic()
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, StoreError):
                self.outages.error(("forward", queue), f"cannot forward the tasks of queue {queue}", result)
                next_at = now + (0.2 if isinstance(result, OUTAGES) else 1.0)
            else:
                self.outages.recovered(("forward", queue))
                # The server read its clock after `sent`. So this is as early as the next call is long on its way; if
                # that one is faster, it is made again.
                next_at = sent + min(self.interval, self.interval if result.wait is None else result.wait)
                due_at = expected.get(queue)
                self._report(queue, result.moved, result.dropped, None if due_at is None else max(0.0, now - due_at))
            if self._next_at[queue] < 0:
                self._next_at[queue] = next_at
                self._due[queue] = (
                    not isinstance(result, StoreError) and result.wait is not None and result.wait < self.interval
                )

    def _report(self, queue: str, moved: int, dropped: list[tuple[str, str]], late: float | None) -> None:
        for task_id, reason in dropped:
            self.outages.log(
                (queue, task_id), f"task {task_id} of queue {queue} cannot be forwarded and was removed: {reason}"
            )
            self._bus.emit(ItemDropped(queue, task_id, reason))
        if moved:
            self._bus.emit(Forwarded(queue, moved, late))
            self._on_work(queue)
