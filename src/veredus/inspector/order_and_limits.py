"""The inspector's methods for order keys and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veredus.errors import ConfigError, OrderKeyNotHeld
from veredus.model.limits import LimitInfo
from veredus.model.order_keys import OrderKeyInfo
from veredus.store.tasks.limits import LimitStore
from veredus.store.tasks.order_keys import OrderKeys

if TYPE_CHECKING:
    from veredus.store.connection.redis import Redis
    from veredus.store.inspect.queues import Queues


class OrderAndLimits:
    """Lists order keys and limits, and releases what they hold up."""

    _redis: Redis
    _queues: Queues

    if TYPE_CHECKING:

        async def _known(self, queue: str, group: str | None = None) -> None: ...

    @property
    def _order_keys(self) -> OrderKeys:
        return OrderKeys(self._redis)

    @property
    def _limits(self) -> LimitStore:
        return LimitStore(self._redis)

    async def order_keys(self, queue: str, *, held: bool = False, limit: int = 1_000) -> list[OrderKeyInfo]:
        """Order keys that have tasks, the one with the most tasks first. With `held`, only keys that an archived task
        holds up. Reads about `limit` keys: of more, the result is a sample."""
        await self._known(queue)
        found: list[OrderKeyInfo] = []
        async for page in self._order_keys.pages(queue):
            found += [one for one in page if one.held or not held]
            if len(found) >= limit:
                break
        return sorted(found, key=lambda one: (-one.size, one.order_key))[:limit]

    async def held_keys(self, queue: str, most: int = 1_000) -> list[str]:
        """Order keys that an archived task holds up, among about `most` of the keys that have tasks."""
        found: list[str] = []
        read = 0
        async for page in self._order_keys.pages(queue):
            found += [one.order_key for one in page if one.held and one.size > 1]
            read += len(page)
            if read >= most:
                break
        return found

    async def release_order_key(self, queue: str, order_key: str) -> str:
        """Let the tasks behind an archived task run. Returns the id of that task, which stays archived."""
        await self._known(queue)
        released = await self._order_keys.release(queue, order_key)
        if not released:
            held = [one.order_key for one in await self.order_keys(queue, held=True)]
            raise OrderKeyNotHeld(order_key, queue, known=held)
        return released

    async def limits(self, queue: str) -> list[LimitInfo]:
        """The limits of a queue, how much of each is in use, and the limit keys that tasks wait for."""
        await self._known(queue)
        return await self._limits.list(queue)

    async def remove_limit(self, queue: str, scope: str) -> None:
        """Remove a limit (`queue`, `queue-key`, `task:<type>`, `task-key:<type>`) until a worker declares it again.
        Tasks that wait for it become pending."""
        await self._known(queue)
        known = await self._limits.declared(queue)
        if scope not in known:
            raise ConfigError(
                "limit", scope, f"one of {', '.join(sorted(known)) or 'none: it has no limits'}", known=known
            )
        await self._limits.declare(queue, {scope: ""})
