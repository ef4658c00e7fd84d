"""Shows by open connections that this process lives, and finds worker processes whose connections are closed.

A process that is killed closes its connections, which Redis notices at once; a lease takes seconds to expire. This runs
in the heartbeater's thread: a handler that blocks the event loop delays neither.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from veredus.errors import AuthError, CommandRefused, StoreError
from veredus.model.absences import Absences
from veredus.store.connection.wakeups import Subscription
from veredus.store.store import Store
from veredus.store.tasks.liveness import LivenessReport

logger = logging.getLogger("veredus.worker")

CONNECTIONS = 2
"""Connections per process. A single one may break at any time, even while the process is suspended."""
PROBES = 1.0
"""Seconds of silence after which the operating system checks that the server still has the connection."""
RETRY = 0.25
"""Seconds before the next try of a connection that cannot be made."""
REFUSED = 30.0
"""The same if Redis refuses it."""
IDLE = 8.0
"""Seconds between two looks of a worker that does not look for dead ones, or knows of no other."""
SHORTEST = 6.0
"""With shorter leases closed connections are not used: an expired lease is noticed nearly as fast."""


NOT_SEEN = "if this worker dies, its tasks start elsewhere only when their leases end"
NO_LOOK = "this worker cannot look for dead ones"


class LivenessHooks(NamedTuple):
    """Called in the heartbeater's thread."""

    on_cut_off: Callable[[], None]
    """No connection shows any more that this process lives: a heartbeat must."""
    on_dead: Callable[[str], None]
    """This worker is dead. Called at each look until its tasks are recovered."""
    on_misjudged: Callable[[int], None]
    """The number of leases that were taken from this worker although it lives."""


class LivenessKeeper:
    """Of one worker process."""

    def __init__(self, worker_id: str, hooks: LivenessHooks, *, lease: float, looks_for_others: bool) -> None:
        self._worker_id = worker_id
        self._hooks = hooks
        self._may_check = looks_for_others and lease >= SHORTEST
        self._absences = Absences(worker_id, calm=lease, idle=IDLE)
        self._looks = False
        """Whether this worker is one of the few that look for dead ones."""
        self._has_asked = False
        """Whether it has asked to be one of them."""
        self._looking: asyncio.Task[None] | None = None
        self._breaks = [0] * CONNECTIONS
        """How often each connection has broken."""
        self._broken_at_look = [0] * CONNECTIONS
        self._open: dict[Subscription, asyncio.Event] = {}
        """The open connections, each with the event that ends it."""
        self._recovered: deque[str] = deque()
        self._taken = 0
        self._was_refused = False
        self._said: set[str] = set()
        self._look_now = asyncio.Event()

    @property
    def is_cut_off(self) -> bool:
        """Whether this process was subscribed and is not any more."""
        return any(self._breaks) and not self._open and not self._was_refused

    def recovered(self, worker_id: str) -> None:
        """The tasks of a dead worker have been recovered. Called from any thread."""
        self._recovered.append(worker_id)

    async def run(self, store: Store) -> None:
        self._look_now = asyncio.Event()
        holding = [asyncio.create_task(self._hold(store, number)) for number in range(CONNECTIONS)]
        looking = self._looking = asyncio.create_task(self._look_on(store))
        try:
            done, _ = await asyncio.wait([*holding, looking], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task  # raises why it has ended
        finally:
            for task in (*holding, looking):
                task.cancel()
            await asyncio.gather(*holding, looking, return_exceptions=True)

    async def leave(self, store: Store) -> None:
        """This worker stops: another one may look for dead ones at once. A look that is not answered yet counts."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._has_asked:
            await store.liveness.leave(self._worker_id)

    async def _hold(self, store: Store, number: int) -> None:
        while True:
            pause = await self._hold_once(store, number)
            await asyncio.sleep(pause)

    async def _hold_once(self, store: Store, number: int) -> float:
        """Keep one connection open until it breaks. Returns the seconds until the next try."""
        subscription, broken = store.liveness.subscription(self._worker_id, probes=PROBES), asyncio.Event()

        def on_close() -> None:
            self._breaks[number] += 1
            self._open.pop(subscription, None)
            broken.set()
            if self.is_cut_off:
                self._hooks.on_cut_off()

        try:
            await subscription.open(on_close)
            self._open[subscription] = broken
            self._was_refused = False
            self._look_now.set()
            await subscription.stay(broken)
            return RETRY
        except (AuthError, CommandRefused) as exc:
            self._was_refused = True
            self._say_once(NOT_SEEN, exc)
            return REFUSED
        except StoreError:
            return RETRY  # the heartbeat reports it
        finally:
            self._open.pop(subscription, None)
            subscription.close()

    def _say_once(self, what: str, why: object) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.info("%s: %s", what, why)

    async def _look_on(self, store: Store) -> None:
        while True:
            self._look_now.clear()
            asked, breaks = time.monotonic(), list(self._breaks)
            is_subscribed = bool(self._open)
            pause = IDLE
            may_check = self._may_check and is_subscribed
            self._has_asked = self._has_asked or may_check
            try:
                report = await store.liveness.look(self._worker_id, may_check=may_check)
                pause = self._found(report, asked, breaks, is_subscribed=is_subscribed)
            except (AuthError, CommandRefused) as exc:
                self._say_once(NO_LOOK, exc)
            except StoreError:
                pause = RETRY
            try:
                async with asyncio.timeout(pause):
                    await self._look_now.wait()
            except TimeoutError:
                pass

    def _found(self, report: LivenessReport, asked: float, breaks: list[int], *, is_subscribed: bool) -> float:
        """Returns the seconds until the next look."""
        if report.taken > self._taken:
            self._hooks.on_misjudged(report.taken - self._taken)
            self._taken = report.taken
        if report.subscribers < 0:
            self._say_once(NO_LOOK, "its user may not use PUBSUB")
        if is_subscribed and report.subscribers == 0:
            for broken in self._open.values():
                broken.set()  # it leads to a server that no longer counts
        if not report.signs and not self._looks:
            return IDLE
        self._looks = bool(report.signs)
        while self._recovered:
            self._absences.is_over(self._recovered.popleft())
        was_cut_off = all(now > before for now, before in zip(breaks, self._broken_at_look, strict=True))
        self._broken_at_look = breaks
        for worker in self._absences.look(report.now_ms, asked, report.signs, was_cut_off=was_cut_off):
            self._hooks.on_dead(worker)
        return self._absences.pause
