"""Order keys: tasks with the same order key run one at a time. Checks, lists and releases them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from veredus.errors import StoreError
from veredus.model.order_keys import OrderKeyInfo
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import InspectPart, data, text
from veredus.wire import keys


class OrderKeyRow(NamedTuple):
    order_key: bytes


ADVANCE_STALE_LANES = load("order/advance_stale_lanes", keys="lanes", args="queue_prefix limit at_rest_ms")
RELEASE = load("order/release", keys="lanes archived", args="queue_prefix order_key")
LIST = load("order/list", keys="lanes", args="queue_prefix", rows=OrderKeyRow)
CHECK = load("order/check", keys="lanes", args="queue_prefix task_id seen_in apply")

LANES = 500
"""Order keys that one call checks, in a few milliseconds."""
_PAGE = 500


class OrderKeys(InspectPart):
    async def advance_stale_lanes(self, queues: Sequence[str], at_rest_ms: int) -> list[int | StoreError]:
        """Continue order keys whose first task has ended without Veredus, in one round trip per server. Per queue,
        those that were not checked for longest come first. Returns how many were checked."""
        replies = await self.redis.run_each(
            [
                ScriptCall(
                    ADVANCE_STALE_LANES,
                    (keys.lanes(queue),),
                    [keys.queue_prefix(queue), LANES, at_rest_ms],
                )
                for queue in queues
            ]
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies

    async def release(self, queue: str, order_key: str) -> str:
        """Continue an order key that an archived task holds up. Returns the id of that task, empty if none did."""
        found = await self.redis.run(
            RELEASE, [keys.lanes(queue), keys.archived(queue)], [keys.queue_prefix(queue), data(order_key)]
        )
        return text(found) if found else ""

    async def pages(self, queue: str) -> AsyncIterator[list[OrderKeyInfo]]:
        """Every order key that has tasks, page by page."""
        key, cursor = keys.lanes(queue), b"0"
        while True:
            cursor, found = await self.redis.command("ZSCAN", key, cursor, "COUNT", _PAGE, key=key)
            yield await self.info(queue, [text(name) for name in found[::2]])
            if cursor == b"0":
                return

    async def info(self, queue: str, order_keys: Sequence[str]) -> list[OrderKeyInfo]:
        if not order_keys:
            return []
        rows = await self.redis.run(
            LIST,
            [keys.lanes(queue)],
            LIST.args((keys.queue_prefix(queue),), [OrderKeyRow(data(name)) for name in order_keys]),
        )
        found = []
        for n, order_key in enumerate(order_keys):
            size, first, state, held = rows[4 * n : 4 * n + 4]
            found.append(
                OrderKeyInfo(
                    queue=queue,
                    order_key=order_key,
                    size=size,
                    first=text(first),
                    state=text(state),
                    held=bool(held),
                )
            )
        return found

    # For the doctor.

    async def check(self, queue: str, task_id: str, order_key: str, *, apply: bool) -> list[tuple[str, str]]:
        """What is wrong with a task's place behind its order key (or a limit), as (kind, detail)."""
        args: list[Argument] = [keys.queue_prefix(queue), data(task_id), data(order_key), int(apply)]
        rows = await self.redis.run(CHECK, [keys.lanes(queue)], args)
        return [(text(rows[at]), text(rows[at + 1])) for at in range(0, len(rows), 2)]

    async def listed(self, queue: str, order_key: str) -> bool:
        key = keys.lanes(queue)
        return await self.redis.command("ZSCORE", key, data(order_key), key=key) is not None

    async def enlist(self, queue: str, order_key: str) -> bool:
        """List an order key that has tasks, so that it is checked."""
        lane, lanes = keys.lane(queue, order_key), keys.lanes(queue)
        if not await self.redis.command("EXISTS", data(lane), key=lane):
            return False
        return bool(await self.redis.command("ZADD", lanes, "NX", 0, data(order_key), key=lanes))

    async def unlist(self, queue: str, order_key: str) -> bool:
        """Remove an order key without tasks from the list, which a check does."""
        lanes = keys.lanes(queue)
        await self.redis.command("ZADD", lanes, "XX", 0, data(order_key), key=lanes)  # it comes first then
        await self.advance_stale_lanes([queue], 0)
        return not await self.listed(queue, order_key)
