"""Forwarder: brings what is due to pending, to the millisecond; asleep until the next due instant or a wake-up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.events import Bus, Forwarded, ItemDropped
from veredus.store.delays import Delays
from veredus.worker.complaints import OUTAGES, Complaints
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")


class Forwarder(Role):
    name = "forwarder"

    def __init__(
        self,
        delays: Delays,
        queues: Sequence[str],
        interval: float,
        complaints: Complaints,
        bus: Bus,
        on_work: Callable[[str], None],
    ) -> None:
        super().__init__(interval, complaints)
        self._delays = delays
        self._bus = bus
        self._on_work = on_work
        self._wake = asyncio.Event()
        self._look_at = dict.fromkeys(queues, 0.0)
        """When to look at each queue next, on the monotonic clock."""
        self._due = dict.fromkeys(queues, False)
        """Whether a task is known to be due at that moment."""
        self._asked: set[str] = set()
        """Queues whose server has not answered yet."""
        self._looks: set[asyncio.Task[None]] = set()

    def wake(self, queue: str | None) -> None:
        """A new task is due earlier than what we wait for, or (None) we may have missed something."""
        for name in self._look_at if queue is None else [queue]:
            self._look_at[name] = 0.0
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            self._wake.clear()
            now = time.monotonic()
            ripe = [queue for queue, at in self._look_at.items() if at <= now and queue not in self._asked]
            if ripe and self._delays.one_server:
                await self._look(ripe)
            elif ripe:
                self._look_at_each(self._delays.by_server(ripe))
            free = [at for queue, at in self._look_at.items() if queue not in self._asked]
            wait = min(free) - time.monotonic() if free else self.interval
            if wait > 0:
                alarm = loop.call_later(wait, self._wake.set)
                await self._wake.wait()
                alarm.cancel()
        for look in self._looks:
            look.cancel()

    def _look_at_each(self, parts: Sequence[Sequence[str]]) -> None:
        """Each server for itself: one that hangs makes nothing late but its own."""
        for part in parts:
            self._asked.update(part)
            look = asyncio.create_task(self._look(part))
            self._looks.add(look)
            look.add_done_callback(lambda done, part=part: self._looked(done, part))  # type: ignore[misc]

    def _looked(self, look: asyncio.Task[None], part: Sequence[str]) -> None:
        self._looks.discard(look)
        self._asked.difference_update(part)
        if not look.cancelled() and look.exception() is not None:
            logger.error("a look at %s failed", ", ".join(part), exc_info=look.exception())
            self._look_at.update(dict.fromkeys(part, time.monotonic() + 1.0))
        self._wake.set()

    async def step(self) -> None:
        await self._look(list(self._look_at))

    async def _look(self, queues: Sequence[str]) -> None:
        # A wake-up that comes while Redis answers sets its queue's time to 0 again; `taken` notices.
        expected = {queue: self._look_at[queue] for queue in queues if self._due[queue] and self._look_at[queue] > 0}
        for queue in queues:
            self._look_at[queue] = -1.0
        sent = time.monotonic()
        forwarding = asyncio.ensure_future(self._delays.forward(queues))
        if expected:
            # The request is on its way: let the processor ask right behind it, instead of one round trip later.
            await asyncio.sleep(0)
            for queue in expected:
                self._on_work(queue)
        results = await forwarding
        now = (sent + time.monotonic()) / 2  # when the server answered, as well as one can know
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, StoreError):
                self._complain(queue, result)
                next_look = now + (0.2 if isinstance(result, OUTAGES) else 1.0)
            else:
                self.complaints.recovered(("forward", queue))
                next_look = now + min(self.interval, self.interval if result.wait is None else result.wait)
                due = expected.get(queue)
                self._report(queue, result.moved, result.dropped, None if due is None else max(0.0, now - due))
            if self._look_at[queue] < 0:
                self._look_at[queue] = next_look
                self._due[queue] = (
                    not isinstance(result, StoreError) and result.wait is not None and result.wait < self.interval
                )

    def _complain(self, queue: str, error: StoreError) -> None:
        self.complaints.error(("forward", queue), f"cannot forward the tasks of queue {queue}", error)

    def _report(self, queue: str, moved: int, dropped: list[tuple[str, str]], late: float | None) -> None:
        for task_id, reason in dropped:
            self.complaints.say(
                (queue, task_id), f"task {task_id} of queue {queue} cannot be forwarded and was removed: {reason}"
            )
            self._bus.emit(ItemDropped(queue, task_id, reason))
        if moved:
            self._bus.emit(Forwarded(queue, moved, late))
            self._on_work(queue)
