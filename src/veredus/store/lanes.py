"""Lanes: tasks with the same order key, one at a time; looked after, listed and released."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from veredus.errors import StoreError
from veredus.model.ordering import LaneInfo
from veredus.store.connection import Argument
from veredus.store.places import Part, data, text
from veredus.store.redis import Call
from veredus.store.scripts import load
from veredus.wire import keys

TEND = load("order/tend", keys="lanes", args="queue_prefix limit at_rest_ms [now_ms]")
RELEASE = load("order/release", keys="lanes archived", args="queue_prefix order_key [now_ms]")
LIST = load("order/list", keys="lanes", args="queue_prefix count {order_key}* [now_ms]")
CHECK = load("order/check", keys="lanes", args="queue_prefix task_id order_key apply [now_ms]")

LANES = 500
"""Lanes that one call looks at: some milliseconds."""
_PAGE = 500


class Lanes(Part):
    async def tend(self, queues: Sequence[str], at_rest_ms: int) -> list[int | StoreError]:
        """Let lanes go on whose first task has ended without us, in one round trip per server. Of each queue those
        come first that nobody has looked at for longest; returns how many it were."""
        replies = await self.redis.run_each(
            [
                Call(TEND, (keys.lanes(queue),), self.timed([keys.queue_prefix(queue), LANES, at_rest_ms]))
                for queue in queues
            ]
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies

    async def release(self, queue: str, order_key: str) -> str:
        """Let a lane go on that an archived task holds up; returns the id of that task, empty if none did."""
        found = await self.redis.run(
            RELEASE, [keys.lanes(queue), keys.archived(queue)], self.timed([keys.queue_prefix(queue), data(order_key)])
        )
        return text(found) if found else ""

    async def pages(self, queue: str) -> AsyncIterator[list[LaneInfo]]:
        """Every lane that has tasks, page by page."""
        key, cursor = keys.lanes(queue), b"0"
        while True:
            cursor, found = await self.redis.command("ZSCAN", key, cursor, "COUNT", _PAGE, key=key)
            yield await self.info(queue, [text(name) for name in found[::2]])
            if cursor == b"0":
                return

    async def info(self, queue: str, order_keys: Sequence[str]) -> list[LaneInfo]:
        if not order_keys:
            return []
        rows = await self.redis.run(
            LIST,
            [keys.lanes(queue)],
            self.timed([keys.queue_prefix(queue), len(order_keys), *map(data, order_keys)]),
        )
        found = []
        for n, order_key in enumerate(order_keys):
            size, first, state, held = rows[4 * n : 4 * n + 4]
            found.append(
                LaneInfo(
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
        """What is wrong with a task's place in its lane (or in the line for a limit), as (kind, detail)."""
        args: list[Argument] = [keys.queue_prefix(queue), data(task_id), data(order_key), int(apply)]
        rows = await self.redis.run(CHECK, [keys.lanes(queue)], self.timed(args))
        return [(text(rows[at]), text(rows[at + 1])) for at in range(0, len(rows), 2)]

    async def listed(self, queue: str, order_key: str) -> bool:
        key = keys.lanes(queue)
        return await self.redis.command("ZSCORE", key, data(order_key), key=key) is not None

    async def enlist(self, queue: str, order_key: str) -> bool:
        """Name a lane that has tasks, so that it is looked after."""
        lane, lanes = keys.lane(queue, order_key), keys.lanes(queue)
        if not await self.redis.command("EXISTS", data(lane), key=lane):
            return False
        return bool(await self.redis.command("ZADD", lanes, "NX", 0, data(order_key), key=lanes))

    async def unlist(self, queue: str, order_key: str) -> bool:
        """Take a name off the list that has no lane; tending it does just that."""
        lanes = keys.lanes(queue)
        await self.redis.command("ZADD", lanes, "XX", 0, data(order_key), key=lanes)  # it comes first then
        await self.tend([queue], 0)
        return not await self.listed(queue, order_key)
