"""The desk where tasks come in: enqueue, schedule and add to a group, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from veredus import forks
from veredus.errors import ConnectionLost, NotConfirmed, NotReady, QueueClosed, ServerFull, StoreError
from veredus.model.lifecycle import State
from veredus.store.batching import Coalescer
from veredus.store.connection import Argument
from veredus.store.faults import NotSent
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load, with_insert
from veredus.wire import keys

ENQUEUE = load(
    "task/enqueue",
    keys="pending sent",
    args="task_prefix count width number lifetime {task_id message [unique_key unique_ttl expires]}* [now_ms]",
)
SCHEDULE = load(
    "task/schedule",
    keys="scheduled retry due sent",
    args=(
        "task_prefix channel count number lifetime "
        "{task_id message unique_key unique_ttl expires due_at group}* [now_ms]"
    ),
)
ADD = load(
    "group/add",
    keys="groups sent",
    args=(
        "task_prefix group_prefix count number lifetime {task_id message unique_key unique_ttl expires group}* [now_ms]"
    ),
)

ENQUEUE_BOUND = load(
    "order/enqueue",
    keys="pending scheduled retry due sent",
    args=(
        "task_prefix channel count number lifetime "
        "{task_id message unique_key unique_ttl expires due_at order_key order_hold limit_key}* [now_ms]"
    ),
)
REPLACE = load(
    "task/replace",
    keys="archived completed sent {key of the insert}*",
    args="task_prefix task_id unique_key number count {argument of the insert}* [now_ms]",
)
HOLDERS = load(
    "task/holders",
    keys="{key of the insert}*",
    args="task_prefix count {unique_key}* size {argument of the insert}* [now_ms]",
)

CREATED, ID_EXISTS, LOCKED, CLOSED, ANOTHER_CALL = 1, 0, -1, -4, -5
Code = int | NotConfirmed
"""What became of one task; the error for one that is stored but not as safe as was asked for."""
REGISTER_AGAIN = 60.0
"""Seconds after which a queue is registered again: somebody else may have deleted it meanwhile."""
RECORD_MARGIN = 30.0
"""A producer's record of a call lives twice its `patience` and this many seconds more: 40 seconds by default. A call is
sent again for as long as `patience` lasts, so the rest is for requests that are held up on their way."""


class Held(int):
    """LOCKED, with the task that has the lock."""

    task_id: str
    state: str
    """Empty if that task is gone."""

    @classmethod
    def by(cls, task_id: bytes, state: bytes) -> Held:
        held = cls(LOCKED)
        held.task_id, held.state = task_id.decode(errors="replace"), state.decode(errors="replace")
        return held


class Record(NamedTuple):
    """By which a call is recognised when it is sent again."""

    key: str
    number: str
    lifetime: int


class Entry(NamedTuple):
    """One encoded task on its way in. Instants are text: `+250` ms from now, or absolute Unix ms; empty for none."""

    task_id: str
    message: bytes
    due: str = ""
    expires: str = ""
    unique_key: str = ""
    unique_ttl: int = 0
    group: str = ""
    replace: bool = False
    """A task with this id that has ended (archived or completed) makes room."""
    order_key: str = ""
    order_hold: bool = False
    limit_key: str = ""
    needs: tuple[str, ...] = ()
    """Options that only Veredus workers keep."""

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


def no_record(queue: str) -> Record:
    """For those who recognise a repeated call by themselves."""
    return Record(keys.absent(keys.pending(queue)), "", 0)


def _unknown(queue: str) -> ConnectionLost:
    return ConnectionLost(f"queue {queue!r}: a reply was lost; whether the tasks were stored is not known")


def _telling_holders(call: Call, queue: str, entries: Sequence[Entry]) -> Call:
    """The same call, if none of the tasks is unique; else one that tells who has their locks."""
    for entry in entries:
        if entry.unique_key:
            break
    else:
        return call
    locks = [entry.unique_key for entry in entries]
    args = [keys.task_prefix(queue), len(locks), *locks, len(call.args), *call.args]
    return Call(with_insert(HOLDERS, call.script), call.keys, args)


def _read(reply: list[Any], count: int) -> list[Code]:
    for place, task_id, state in reply[count:]:
        reply[place - 1] = Held.by(task_id, state)
    return reply[:count]


def entry_size(entry: Entry) -> int:
    return len(entry.message)


class Intake:
    """Writes new tasks. A call that got no reply is sent again for a while, and never stores its tasks twice: each
    script call has a number and stands in the record of its slot, which belongs to one call at a time."""

    def __init__(self, redis: Redis, *, patience: float = 5.0) -> None:
        self._redis = redis
        self._patience = patience
        self._lifetime = math.ceil(2 * patience + RECORD_MARGIN)
        self._registered: dict[str, float] = {}
        self._desks: dict[tuple[str, tuple[State, bool]], Coalescer[Entry, Code]] = {}
        self._number = 0
        self._new_producer()
        forks.hold(self)

    def forked(self) -> None:
        """In a fork: the slots are the parent's."""
        self._new_producer()

    def _new_producer(self) -> None:
        self._producer = secrets.token_hex(8)
        self._slots = 0
        self._free: dict[str, list[str]] = {}
        """By queue, the records of slots that no call uses."""

    async def add(self, queue: str, entry: Entry) -> Code:
        """One task; concurrent callers share a round trip. Returns its code once Redis has it."""
        key = (queue, entry.desk)
        desk = self._desks.get(key)
        if desk is None:
            desk = self._desks[key] = Coalescer(lambda entries: self.add_many(queue, entries), entry_size)
        return await desk.add(entry)

    async def add_many(self, queue: str, entries: Sequence[Entry]) -> list[Code]:
        """Tasks of one queue that all come into the same state. Returns a code for each."""
        give_up = time.monotonic() + self._patience
        codes = await self._write(queue, entries, give_up)
        if ID_EXISTS in codes:
            for position, entry in enumerate(entries):
                if codes[position] == ID_EXISTS and entry.replace:
                    codes[position] = (await self._write(queue, [entry], give_up, replace=True))[0]
        return codes

    async def _write(
        self, queue: str, entries: Sequence[Entry], give_up: float, *, replace: bool = False
    ) -> list[Code]:
        """One script call, sent again until it is answered."""
        self._number += 1
        number, producer, slot = f"{self._number:012}", self._producer, self._take_slot(queue)
        unsure, pause = False, 0.05
        try:
            while True:
                try:
                    if not self._is_registered(queue):
                        await self.register(queue)
                    record = Record(slot, number, self._lifetime)
                    call = (
                        self._replacement(queue, entries[0], record)
                        if replace
                        else self.insertion(queue, entries, record)
                    )
                    call = _telling_holders(call, queue, entries)
                    codes: list[Code] = _read(await self._redis.run(call.script, call.keys, call.args), len(entries))
                except StoreError as exc:
                    # A full server has stored nothing and will not have room soon, unless an answer was lost before.
                    passes = isinstance(exc, (ConnectionLost, NotReady)) or (unsure and isinstance(exc, ServerFull))
                    if not passes or not await self._may_try_again(pause, give_up, slot):
                        if unsure and (isinstance(exc, NotSent) or not isinstance(exc, ConnectionLost)):
                            raise _unknown(queue) from exc
                        raise
                    unsure = unsure or (isinstance(exc, ConnectionLost) and not isinstance(exc, NotSent))
                    pause = min(pause * 2, 1.0)
                    continue
                if codes == [CLOSED]:
                    raise QueueClosed(queue)
                if codes != [ANOTHER_CALL]:
                    return codes
                # Another process has this one's numbers, as in a machine that was cloned while it ran.
                if unsure:
                    raise _unknown(queue)
                if producer == self._producer:
                    self._new_producer()
                producer, slot = self._producer, self._take_slot(queue)
        finally:
            if producer == self._producer:
                self._free.setdefault(queue, []).append(slot)

    def _take_slot(self, queue: str) -> str:
        free = self._free.get(queue)
        if free:
            return free.pop()
        self._slots += 1
        return keys.sent(queue, self._producer, self._slots)

    async def _may_try_again(self, pause: float, give_up: float, slot: str) -> bool:
        """After a pause. Not when it has become too late for that, although only because this process stood still: the
        call must not leave when its record may be gone. Connected first, so that it leaves at once."""
        if time.monotonic() + pause > give_up:
            return False
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        with contextlib.suppress(StoreError):
            await self._redis.be_connected(slot)
        return time.monotonic() <= give_up

    def _replacement(self, queue: str, entry: Entry, record: Record) -> Call:
        insert = self.insertion(queue, [entry], record)
        return Call(
            with_insert(REPLACE, insert.script),
            [keys.archived(queue), keys.completed(queue), record.key, *insert.keys],
            [keys.task_prefix(queue), entry.task_id, entry.unique_key, record.number, len(insert.args), *insert.args],
        )

    def insertion(self, queue: str, entries: Sequence[Entry], record: Record) -> Call:
        """The script call that stores these; also for those who do it in one step with something else."""
        state, is_bound = entries[0].desk
        if is_bound:
            return self._bound(queue, entries, record)
        if state is State.PENDING:
            return self._plain(queue, entries, record)
        where = keys.delay_wakeup(queue) if state is State.SCHEDULED else keys.group_prefix(queue)
        args: list[Argument] = [keys.task_prefix(queue), where, len(entries), record.number, record.lifetime]
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
            args += (entry.due, entry.group) if state is State.SCHEDULED else (entry.group,)
        if state is State.SCHEDULED:
            return Call(SCHEDULE, (keys.scheduled(queue), keys.retry(queue), keys.due(queue), record.key), args)
        return Call(ADD, (keys.groups(queue), record.key), args)

    def _plain(self, queue: str, entries: Sequence[Entry], record: Record) -> Call:
        """Most batches have neither locks nor expiries: what is not sent need not be read."""
        names = (keys.pending(queue), record.key)
        args: list[Argument] = [keys.task_prefix(queue), len(entries), 2, record.number, record.lifetime]
        for entry in entries:
            if entry.unique_key or entry.expires:
                break
            args += (entry.task_id, entry.message)
        else:
            return Call(ENQUEUE, names, args)
        args[2:] = [5, record.number, record.lifetime]
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires)
        return Call(ENQUEUE, names, args)

    def _bound(self, queue: str, entries: Sequence[Entry], record: Record) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), keys.delay_wakeup(queue), len(entries)]
        args += (record.number, record.lifetime)
        for entry in entries:
            args += (entry.task_id, entry.message, entry.unique_key, entry.unique_ttl, entry.expires, entry.due)
            args += (entry.order_key, int(entry.order_hold), entry.limit_key)
        names = (keys.pending(queue), keys.scheduled(queue), keys.retry(queue), keys.due(queue), record.key)
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
