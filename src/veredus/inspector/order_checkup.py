"""Checks the order keys and limits of a queue: tasks that wait although they need not, and entries without a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from veredus.model.order_keys import PARKED
from veredus.store.inspect.checkups import CHUNK, Checkups
from veredus.store.tasks.limits import LimitStore
from veredus.store.tasks.order_keys import OrderKeys
from veredus.wire import keys

Found = Callable[..., None]
_STATES = ("pending", "active", "retry", "scheduled", "archived")


class OrderCheckup:
    """Fed like `Checkup`. Whatever looks wrong is checked again by one script, which sees all its keys at once."""

    def __init__(self, checkups: Checkups, queue: str) -> None:
        self._checkups, self._queue = checkups, queue
        self._order_keys = OrderKeys(checkups.redis)
        self._limits = LimitStore(checkups.redis)
        self._named: dict[str, set[str]] = {"lane:": set(), "waiting:": set(), "slots:": set()}
        self._waiting: set[str] = set()

    def see(self, names: Sequence[str]) -> None:
        for kind, found in self._named.items():
            found.update(name.removeprefix(kind) for name in names if name.startswith(kind))

    def add_waiting(self, task_id: str) -> None:
        """Note a task whose due time says that it waits for its turn or for a limit."""
        self._waiting.add(task_id)

    async def finish(self, found: Found, *, order_sound: bool) -> None:
        sound = {kind: await self._sound(kind, found) for kind in self._named}
        if order_sound:
            for order_key in sound["lane:"]:
                await self._check_order_key(order_key, found)
            async for page in self._order_keys.pages(self._queue):
                for one in page:
                    if one.size == 0:
                        found("empty_order_key", group=one.order_key, detail=one.order_key)
        for scope in sound["waiting:"]:
            async for ids in self._members(keys.waiting(self._queue, scope)):
                self._waiting.difference_update(ids)
        for task_id in sorted(self._waiting):
            await self._confirm(task_id, "", found)
        for scope in sound["slots:"]:
            await self._check_slots(scope, found)

    async def _sound(self, kind: str, found: Found) -> list[str]:
        """Return the keys of the right type, report the others."""
        names = sorted(self._named[kind])
        types = await self._checkups.types([f"{keys.queue_prefix(self._queue)}{kind}{name}" for name in names])
        for name, is_type in zip(names, types, strict=True):
            if is_type not in ("zset", "none"):
                found("wrong_type", key=f"{kind}{name}", detail=is_type)
        return [name for name, is_type in zip(names, types, strict=True) if is_type == "zset"]

    async def _check_order_key(self, order_key: str, found: Found) -> None:
        if not await self._order_keys.listed(self._queue, order_key):
            found("unlisted_order_key", group=order_key, detail=order_key)
        first = True
        async for ids in self._members(keys.lane(self._queue, order_key)):
            self._waiting.difference_update(ids)
            scores = await self._checkups.scores(keys.scheduled(self._queue), ids)
            sightings = await self._checkups.examine(self._queue, ids)
            for sighting, score in zip(sightings, scores, strict=True):
                is_waiting = sighting.state != "scheduled" or score == PARKED
                if first or sighting.state not in _STATES or not is_waiting or sighting.state == "archived":
                    await self._confirm(sighting.task_id, order_key, found)
                first = False

    async def _check_slots(self, scope: str, found: Found) -> None:
        async for ids in self._members(keys.slots(self._queue, scope)):
            for sighting in await self._checkups.examine(self._queue, ids):
                if sighting.state != "active" and await self._limits.check(
                    self._queue, scope, sighting.task_id, apply=False
                ):
                    found("stale_slot", task_id=sighting.task_id, group=scope, detail=scope)

    async def _confirm(self, task_id: str, order_key: str, found: Found) -> None:
        for kind, detail in await self._order_keys.check(self._queue, task_id, order_key, apply=False):
            found(kind, task_id=task_id, group=order_key, detail=detail)

    async def _members(self, key: str) -> AsyncIterator[list[str]]:
        at = 0
        while rows := await self._checkups.ranked(key, at, CHUNK):
            at += len(rows)
            yield [task_id for task_id, _ in rows]
