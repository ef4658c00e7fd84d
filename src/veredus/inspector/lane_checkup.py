"""The examination of a queue's lanes and limits: who stands in them, and who is parked without standing anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from veredus.model.ordering import PARKED
from veredus.store.checkups import CHUNK, Checkups
from veredus.store.lanes import Lanes
from veredus.store.limits import LimitDesk
from veredus.wire import keys

Found = Callable[..., None]
_IN_LANE = ("pending", "active", "retry", "scheduled", "archived")


class LaneCheckup:
    """Fed like the examination of the queue itself; whatever seems wrong is looked at again, all in one instant."""

    def __init__(self, checkups: Checkups, queue: str) -> None:
        self._checkups, self._queue = checkups, queue
        self._lanes = Lanes(checkups.redis, now_ms=checkups.now_ms)
        self._limits = LimitDesk(checkups.redis, now_ms=checkups.now_ms)
        self._named: dict[str, set[str]] = {"lane:": set(), "waiting:": set(), "slots:": set()}
        self._parked: set[str] = set()

    def see(self, names: Sequence[str]) -> None:
        for kind, found in self._named.items():
            found.update(name.removeprefix(kind) for name in names if name.startswith(kind))

    def park(self, task_id: str) -> None:
        """A task whose due time says that it waits for its turn."""
        self._parked.add(task_id)

    async def finish(self, found: Found, *, lanes_sound: bool) -> None:
        sound = {kind: await self._sound(kind, found) for kind in self._named}
        if lanes_sound:
            for order_key in sound["lane:"]:
                await self._check_lane(order_key, found)
            async for page in self._lanes.pages(self._queue):
                for lane in page:
                    if lane.size == 0:
                        found("empty_lane", group=lane.order_key, detail=lane.order_key)
        for scope in sound["waiting:"]:
            async for ids in self._members(keys.waiting(self._queue, scope)):
                self._parked.difference_update(ids)
        for task_id in sorted(self._parked):
            await self._confirm(task_id, "", found)
        for scope in sound["slots:"]:
            await self._check_slots(scope, found)

    async def _sound(self, kind: str, found: Found) -> list[str]:
        """Names of keys of the right type."""
        names = sorted(self._named[kind])
        types = await self._checkups.types([f"{keys.queue_prefix(self._queue)}{kind}{name}" for name in names])
        for name, is_type in zip(names, types, strict=True):
            if is_type not in ("zset", "none"):
                found("wrong_type", key=f"{kind}{name}", detail=is_type)
        return [name for name, is_type in zip(names, types, strict=True) if is_type == "zset"]

    async def _check_lane(self, order_key: str, found: Found) -> None:
        if not await self._lanes.listed(self._queue, order_key):
            found("unlisted_lane", group=order_key, detail=order_key)
        first = True
        async for ids in self._members(keys.lane(self._queue, order_key)):
            self._parked.difference_update(ids)
            scores = await self._checkups.scores(keys.scheduled(self._queue), ids)
            sights = await self._checkups.examine(self._queue, ids)
            for sight, score in zip(sights, scores, strict=True):
                is_parked = sight.state != "scheduled" or score == PARKED
                if first or sight.state not in _IN_LANE or not is_parked or sight.state == "archived":
                    await self._confirm(sight.task_id, order_key, found)
                first = False

    async def _check_slots(self, scope: str, found: Found) -> None:
        async for ids in self._members(keys.slots(self._queue, scope)):
            for sight in await self._checkups.examine(self._queue, ids):
                if sight.state != "active" and await self._limits.check(self._queue, scope, sight.task_id, apply=False):
                    found("stale_slot", task_id=sight.task_id, group=scope, detail=scope)

    async def _confirm(self, task_id: str, order_key: str, found: Found) -> None:
        for kind, detail in await self._lanes.check(self._queue, task_id, order_key, apply=False):
            found(kind, task_id=task_id, group=order_key, detail=detail)

    async def _members(self, key: str) -> AsyncIterator[list[str]]:
        at = 0
        while rows := await self._checkups.ranked(key, at, CHUNK):
            at += len(rows)
            yield [task_id for task_id, _ in rows]
