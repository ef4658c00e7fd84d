"""Limits: declared by workers, applied by the scripts that dequeue and settle tasks; and Asynq's own semaphore."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from veredus.model.limits import LimitInfo, rate_text
from veredus.store.connection.connection import Argument
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import InspectPart, data, text
from veredus.wire import keys
from veredus.wire.times import count_of


class LimitRow(NamedTuple):
    limit: bytes
    numbers: str


DECLARE = load("limit/declare", keys="limits limited", args="", rows=LimitRow)
LIST = load("limit/list", keys="limits limited", args="queue_prefix most")
CHECK = load("limit/check", keys="limited", args="queue_prefix scope task_id apply")
ACQUIRE = load("limit/acquire", keys="semaphore", args="most task_id deadline")

LISTED = 500
"""Keys with waiting tasks, per listing."""


class LimitStore(InspectPart):
    async def declare(self, queue: str, specs: Mapping[str, str]) -> int:
        """Declare limits: `Limit.as_text()` for each name, empty to remove it. Returns how many changed."""
        args = DECLARE.args((), [LimitRow(data(spec), numbers) for spec, numbers in specs.items()])
        changed: int = await self.redis.run(DECLARE, [keys.limits(queue), keys.limited(queue)], args)
        return changed

    async def declared(self, queue: str) -> dict[str, str]:
        key = keys.limits(queue)
        found = await self.redis.command("HGETALL", key, key=key)
        return {text(found[at]): text(found[at + 1]) for at in range(0, len(found), 2)}

    async def list(self, queue: str) -> list[LimitInfo]:
        """The limits of a queue and its types, and the keys with waiting tasks."""
        rows = await self.redis.run(LIST, [keys.limits(queue), keys.limited(queue)], [keys.queue_prefix(queue), LISTED])
        return [_info(queue, *rows[at : at + 5]) for at in range(0, len(rows), 5)]

    async def waits(self, queue: str, *, but_pending: bool = False) -> bool:
        """Whether a worker has something to do: pending tasks in a queue that is not paused, or tasks that wait for
        a limit. `but_pending`: the worker cannot start any of the pending tasks."""
        pending = keys.pending(queue)
        paused, found, limited = await asyncio.gather(
            self.redis.command("EXISTS", keys.paused(queue), key=pending),
            self.redis.command("LLEN", pending, key=pending),
            self.redis.command("EXISTS", keys.limited(queue), key=pending),
        )
        return not paused and bool((found and not but_pending) or limited)

    async def check(self, queue: str, scope: str, task_id: str, *, apply: bool) -> bool:
        """Whether a task occupies a slot although it does not run; the slot is freed if `apply`."""
        args: list[Argument] = [keys.queue_prefix(queue), data(scope), data(task_id), int(apply)]
        return bool(await self.redis.run(CHECK, [keys.limited(queue)], args))

    # Asynq's semaphore: its key, its script, its units.

    async def acquire(self, scope: str, most: int, task_id: str, deadline: int) -> bool:
        return bool(await self.redis.run(ACQUIRE, [keys.semaphore(scope)], [most, task_id, deadline]))

    async def give_back(self, scope: str, task_id: str) -> bool:
        """False if this task had no token, or has none any more."""
        key = keys.semaphore(scope)
        return bool(await self.redis.command("ZREM", key, task_id, key=key))


def _info(queue: str, scope: bytes, numbers: bytes, running: int, begun: int, waiting: int) -> LimitInfo:
    most, count, period_ms = [count_of(part) for part in (*numbers.split(), b"", b"", b"")[:3]]
    return LimitInfo(
        queue=queue,
        scope=text(scope),
        concurrency=most,
        rate=rate_text(count, period_ms),
        running=running,
        begun=begun,
        waiting=waiting,
    )
