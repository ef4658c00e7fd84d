"""Sends calls: builds the messages, writes them in batches, tells what became of each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from veredus.client.calls import Call
from veredus.client.desk import Desk
from veredus.client.handle import Handle
from veredus.client.served import ServedCheck
from veredus.client.waiting import Listener
from veredus.clock import SYSTEM, Clock
from veredus.errors import ConnectionLost, NotConfirmed, NotReady, TaskIdConflict
from veredus.model.build import build, due_text, expires_text, new_id
from veredus.model.lifecycle import State
from veredus.model.options import Options
from veredus.store.batching import MAX_BYTES, MAX_ITEMS
from veredus.store.intake import CREATED, ID_EXISTS, Code, Entry, Held, Intake
from veredus.store.results import GONE
from veredus.store.roll import Roll
from veredus.store.store import Store
from veredus.wire import keys
from veredus.wire.messages import Mold, encode_task

if TYPE_CHECKING:
    from veredus.client.notifier import Notifier

MAX_MOLDS = 1_000

Send = Callable[[Iterable[Call[Any]]], Awaitable[list[Handle[Any]]]]
SendMiddleware = Callable[[Iterable[Call[Any]], Send], Awaitable[list[Handle[Any]]]]
"""Wraps everything that is sent: the calls, and what sends them; one handle per call, in their order."""


class Client:
    """The producer's side of one store."""

    def __init__(
        self,
        store: Store,
        *,
        max_payload: int,
        clock: Clock = SYSTEM,
        desk: Desk | None = None,
        middlewares: Sequence[SendMiddleware] = (),
        confirms: bool = True,
        unserved: str = "ignore",
        is_limited: Callable[[str, str], bool] = lambda task_type, queue: False,
    ) -> None:
        """`confirms`: False for a server on which no `durability` can be had, that of a test. `is_limited`: whether a
        limit was declared for this type or this queue."""
        self.store = store
        self._confirms = confirms
        self._middlewares = middlewares
        self.listener = Listener(store.redis, store.results)
        self._notifier: Notifier | None = None
        self._desk = desk
        self._max_payload = max_payload
        self._clock = clock
        self._served = ServedCheck(Roll(store.redis), unserved)
        self._is_limited = is_limited
        self._molds: dict[tuple[str, int], _OptionsMold] = {}
        """Tasks of one type with the same options object differ only in id and payload."""

    async def enqueue(self, call: Call[Any], *, _wrapped: bool = False) -> Handle[Any]:
        """Returns once Redis has the task. Raises TaskIdConflict for an id that is taken."""
        if self._middlewares and not _wrapped:
            return (await self._through(self._enqueue_each)((call,)))[0]
        entry = self.entry(call)
        queue = call.options.queue
        if entry.needs:
            await self._served.before(queue, entry)
        code = await self._intake(call.options.durability).add(queue, entry)
        if entry.needs:
            await self._served.after(queue, entry)
        if code == ID_EXISTS:
            raise TaskIdConflict(entry.task_id, queue)
        handle = _handle(call, entry, code, self._desk)
        if isinstance(code, NotConfirmed):
            raise NotConfirmed(f"task {entry.task_id} is {code}", handles=[handle])
        return handle

    def _intake(self, durability: str) -> Intake:
        return self.store.intake_with(durability if self._confirms else "any")

    async def _enqueue_each(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        return [await self.enqueue(call, _wrapped=True) for call in calls]

    @property
    def notifier(self) -> Notifier:
        """For messages to clients of the gateway."""
        if self._notifier is None:
            from veredus.client.notifier import Notifier

            self._notifier = Notifier(self.store, clock=self._clock)
        return self._notifier

    async def close(self) -> None:
        self.listener.close()
        if self._notifier is not None:
            await self._notifier.close()
        await self.store.close()

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Many tasks in few round trips; the handles stand in the order of the calls and tell what was created.

        A list is looked through before anything is sent; other iterables are sent as they come, so if one of them
        raises, what came before is in Redis.
        """
        return await (self._through(self._enqueue_many) if self._middlewares else self._enqueue_many)(calls)

    def _through(self, send: Send) -> Send:
        """The first declared is the outermost."""
        for middleware in reversed(self._middlewares):
            send = functools.partial(_call_middleware, middleware, send)
        return send

    async def _enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        if isinstance(calls, list | tuple):
            for call in calls:
                call.check_size(self._max_payload)
        batches = _Batches(self._intake, self._desk)
        needing: dict[tuple[str, tuple[str, ...], str], Entry] = {}
        for call in calls:
            entry = self.entry(call)
            if entry.needs:
                await self._served.before(call.options.queue, entry)
                needing[call.options.queue, entry.needs, entry.group] = entry
            full = batches.add(call, entry)
            if full is not None:
                await batches.send(full)
        handles = await batches.finish()
        for (queue, _, _), entry in needing.items():
            await self._served.after(queue, entry)
        return handles

    def entry(self, call: Call[Any]) -> Entry:
        """What will be stored for this call."""
        call.check_size(self._max_payload)
        options = call.options
        if options.task_id is None and not options.unique_for:
            task_id = new_id()
            mold = self._molds.get((call.type, id(options))) or self._make_mold(call)
            data = mold.cast(task_id, call.payload or b"")
            if mold.is_plain:
                return Entry(task_id, data)
            now = self._clock.time()
            return Entry(
                task_id,
                data,
                due_text(options, now),
                expires_text(options, now),
                group=options.group or "",
                order_key=options.order_key or "",
                order_hold=options.order_hold,
                limit_key=options.limit_key or "",
                needs=mold.needs,
            )
        now = self._clock.time()
        message = build(call.type, call.payload, options)
        if options.unique_for:
            message.unique_key = keys.unique(options.queue, call.type, call.payload)
        return Entry(
            message.id,
            encode_task(message),
            due_text(options, now),
            expires_text(options, now),
            message.unique_key,
            int(options.unique_for or 0),
            group=message.group_key,
            replace=options.replace,
            order_key=options.order_key or "",
            order_hold=options.order_hold,
            limit_key=options.limit_key or "",
            needs=self._needs(call),
        )

    def _needs(self, call: Call[Any]) -> tuple[str, ...]:
        """Options that only Veredus workers keep."""
        if not self._served.is_on:
            return ()
        options = call.options
        needs = [name for name in ("order_key", "limit_key", "group") if getattr(options, name) is not None]
        if options.limit_key is None and self._is_limited(call.type, options.queue):
            needs.append("limit")
        return tuple(needs)

    def _make_mold(self, call: Call[Any]) -> _OptionsMold:
        if len(self._molds) >= MAX_MOLDS:
            self._molds.clear()
        made = self._molds[call.type, id(call.options)] = _OptionsMold(call, self._needs(call))
        return made


async def _call_middleware(middleware: SendMiddleware, send: Send, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
    return await middleware(calls, send)


class _OptionsMold(Mold):
    """Keeps the options, so that their id cannot come to mean others, and knows whether they ask for more."""

    __slots__ = ("is_plain", "needs", "options")

    def __init__(self, call: Call[Any], needs: tuple[str, ...]) -> None:
        super().__init__(build(call.type, b"", call.options))
        self.options = options = call.options
        self.needs = needs
        special = (options.delay, options.at, options.expires, options.group, options.order_key, options.limit_key)
        self.is_plain = not needs and all(value is None for value in special)


class _Batch:
    """Tasks of one queue that come into the same state, and their places among all."""

    __slots__ = ("calls", "entries", "places", "size")

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []
        self.entries: list[Entry] = []
        self.places: list[int] = []
        self.size = 0


class _Batches:
    """Sends full batches while the next ones are being filled: one on its way, one in the making, in order."""

    def __init__(self, intake: Callable[[str], Intake], desk: Desk | None) -> None:
        self._intake = intake
        self._desk = desk
        self._count = 0
        self._handles: dict[int, Handle[Any]] = {}
        self._filling: dict[tuple[str, tuple[State, bool], str], _Batch] = {}
        self._newest: tuple[Options, tuple[State, bool], _Batch] | None = None
        """The batch that the last call went to: the next one mostly goes there too."""
        self._unconfirmed: list[NotConfirmed] = []
        self._on_the_way: list[asyncio.Task[None]] = []
        self._last: dict[str, asyncio.Task[None]] = {}
        """Of each queue, the last batch with order keys: the next one waits for it."""

    def add(self, call: Call[Any], entry: Entry) -> _Batch | None:
        """The batch that is full now, if any: then it must be sent."""
        options, desk, newest = call.options, entry.desk, self._newest
        if newest is not None and newest[0] is options and newest[1] is desk:
            batch = newest[2]
        else:
            batch = self._filling.setdefault((options.queue, desk, options.durability), _Batch())
            self._newest = (options, desk, batch)
        batch.calls.append(call)
        batch.entries.append(entry)
        batch.places.append(self._count)
        batch.size += len(entry.message)
        self._count += 1
        if len(batch.entries) < MAX_ITEMS and batch.size < MAX_BYTES:
            return None
        self._newest = None
        return self._filling.pop((options.queue, desk, options.durability))

    async def finish(self) -> list[Handle[Any]]:
        with contextlib.suppress(ConnectionLost, NotReady):  # each write tries that again, for as long as it may
            await self._intake("any").register(*{queue for queue, _, _ in self._filling})
        # Together: the rest of many queues costs one round trip per server.
        self._on_the_way += [self._start(batch) for batch in self._filling.values()]
        await asyncio.gather(*self._on_the_way)
        handles = [self._handles[place] for place in range(self._count)]
        if self._unconfirmed:
            count = f"{len(self._unconfirmed):,} of {self._count:,} tasks are"
            raise NotConfirmed(f"{count} {self._unconfirmed[0]}", handles=handles)
        return handles

    async def send(self, batch: _Batch) -> None:
        while len(self._on_the_way) > 1:
            await self._on_the_way.pop(0)
        self._on_the_way.append(self._start(batch))
        await asyncio.sleep(0)  # so that it leaves now, not when the next batch is full

    def _start(self, batch: _Batch) -> asyncio.Task[None]:
        if not batch.entries[0].desk[1]:
            return asyncio.create_task(self._write(batch))
        queue = batch.calls[0].options.queue
        self._last[queue] = asyncio.create_task(self._write(batch, self._last.get(queue)))
        return self._last[queue]

    async def _write(self, batch: _Batch, after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await after
        options = batch.calls[0].options
        codes = await self._intake(options.durability).add_many(options.queue, batch.entries)
        state = str(batch.entries[0].state)
        for place, call, entry, code in zip(batch.places, batch.calls, batch.entries, codes, strict=True):
            if code == CREATED:
                self._handles[place] = Handle(entry.task_id, options.queue, call.type, state, True, self._desk)
                continue
            self._handles[place] = _handle(call, entry, code, self._desk)
            if isinstance(code, NotConfirmed):
                self._unconfirmed.append(code)


def _handle(call: Call[Any], entry: Entry, code: Code, desk: Desk | None) -> Handle[Any]:
    created = code == CREATED or isinstance(code, NotConfirmed)
    if isinstance(code, Held):
        return Handle(code.task_id, call.options.queue, call.type, code.state or GONE, False, desk)
    return Handle(entry.task_id, call.options.queue, call.type, str(entry.state), created, desk)
