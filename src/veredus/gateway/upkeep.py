"""What a gateway does again and again: ticks, heartbeats, sweeps; and by what it knows whether all is well."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import StoreError
from veredus.gateway.delivery import Delivery
from veredus.gateway.health import Signs
from veredus.gateway.limits import Level, Overload
from veredus.gateway.routing import Router
from veredus.restarts import Restarts
from veredus.store.hints import Hints
from veredus.store.store import Store
from veredus.worker.complaints import Complaints

logger = logging.getLogger("veredus.gateway")

BEAT = 4.0
SWEEP = 2.0
TICK = 0.1
STRAYS_EVERY = 15
"""Beats between two looks for sessions that are attached here by mistake."""


class Upkeep:
    """One tick for all timers of the process. What Redis refuses is told once and tried again; what fails otherwise is
    restarted."""

    def __init__(
        self,
        node: str,
        store: Store,
        delivery: Delivery,
        router: Router,
        overload: Overload,
        hints: Hints,
        clock: ServerClock,
        complaints: Complaints,
        restarts: Restarts,
        figures: Callable[[], dict[str, Any]],
    ) -> None:
        self._node = node
        self._store = store
        self._delivery = delivery
        self._router = router
        self._overload = overload
        self._hints = hints
        self._clock = clock
        self._complaints = complaints
        self._restarts = restarts
        self._figures = figures
        self._beat_at = self._deaf_since = self._ticked_at = clock.monotonic()
        self._late_by = 0.0

    def start(self) -> list[asyncio.Task[None]]:
        keep = self._restarts.keep
        roles = (
            keep("tick", self._tick_for_ever, longest=1.0),
            keep("heartbeat", self._beat_for_ever, longest=BEAT),
            keep("sweep", self._sweep_for_ever),
        )
        return [asyncio.create_task(role) for role in roles]

    def signs(self, *, draining: bool, listening: bool) -> Signs:
        now = self._clock.monotonic()
        stuck = self._delivery.stuck_since
        return Signs(
            hints_arrive=self._hints.healthy,
            hints_missing_for=now - self._deaf_since,
            log_unreadable_for=0.0 if stuck is None else now - stuck,
            beat_age=now - self._beat_at,
            loop_late_by=max(self._late_by, now - self._ticked_at - TICK),
            draining=draining,
            listening=listening,
            restarting=tuple(self._restarts.problems()),
        )

    async def _tick_for_ever(self) -> None:
        while True:
            before = self._clock.monotonic()
            await asyncio.sleep(TICK)
            now = self._clock.monotonic()
            self._late_by = max(now - before - TICK, self._late_by * 0.9)
            self._ticked_at = now
            if self._hints.healthy:
                self._deaf_since = now
            self._delivery.tick(now)
            self._router.tick(now)
            self._warn(now)

    def _warn(self, now: float) -> None:
        for name, found in self._overload.levels(now).items():
            if found is not Level.NORMAL:
                what = "at the limit, more are refused" if found is Level.REJECT else "near the limit"
                self._complaints.say(("overload", name), f"overload: {name} {what}")

    async def _beat_for_ever(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(BEAT * random.uniform(0.9, 1.1))
            await self._guarded("beat", self.beat)
            if number % STRAYS_EVERY == 0:
                await self._guarded("release of strays", self._release_strays)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP * random.uniform(0.7, 1.3))
            await self._guarded("sweep", self._sweep)

    async def _guarded(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except StoreError as exc:
            self._complaints.error(("gateway", name), f"the gateway's {name} failed", exc)
        else:
            self._complaints.recovered(("gateway", name))

    async def beat(self) -> None:
        if not await self._store.nodes.beat(self._node, self._figures()) and self._delivery.attached:
            logger.warning("this node was silent for long, or the store has lost its data: all sessions are looked at")
            self._delivery.look_at_all()
        self._beat_at = self._clock.monotonic()
        await self._store.set_clock(self._clock)

    async def _release_strays(self) -> None:
        """Sessions that Redis has as attached here, though the answer to their attach was lost."""
        await self._store.sessions.release_strays(self._node, owned=self._delivery.attached)

    async def _sweep(self) -> None:
        """Sessions that ended, nodes that died, requests that nobody answered: any gateway may see to it."""
        swept = await self._store.sessions.sweep()
        if self._node not in swept.nodes:
            await self.beat()  # the store knew of it and does not any more
        for sid, rid in swept.due:
            await self._router.expire(sid, rid)
