"""The part of the inspector that sees and steers who waits for whom: order keys and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veredus.errors import ConfigError, LaneNotHeld
from veredus.model.limits import LimitInfo
from veredus.model.ordering import LaneInfo
from veredus.store.lanes import Lanes
from veredus.store.limits import LimitDesk

if TYPE_CHECKING:
    from veredus.store.queues import Queues
    from veredus.store.redis import Redis


class Turns:
    """Lanes and limits of a queue."""

    _redis: Redis
    _queues: Queues

    if TYPE_CHECKING:

        async def _known(self, queue: str, group: str | None = None) -> None: ...

    @property
    def _lanes(self) -> Lanes:
        return Lanes(self._redis, now_ms=self._queues.now_ms)

    @property
    def _limit_desk(self) -> LimitDesk:
        return LimitDesk(self._redis, now_ms=self._queues.now_ms)

    async def lanes(self, queue: str, *, held: bool = False, limit: int = 1_000) -> list[LaneInfo]:
        """The order keys that have tasks, the longest lane first; `held`: only those that an archived task holds up. Of
        more than `limit`, some."""
        await self._known(queue)
        found: list[LaneInfo] = []
        async for page in self._lanes.pages(queue):
            found += [lane for lane in page if lane.held or not held]
            if len(found) >= limit:
                break
        return sorted(found, key=lambda lane: (-lane.size, lane.order_key))[:limit]

    async def release_lane(self, queue: str, order_key: str) -> str:
        """Let a lane go on that an archived task holds up. That task stays in the archive; its id is returned."""
        await self._known(queue)
        released = await self._lanes.release(queue, order_key)
        if not released:
            held = [lane.order_key for lane in await self.lanes(queue, held=True)]
            raise LaneNotHeld(order_key, queue, known=held)
        return released

    async def limits(self, queue: str) -> list[LimitInfo]:
        """The limits of a queue with how much of each is taken, and the keys for which somebody waits."""
        await self._known(queue)
        return await self._limit_desk.list(queue)

    async def remove_limit(self, queue: str, scope: str) -> None:
        """Forget a limit (`queue`, `queue-key`, `task:<type>`, `task-key:<type>`) until a worker declares it again;
        whoever waits for it goes on."""
        await self._known(queue)
        known = await self._limit_desk.declared(queue)
        if scope not in known:
            raise ConfigError(
                "limit", scope, f"one of {', '.join(sorted(known)) or 'none: it has no limits'}", known=known
            )
        await self._limit_desk.declare(queue, {scope: ""})
