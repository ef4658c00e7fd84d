"""The desk where tasks come in: enqueue, schedule and add to a group, many at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from veredus.errors import ConnectionLost, NotReady
from veredus.model.lifecycle import State
from veredus.store.batching import Coalescer
from veredus.store.connection import Argument
from veredus.store.redis import Call, Redis
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
    args="task_prefix channel count {task_id message unique_key unique_ttl expires due_at group}* [now_ms]",
)
ADD = load(
    "group/add",
    keys="groups",
    args="task_prefix group_prefix count {task_id message unique_key unique_ttl expires group}* [now_ms]",
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
    group: str = ""

    @property
    def state(self) -> State:
        """Where it will be stored; entries of one state go in together."""
        if self.due:
            return State.SCHEDULED
        return State.AGGREGATING if self.group else State.PENDING


def entry_size(entry: Entry) -> int:
    return len(entry.message)


class Intake:
    """Writes new tasks. A lost connection is tried again for a while: the ids make that safe."""

    def __init__(self, redis: Redis, *, patience: float = 5.0) -> None:
        self._redis = redis
        self._patience = patience
        self._registered: dict[str, float] = {}
        self._desks: dict[tuple[str, State], Coalescer[Entry, int]] = {}

    async def add(self, queue: str, entry: Entry) -> int:
        """One task; concurrent callers share a round trip. Returns its code once Redis has it."""
        key = (queue, entry.state)
        desk = self._desks.get(key)
        if desk is None:
            desk = self._desks[key] = Coalescer(lambda entries: self.add_many(queue, entries), entry_size)
        return await desk.add(entry)

    async def add_many(self, queue: str, entries: Sequence[Entry]) -> list[int]:
        """Tasks of one queue that all come into the same state. Returns a code for each."""
        give_up = time.monotonic() + self._patience
        pause = 0.05
        unsure = False
        while True:
            try:
                await self.register(queue)
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
        call = self.insertion(queue, entries)
        return list(await self._redis.run(call.script, call.keys, call.args))

    def insertion(self, queue: str, entries: Sequence[Entry]) -> Call:
        """The script call that stores these; also for those who do it in one step with something else."""
        state = entries[0].state
        args: list[Argument] = [keys.task_prefix(queue)]
        if state is State.SCHEDULED:
            args.append(keys.delay_wakeup(queue))
        elif state is State.AGGREGATING:
            args.append(keys.group_prefix(queue))
        args.append(len(entries))
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
            if state is State.SCHEDULED:
                args += (entry.due, entry.group)
            elif state is State.AGGREGATING:
                args.append(entry.group)
        if state is State.SCHEDULED:
            return Call(SCHEDULE, (keys.scheduled(queue), keys.retry(queue), keys.due(queue)), args)
        if state is State.AGGREGATING:
            return Call(ADD, (keys.groups(queue),), args)
        return Call(ENQUEUE, (keys.pending(queue),), args)

    async def register(self, queue: str) -> None:
        """Make the queue known to all tools; once a minute is enough."""
        now = time.monotonic()
        if self._registered.get(queue, -REGISTER_AGAIN) + REGISTER_AGAIN < now:
            await self._redis.command("SADD", keys.QUEUES, queue, key=keys.QUEUES)
            self._registered[queue] = now
