"""Maintenance: the periodic work of a gateway (tick, heartbeat, sweep) and its health measurements."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from veredus.errors import StoreError
from veredus.gateway.delivery import TICK, Delivery
from veredus.gateway.health import GatewaySigns
from veredus.gateway.limits import Level
from veredus.gateway.router import RequestRouter
from veredus.gateway.services import Services
from veredus.store.sessions.hints import Hints

logger = logging.getLogger("veredus.gateway")

BEAT = 4.0
SWEEP = 2.0
STRAYS_EVERY = 15
"""Heartbeats between two searches for sessions that are attached here by mistake."""


class Maintenance:
    """One tick drives all timers of the process. A StoreError is logged once and the step is repeated; any other error
    restarts the role."""

    def __init__(
        self,
        services: Services,
        delivery: Delivery,
        router: RequestRouter,
        hints: Hints,
        figures: Callable[[], dict[str, Any]],
    ) -> None:
        self._node = services.node
        self._store = services.store
        self._delivery = delivery
        self._router = router
        self._overload = services.overload
        self._hints = hints
        self._clock = services.clock
        self._outages = services.outages
        self._restarts = services.restarts
        self._figures = figures
        self._beat_at = self._hints_seen_at = self._ticked_at = services.clock.monotonic()
        self._late_by = 0.0

    def start(self) -> list[asyncio.Task[None]]:
        keep = self._restarts.keep
        roles = (
            keep("tick", self._tick_for_ever, longest=1.0),
            keep("heartbeat", self._beat_for_ever, longest=BEAT),
            keep("sweep", self._sweep_for_ever),
        )
        return [asyncio.create_task(role) for role in roles]

    def signs(self, *, draining: bool, listening: bool) -> GatewaySigns:
        now = self._clock.monotonic()
        stuck = self._delivery.stuck_since
        return GatewaySigns(
            hints_arrive=self._hints.healthy,
            hints_missing_for=now - self._hints_seen_at,
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
                self._hints_seen_at = now
            self._delivery.tick(now)
            self._router.tick(now)
            self._warn(now)

    def _warn(self, now: float) -> None:
        for name, found in self._overload.levels(now).items():
            if found is not Level.NORMAL:
                what = "at the limit, refusing more" if found is Level.REJECT else "near the limit"
                self._outages.log(("overload", name), f"overload: {name} {what}")

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
            self._outages.error(("gateway", name), f"the gateway's {name} failed", exc)
        else:
            self._outages.recovered(("gateway", name))

    async def beat(self) -> None:
        if not await self._store.nodes.beat(self._node, self._figures()) and self._delivery.attached:
            logger.warning("Redis did not know this node (a long silence, or lost data): checking all sessions")
            self._delivery.check_all()
        self._beat_at = self._clock.monotonic()
        await self._store.set_clock(self._clock)

    async def _release_strays(self) -> None:
        """Detach sessions that Redis has as attached here because the reply to their attach was lost."""
        await self._store.sessions.release_strays(self._node, owned=self._delivery.attached)

    async def _sweep(self) -> None:
        """Clean up ended sessions, dead nodes and overdue requests. Every gateway does this for all."""
        swept = await self._store.sessions.sweep()
        if self._node not in swept.nodes:
            await self.beat()  # the store has forgotten this node
        for sid, rid in swept.due:
            await self._router.expire(sid, rid)
