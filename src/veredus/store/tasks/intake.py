"""Stores new tasks: enqueue, schedule and add to a group, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from veredus.errors import CommandRefused, ConnectionLost, NotConfirmed, NotReady, QueueClosed, ServerFull, StoreError
from veredus.model.backoff import Backoff
from veredus.model.lifecycle import State
from veredus.process import forks
from veredus.store.connection.batching import Coalescer
from veredus.store.connection.connection import Argument
from veredus.store.connection.error_replies import NotSent
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load, with_insert
from veredus.wire import keys


class PlainRow(NamedTuple):
    task_id: str
    message: bytes
    unique_key: str
    unique_ttl: int
    expires: str


class ScheduledRow(NamedTuple):
    task_id: str
    message: bytes
    unique_key: str
    unique_ttl: int
    expires: str
    due_at: str
    group: str


class MemberRow(NamedTuple):
    task_id: str
    message: bytes
    unique_key: str
    unique_ttl: int
    expires: str
    group: str


class BoundRow(NamedTuple):
    """A task with an order key or a limit key."""

    task_id: str
    message: bytes
    unique_key: str
    unique_ttl: int
    expires: str
    due_at: str
    order_key: str
    order_hold: bool
    limit_key: str


class InsertValue(NamedTuple):
    """An argument of the script that stores the tasks, within another script."""

    value: Argument


class IdRow(NamedTuple):
    """A task that needs room in its queue, unless it is there already."""

    task_id: str
    unique_key: str


class LockRow(NamedTuple):
    unique_key: str


ENQUEUE = load("task/enqueue", keys="pending sent", args="queue_prefix number lifetime", rows=PlainRow)
SCHEDULE = load(
    "task/schedule",
    keys="scheduled retry due sent",
    args="queue_prefix channel number lifetime",
    rows=ScheduledRow,
)
ADD = load("group/add", keys="groups sent", args="queue_prefix number lifetime", rows=MemberRow)
ENQUEUE_BOUND = load(
    "order/enqueue",
    keys="pending scheduled retry due sent",
    args="queue_prefix channel number lifetime",
    rows=BoundRow,
)
REPLACE = load(
    "task/replace",
    keys="archived completed sent MORE insert_keys",
    args="queue_prefix task_id unique_key number",
    rows=InsertValue,
)
HOLDERS = load("task/holders", keys="MORE insert_keys", args="queue_prefix", rows=(LockRow, InsertValue))

ROOM = load(
    "task/room",
    keys="pending scheduled retry sent MORE insert_keys",
    args="queue_prefix most number first_id count always",
    rows=(IdRow, InsertValue),
)

CREATED, ID_EXISTS, LOCKED, CLOSED, ANOTHER_CALL, FULL = 1, 0, -1, -4, -5, -6
Code = int | NotConfirmed
"""The result for one task; an error if it is stored but not as safe as requested."""
REGISTER_AGAIN = 60.0
"""Seconds after which a queue is registered again, because another program may have deleted it."""
RECORD_MARGIN = 30.0
"""Seconds that the record of a producer's call exists, in addition to twice its `patience`: 40 seconds by default. A
call is repeated for as long as `patience` lasts; the rest is for requests that are delayed on their way."""


ROOM_PAUSE = 0.25
"""The longest pause between two tries to store a task in a full queue, in seconds."""
Item = TypeVar("Item")


class LockHolder(int):
    """The code LOCKED, with the task that holds the lock."""

    task_id: str
    state: str
    """Empty if that task is gone."""

    @classmethod
    def by(cls, task_id: bytes, state: bytes) -> LockHolder:
        held = cls(LOCKED)
        held.task_id, held.state = task_id.decode(errors="replace"), state.decode(errors="replace")
        return held


class CallRecord(NamedTuple):
    """Identifies a call that is sent again."""

    key: str
    number: str
    lifetime: int


class NewTask(NamedTuple):
    """One encoded task to be stored. Instants are text: `+250` ms from now, or absolute Unix ms; empty for none."""

    task_id: str
    message: bytes
    due: str = ""
    expires: str = ""
    unique_key: str = ""
    unique_ttl: int = 0
    group: str = ""
    replace: bool = False
    """Replaces a task with this id that has ended (archived or completed)."""
    order_key: str = ""
    order_hold: bool = False
    limit_key: str = ""
    needs: tuple[str, ...] = ()
    """Options that only Veredus workers support."""

    @property
    def stored(self) -> PlainRow:
        """The columns that every script needs to store a task."""
        return PlainRow(self.task_id, self.message, self.unique_key, self.unique_ttl, self.expires)

    @property
    def batch_kind(self) -> tuple[State, bool]:
        """Tasks with equal kinds can be stored together: an order key or a limit key needs another script."""
        if not (self.due or self.group or self.order_key or self.limit_key):
            return PLAIN
        return self.state, bool(self.order_key or self.limit_key)

    @property
    def state(self) -> State:
        """The state after storing; with an order key, only if it is the task's turn."""
        if self.due:
            return State.SCHEDULED
        return State.AGGREGATING if self.group else State.PENDING


PLAIN = (State.PENDING, False)
"""The batch kind of tasks that are pending at once."""


def no_record(queue: str) -> CallRecord:
    """For callers that recognise a repeated call by themselves."""
    return CallRecord(keys.absent(keys.pending(queue)), "", 0)


def _unknown(queue: str) -> ConnectionLost:
    return ConnectionLost(f"queue {queue!r}: a reply was lost; whether the tasks were stored is not known")


def _telling_holders(call: ScriptCall, queue: str, entries: Sequence[NewTask]) -> ScriptCall:
    """The same call if no task is unique; else one that also returns the holders of their locks."""
    for entry in entries:
        if entry.unique_key:
            break
    else:
        return call
    locks = [LockRow(entry.unique_key) for entry in entries]
    args = HOLDERS.args((keys.queue_prefix(queue),), locks, [(value,) for value in call.args])
    return ScriptCall(with_insert(HOLDERS, call.script), call.keys, args)


def _read(reply: Any, count: int) -> list[Code]:
    if type(reply) is not list or not reply:
        raise CommandRefused(f"unexpected reply to a call that stores tasks: {reply!r:.100}")
    for place, task_id, state in reply[count:]:
        reply[place - 1] = LockHolder.by(task_id, state)
    return reply[:count]


def entry_size(entry: NewTask) -> int:
    return len(entry.message)


class Intake:
    """Writes new tasks. A call without a reply is repeated for a while, and never stores its tasks twice: each
    script call has a number, which is recorded in a slot that belongs to one call at a time."""

    def __init__(
        self, redis: Redis, *, patience: float = 5.0, max_lengths: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`max_lengths`: of some queues, how many tasks may wait in them."""
        self._redis = redis
        self._max_lengths = max_lengths
        self._patience = patience
        self._lifetime = math.ceil(2 * patience + RECORD_MARGIN)
        self._registered: dict[str, float] = {}
        self._coalescers: dict[tuple[str, tuple[State, bool]], Coalescer[NewTask, Code]] = {}
        self._number = 0
        self._new_producer()
        forks.register(self)

    def forked(self) -> None:
        """After a fork: the slots belong to the parent."""
        self._new_producer()

    def _new_producer(self) -> None:
        self._producer = secrets.token_hex(8)
        self._slots = 0
        self._free: dict[str, list[str]] = {}
        """By queue: the slots that no call uses."""

    def add(self, queue: str, entry: NewTask) -> Awaitable[Code]:
        """Store one task; concurrent callers share a round trip. Returns its code once Redis has it."""
        key = (queue, entry.batch_kind)
        coalescer = self._coalescers.get(key)
        if coalescer is None:
            coalescer = self._coalescers[key] = Coalescer(lambda entries: self.add_many(queue, entries), entry_size)
        return coalescer.add(entry)

    async def add_many(self, queue: str, entries: Sequence[NewTask], *, wait: float = 0.0) -> list[Code]:
        """Store tasks of one queue that get the same state. Returns a code for each. In a queue that is full, they wait
        for room as long as `wait` seconds."""
        give_up = time.monotonic() + self._patience

        def insert(entries: Sequence[NewTask], record: CallRecord) -> ScriptCall:
            call = self.insertion(queue, entries, record)
            if queue in self._max_lengths:
                call = self._if_room(queue, call, record, [IdRow(one.task_id, one.unique_key) for one in entries])
            return _telling_holders(call, queue, entries)

        codes = await self._insert(queue, entries, insert, time.monotonic() + wait)
        if ID_EXISTS in codes:
            for position, entry in enumerate(entries):
                if codes[position] == ID_EXISTS and entry.replace:
                    replacement = functools.partial(self._replacement, queue, entry)
                    codes[position] = (await self._write(queue, 1, replacement, give_up))[0]
        return codes

    async def add_plain(self, queue: str, rows: Sequence[tuple[str, bytes]], *, wait: float = 0.0) -> list[Code]:
        """The same for tasks that are only an id and a message."""

        def insert(rows: Sequence[tuple[str, bytes]], record: CallRecord) -> ScriptCall:
            call = self._enqueue(queue, rows, record)
            if queue not in self._max_lengths:
                return call
            return self._if_room(queue, call, record, [IdRow(task_id, "") for task_id, _ in rows])

        return await self._insert(queue, rows, insert, time.monotonic() + wait)

    async def _insert(
        self,
        queue: str,
        items: Sequence[Item],
        insert: Callable[[Sequence[Item], CallRecord], ScriptCall],
        until: float,
    ) -> list[Code]:
        """Store all of them, in their order. Of those that a full queue has no room for, as many as fit."""
        give_up, backoff = time.monotonic() + self._patience, Backoff(longest=ROOM_PAUSE)
        while True:
            codes = await self._write(queue, len(items), functools.partial(insert, items), give_up)
            if codes != [FULL]:
                return codes
            if len(items) > 1:
                half = len(items) // 2
                first = await self._insert(queue, items[:half], insert, until)
                if FULL in first:
                    return [*first, *[FULL] * (len(items) - half)]
                return [*first, *await self._insert(queue, items[half:], insert, until)]
            left = until - time.monotonic()
            if left <= 0:
                return codes
            await asyncio.sleep(min(backoff.take(), left))  # with a last look at the end
            give_up = time.monotonic() + self._patience

    async def _write(
        self, queue: str, count: int, insert: Callable[[CallRecord], ScriptCall], give_up: float
    ) -> list[Code]:
        """One script call for `count` tasks, repeated until it gets a reply."""
        self._number += 1
        number, producer, slot = f"{self._number:012}", self._producer, self._take_slot(queue)
        unsure, backoff = False, Backoff()
        try:
            while True:
                try:
                    if not self._is_registered(queue):
                        await self.register(queue)
                    call = insert(CallRecord(slot, number, self._lifetime))
                    codes: list[Code] = _read(await self._redis.run(call.script, call.keys, call.args), count)
                except StoreError as exc:
                    # A full server has stored nothing and will not have room soon, unless an earlier reply was lost.
                    passes = isinstance(exc, (ConnectionLost, NotReady)) or (unsure and isinstance(exc, ServerFull))
                    if not passes or not await self._may_try_again(backoff, give_up, slot):
                        if unsure and (isinstance(exc, NotSent) or not isinstance(exc, ConnectionLost)):
                            raise _unknown(queue) from exc
                        raise
                    unsure = unsure or (isinstance(exc, ConnectionLost) and not isinstance(exc, NotSent))
                    continue
                if codes == [CLOSED]:
                    raise QueueClosed(queue)
                if codes != [ANOTHER_CALL]:
                    return codes
                # Another process uses the same numbers, as in a virtual machine that was cloned while running.
                if unsure:
                    raise _unknown(queue)
                if producer == self._producer:
                    self._new_producer()
                producer, slot = self._producer, self._take_slot(queue)
        finally:
            if producer == self._producer:
                self._free.setdefault(queue, []).append(slot)

    def most_in(self, queue: str) -> int:
        """How many tasks may wait in a queue that has a bound."""
        return self._max_lengths.get(queue, 0)

    def _take_slot(self, queue: str) -> str:
        free = self._free.get(queue)
        if free:
            return free.pop()
        self._slots += 1
        return keys.sent(queue, self._producer, self._slots)

    async def _may_try_again(self, backoff: Backoff, give_up: float, slot: str) -> bool:
        """Pause before the next try. Returns False if it is too late, even if only because this process stood still:
        the call must not be sent when its record may be gone. Connects first, so that the call is sent at once."""
        if time.monotonic() + backoff.next > give_up:
            return False
        await asyncio.sleep(backoff.take())
        with contextlib.suppress(StoreError):
            await self._redis.be_connected(slot)
        return time.monotonic() <= give_up

    def _replacement(self, queue: str, entry: NewTask, record: CallRecord) -> ScriptCall:
        insert = self.insertion(queue, [entry], record)
        call = ScriptCall(
            with_insert(REPLACE, insert.script),
            [keys.archived(queue), keys.completed(queue), record.key, *insert.keys],
            REPLACE.args(
                (keys.queue_prefix(queue), entry.task_id, entry.unique_key, record.number),
                [(value,) for value in insert.args],
            ),
        )
        if queue in self._max_lengths:
            call = self._if_room(queue, call, record, [], first_id=entry.task_id)
        return _telling_holders(call, queue, [entry])

    def _if_room(
        self, queue: str, insert: ScriptCall, record: CallRecord, ids: Sequence[IdRow], first_id: str = ""
    ) -> ScriptCall:
        """The same call, if there is room for its tasks. Without `ids` it is one task, in the place of one that
        ended."""
        first_id, count = (ids[0].task_id, len(ids)) if ids else (first_id, 1)
        fixed = (keys.queue_prefix(queue), self._max_lengths[queue], record.number, first_id, count, 0 if ids else 1)
        names = (keys.pending(queue), keys.scheduled(queue), keys.retry(queue), record.key, *insert.keys)
        return ScriptCall(
            with_insert(ROOM, insert.script), names, ROOM.args(fixed, ids, [(value,) for value in insert.args])
        )

    def insertion(self, queue: str, entries: Sequence[NewTask], record: CallRecord) -> ScriptCall:
        """The script call that stores these tasks; also for scripts that do it together with something else."""
        state, is_bound = entries[0].batch_kind
        if is_bound:
            return self._bound(queue, entries, record)
        if state is State.PENDING:
            return self._plain(queue, entries, record)
        prefix, sent = keys.queue_prefix(queue), (record.number, record.lifetime)
        if state is State.SCHEDULED:
            scheduled = [ScheduledRow(*entry.stored, entry.due, entry.group) for entry in entries]
            names = (keys.scheduled(queue), keys.retry(queue), keys.due(queue), record.key)
            return ScriptCall(SCHEDULE, names, SCHEDULE.args((prefix, keys.delay_wakeup(queue), *sent), scheduled))
        members = [MemberRow(*entry.stored, entry.group) for entry in entries]
        return ScriptCall(ADD, (keys.groups(queue), record.key), ADD.args((prefix, *sent), members))

    def _plain(self, queue: str, entries: Sequence[NewTask], record: CallRecord) -> ScriptCall:
        """Most batches have neither locks nor expiries: what is not sent need not be parsed."""
        rows: list[tuple[Argument, ...]] = []
        for entry in entries:
            if entry.unique_key or entry.expires:
                rows = [entry.stored for entry in entries]
                break
            rows.append((entry.task_id, entry.message))
        return self._enqueue(queue, rows, record)

    def _enqueue(self, queue: str, rows: Sequence[tuple[Argument, ...]], record: CallRecord) -> ScriptCall:
        args = ENQUEUE.args((keys.queue_prefix(queue), record.number, record.lifetime), rows)
        return ScriptCall(ENQUEUE, (keys.pending(queue), record.key), args)

    def _bound(self, queue: str, entries: Sequence[NewTask], record: CallRecord) -> ScriptCall:
        rows = [BoundRow(*e.stored, e.due, e.order_key, e.order_hold, e.limit_key) for e in entries]
        fixed = (keys.queue_prefix(queue), keys.delay_wakeup(queue), record.number, record.lifetime)
        names = (keys.pending(queue), keys.scheduled(queue), keys.retry(queue), keys.due(queue), record.key)
        return ScriptCall(ENQUEUE_BOUND, names, ENQUEUE_BOUND.args(fixed, rows))

    async def register(self, *queues: str) -> None:
        """Register queues for all tools; once a minute is enough."""
        new = [queue for queue in queues if not self._is_registered(queue)]
        if new:
            now = time.monotonic()
            await self._redis.command("SADD", keys.QUEUES, *new, key=keys.QUEUES)
            self._registered.update(dict.fromkeys(new, now))

    def _is_registered(self, queue: str) -> bool:
        return self._registered.get(queue, -REGISTER_AGAIN) + REGISTER_AGAIN >= time.monotonic()
