"""The desk where tasks come in: enqueue and schedule, many at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from veredus.errors import ConnectionLost, NotReady
from veredus.store.batching import Coalescer
from veredus.store.connection import Argument
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.wire import keys

ENQUEUE = load(
    "task/enqueue",
    keys="pending",
    args="task_prefix count {task_id message unique_key unique_ttl expires}* [now_ms]",
)
SCHEDULE = load(
    "task/schedule",
    keys="scheduled retry due",
    args="task_prefix channel count {task_id message unique_key unique_ttl expires due_at}* [now_ms]",
)

CREATED, ID_EXISTS, LOCKED = 1, 0, -1
REGISTER_AGAIN = 60.0
"""Seconds after which a queue is registered again: somebody else may have deleted it meanwhile."""


class Entry(NamedTuple):
    """One encoded task on its way in. Instants are text: `+250` ms from now, or absolute Unix ms; empty for none."""

    task_id: str
    message: bytes
    due: str = ""
    expires: str = ""
    unique_key: str = ""
    unique_ttl: int = 0
    own_id: bool = False
    """The id was made for this entry alone, so finding it means that an earlier try got through."""


def entry_size(entry: Entry) -> int:
    return len(entry.message)


class Intake:
    """Writes new tasks. A lost connection is tried again for a while: the ids make that safe."""

    def __init__(self, redis: Redis, *, patience: float = 5.0) -> None:
        self._redis = redis
        self._patience = patience
        self._registered: dict[str, float] = {}
        self._desks: dict[tuple[str, bool], Coalescer[Entry, int]] = {}

    async def add(self, queue: str, entry: Entry) -> int:
        """One task; concurrent callers share a round trip. Returns its code once Redis has it."""
        key = (queue, bool(entry.due))
        desk = self._desks.get(key)
        if desk is None:
            desk = self._desks[key] = Coalescer(lambda entries: self.add_many(queue, entries), entry_size)
        return await desk.add(entry)

    async def add_many(self, queue: str, entries: Sequence[Entry]) -> list[int]:
        """Tasks of one queue that are all due now, or all due later. Returns a code for each."""
        give_up = time.monotonic() + self._patience
        pause = 0.05
        unsure = False
        while True:
            try:
                await self._register(queue)
                codes = await self._write(queue, entries)
            except (ConnectionLost, NotReady) as exc:
                if time.monotonic() + pause > give_up:
                    raise
                unsure = unsure or isinstance(exc, ConnectionLost)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 1.0)
                continue
            if unsure:  # an earlier try may have got through before its answer was lost
                return [
                    CREATED if code == ID_EXISTS and entry.own_id else code
                    for code, entry in zip(codes, entries, strict=True)
                ]
            return codes

    async def _write(self, queue: str, entries: Sequence[Entry]) -> list[int]:
        delayed = bool(entries[0].due)
        args: list[Argument] = [keys.task_prefix(queue)]
        if delayed:
            args.append(keys.delay_wakeup(queue))
        args.append(len(entries))
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
            if delayed:
                args.append(entry.due)
        if delayed:
            codes = await self._redis.run(SCHEDULE, [keys.scheduled(queue), keys.retry(queue), keys.due(queue)], args)
        else:
            codes = await self._redis.run(ENQUEUE, [keys.pending(queue)], args)
        return list(codes)

    async def _register(self, queue: str) -> None:
        now = time.monotonic()
        if self._registered.get(queue, -REGISTER_AGAIN) + REGISTER_AGAIN < now:
            await self._redis.command("SADD", keys.QUEUES, queue, key=keys.QUEUES)
            self._registered[queue] = now
