"""The desk where tasks come in: enqueue, schedule and add to a group, many at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from veredus.errors import ConnectionLost, NotReady, QueueClosed
from veredus.model.lifecycle import State
from veredus.store.batching import Coalescer
from veredus.store.connection import Argument
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load, with_insert
from veredus.wire import keys

ENQUEUE = load(
    "task/enqueue",
    keys="pending",
    args="task_prefix count width {task_id message [unique_key unique_ttl expires]}* [now_ms]",
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

ENQUEUE_BOUND = load(
    "order/enqueue",
    keys="pending scheduled retry due",
    args=(
        "task_prefix channel count "
        "{task_id message unique_key unique_ttl expires due_at order_key order_hold limit_key}* [now_ms]"
    ),
)
REPLACE = load(
    "task/replace",
    keys="archived completed {key of the insert}*",
    args="task_prefix task_id unique_key count {argument of the insert}* [now_ms]",
)

CREATED, ID_EXISTS, LOCKED, CLOSED = 1, 0, -1, -4
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
    replace: bool = False
    """A task with this id that has ended (archived or completed) makes room."""
    order_key: str = ""
    order_hold: bool = False
    limit_key: str = ""

    @property
    def desk(self) -> tuple[State, bool]:
        """Entries with the same go in together: with an order key or a limit key it is another script."""
        if not (self.due or self.group or self.order_key or self.limit_key):
            return _PLAIN
        return self.state, bool(self.order_key or self.limit_key)

    @property
    def state(self) -> State:
        """Where it will be stored; one with an order key only if it is its turn."""
        if self.due:
            return State.SCHEDULED
        return State.AGGREGATING if self.group else State.PENDING


_PLAIN = (State.PENDING, False)


def entry_size(entry: Entry) -> int:
    return len(entry.message)


class Intake:
    """Writes new tasks. A lost connection is tried again for a while: the ids make that safe."""

    def __init__(self, redis: Redis, *, patience: float = 5.0) -> None:
        self._redis = redis
        self._patience = patience
        self._registered: dict[str, float] = {}
        self._desks: dict[tuple[str, tuple[State, bool]], Coalescer[Entry, int]] = {}

    async def add(self, queue: str, entry: Entry) -> int:
        """One task; concurrent callers share a round trip. Returns its code once Redis has it."""
        key = (queue, entry.desk)
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
                if not self._is_registered(queue):
                    await self.register(queue)
                call = self.insertion(queue, entries)
                codes: list[int] = await self._redis.run(call.script, call.keys, call.args)
                if ID_EXISTS in codes:
                    await self._insist_each(queue, entries, codes, unsure)
            except (ConnectionLost, NotReady) as exc:
                if time.monotonic() + pause > give_up:
                    raise
                unsure = unsure or isinstance(exc, ConnectionLost)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 1.0)
                continue
            if codes == [CLOSED]:
                raise QueueClosed(queue)
            return codes

    async def _insist_each(self, queue: str, entries: Sequence[Entry], codes: list[int], unsure: bool) -> None:
        for position, entry in enumerate(entries):
            if codes[position] == ID_EXISTS and (unsure or entry.replace):
                codes[position] = await self._insist(queue, entry, unsure)

    async def _insist(self, queue: str, entry: Entry, unsure: bool) -> int:
        """The id is there: by an earlier try of ours whose answer was lost, or by a task that shall make room."""
        if unsure:
            key = keys.task(queue, entry.task_id)
            if entry.own_id or await self._redis.command("HGET", key, "msg", key=key) == entry.message:
                return CREATED
        if not entry.replace:
            return ID_EXISTS
        insert = self.insertion(queue, [entry])
        code: int = (
            await self._redis.run(
                with_insert(REPLACE, insert.script),
                [keys.archived(queue), keys.completed(queue), *insert.keys],
                [keys.task_prefix(queue), entry.task_id, entry.unique_key, len(insert.args), *insert.args],
            )
        )[0]
        if code == CLOSED:
            raise QueueClosed(queue)
        return code

    def insertion(self, queue: str, entries: Sequence[Entry]) -> Call:
        """The script call that stores these; also for those who do it in one step with something else."""
        state, is_bound = entries[0].desk
        if is_bound:
            return self._bound(queue, entries)
        if state is State.PENDING:
            return self._plain(queue, entries)
        where = keys.delay_wakeup(queue) if state is State.SCHEDULED else keys.group_prefix(queue)
        args: list[Argument] = [keys.task_prefix(queue), where, len(entries)]
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
            args += (entry.due, entry.group) if state is State.SCHEDULED else (entry.group,)
        if state is State.SCHEDULED:
            return Call(SCHEDULE, (keys.scheduled(queue), keys.retry(queue), keys.due(queue)), args)
        return Call(ADD, (keys.groups(queue),), args)

    def _plain(self, queue: str, entries: Sequence[Entry]) -> Call:
        """Most batches have neither locks nor expiries: what is not sent need not be read."""
        args: list[Argument] = [keys.task_prefix(queue), len(entries), 2]
        for entry in entries:
            if entry.unique_key or entry.expires:
                break
            args += (entry.task_id, entry.message)
        else:
            return Call(ENQUEUE, (keys.pending(queue),), args)
        args[2:] = [5]
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
        return Call(ENQUEUE, (keys.pending(queue),), args)

    def _bound(self, queue: str, entries: Sequence[Entry]) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), keys.delay_wakeup(queue), len(entries)]
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires, entry.due)
            args += (entry.order_key, int(entry.order_hold), entry.limit_key)
        names = (keys.pending(queue), keys.scheduled(queue), keys.retry(queue), keys.due(queue))
        return Call(ENQUEUE_BOUND, names, args)

    async def register(self, *queues: str) -> None:
        """Make queues known to all tools; once a minute is enough."""
        new = [queue for queue in queues if not self._is_registered(queue)]
        if new:
            now = time.monotonic()
            await self._redis.command("SADD", keys.QUEUES, *new, key=keys.QUEUES)
            self._registered.update(dict.fromkeys(new, now))

    def _is_registered(self, queue: str) -> bool:
        return self._registered.get(queue, -REGISTER_AGAIN) + REGISTER_AGAIN >= time.monotonic()
