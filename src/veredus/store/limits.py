"""Limits: declared by workers, kept by the scripts that hand out and settle; and Asynq's own semaphore."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from veredus.model.limits import LimitInfo, rate_text
from veredus.store.connection import Argument
from veredus.store.places import Part, data, text
from veredus.store.scripts import load
from veredus.wire import keys
from veredus.wire.times import count_of

DECLARE = load("limit/declare", keys="limits limited", args="count {limit numbers}* [now_ms]")
LIST = load("limit/list", keys="limits limited", args="queue_prefix most [now_ms]")
CHECK = load("limit/check", keys="limited", args="queue_prefix scope task_id apply [now_ms]")
ACQUIRE = load("limit/acquire", keys="semaphore", args="most task_id deadline [now_ms]")

LISTED = 500
"""Keys that somebody waits for, in one listing."""


class LimitDesk(Part):
    async def declare(self, queue: str, specs: Mapping[str, str]) -> int:
        """Say what the limits are: `Limit.as_text()` for each name, empty to remove it. Returns how many changed."""
        args: list[Argument] = [len(specs)]
        for spec, numbers in specs.items():
            args += (data(spec), numbers)
        changed: int = await self.redis.run(DECLARE, [keys.limits(queue), keys.limited(queue)], self.timed(args))
        return changed

    async def declared(self, queue: str) -> dict[str, str]:
        key = keys.limits(queue)
        found = await self.redis.command("HGETALL", key, key=key)
        return {text(found[at]): text(found[at + 1]) for at in range(0, len(found), 2)}

    async def list(self, queue: str) -> list[LimitInfo]:
        """The limits of a queue and its types, and the keys that somebody waits for."""
        rows = await self.redis.run(
            LIST, [keys.limits(queue), keys.limited(queue)], self.timed([keys.queue_prefix(queue), LISTED])
        )
        return [_info(queue, *rows[at : at + 5]) for at in range(0, len(rows), 5)]

    async def waits(self, queue: str, *, but_pending: bool = False) -> bool:
        """Whether there is work for a worker: pending in a queue that is not paused, or waiting for a limit.
        `but_pending`: what is pending is nothing that it could start."""
        pending = keys.pending(queue)
        paused, found, limited = await asyncio.gather(
            self.redis.command("EXISTS", keys.paused(queue), key=pending),
            self.redis.command("LLEN", pending, key=pending),
            self.redis.command("EXISTS", keys.limited(queue), key=pending),
        )
        return not paused and bool((found and not but_pending) or limited)

    async def check(self, queue: str, scope: str, task_id: str, *, apply: bool) -> bool:
        """Whether a task holds room though it does not run; it is freed if `apply`."""
        args: list[Argument] = [keys.queue_prefix(queue), data(scope), data(task_id), int(apply)]
        return bool(await self.redis.run(CHECK, [keys.limited(queue)], self.timed(args)))

    # Asynq's semaphore: its key, its script, its units.

    async def acquire(self, scope: str, most: int, task_id: str, deadline: int) -> bool:
        return bool(await self.redis.run(ACQUIRE, [keys.semaphore(scope)], self.timed([most, task_id, deadline])))

    async def give_back(self, scope: str, task_id: str) -> bool:
        """False if this task had no token (any more)."""
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
