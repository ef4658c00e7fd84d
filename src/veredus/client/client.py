"""Sends calls: builds the messages, writes them in batches, tells what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from veredus.client.calls import Call
from veredus.client.desk import Desk
from veredus.client.handle import Handle
from veredus.client.waiting import Listener
from veredus.clock import SYSTEM, Clock
from veredus.errors import TaskIdConflict
from veredus.model.build import build, due_text, expires_text, new_id
from veredus.model.lifecycle import State
from veredus.model.options import Options
from veredus.store.batching import MAX_ITEMS, in_batches
from veredus.store.intake import CREATED, ID_EXISTS, Entry, Intake, entry_size
from veredus.store.store import Store
from veredus.wire import keys
from veredus.wire.messages import Mold, encode_task

MAX_MOLDS = 1_000


class Client:
    """The producer's side of one store."""

    def __init__(self, store: Store, *, max_payload: int, clock: Clock = SYSTEM, desk: Desk | None = None) -> None:
        self.store = store
        self.listener = Listener(store.redis, store.results)
        self._desk = desk
        self._max_payload = max_payload
        self._clock = clock
        self._molds: dict[tuple[str, int], tuple[Mold, Options]] = {}

    async def enqueue(self, call: Call[Any]) -> Handle[Any]:
        """Returns once Redis has the task. Raises TaskIdConflict for an id that is taken."""
        entry = self.entry(call)
        queue = call.options.queue
        code = await self.store.intake.add(queue, entry)
        if code == ID_EXISTS:
            raise TaskIdConflict(entry.task_id, queue)
        return _handle(call, entry, code, self._desk)

    async def close(self) -> None:
        self.listener.close()
        await self.store.close()

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Many tasks in few round trips; the handles stand in the order of the calls and tell what was created.

        A list is looked through before anything is sent; other iterables are sent as they come, so if one of them
        raises, what came before is in Redis.
        """
        if isinstance(calls, list | tuple):
            for call in calls:
                call.check_size(self._max_payload)
        batches = _Batches(self.store.intake, self._desk)
        for call in calls:
            await batches.add(call, self.entry(call))
        return await batches.finish()

    def entry(self, call: Call[Any]) -> Entry:
        """What will be stored for this call."""
        call.check_size(self._max_payload)
        options, now = call.options, self._clock.time()
        if options.task_id is None and not options.unique_for:
            task_id = new_id()
            data = self._mold(call).cast(task_id, call.payload or b"")
            return Entry(
                task_id,
                data,
                due_text(options, now),
                expires_text(options, now),
                own_id=True,
                group=options.group or "",
            )
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
            own_id=options.task_id is None,
            group=message.group_key,
        )

    def _mold(self, call: Call[Any]) -> Mold:
        """Tasks of one type with the same options object differ only in id and payload."""
        key = (call.type, id(call.options))
        found = self._molds.get(key)
        if found is None:
            if len(self._molds) >= MAX_MOLDS:
                self._molds.clear()
            # The options are kept with it, so that their id cannot come to mean others.
            found = self._molds[key] = (Mold(build(call.type, b"", call.options)), call.options)
        return found[0]


class _Batches:
    """Sends full batches while the next ones are being filled: one on its way, one in the making, in order."""

    def __init__(self, intake: Intake, desk: Desk | None) -> None:
        self._intake = intake
        self._desk = desk
        self._sent: list[tuple[Call[Any], Entry]] = []
        self._codes: dict[int, int] = {}
        self._desks: dict[tuple[str, State], list[int]] = {}
        self._on_the_way: list[asyncio.Task[None]] = []

    async def add(self, call: Call[Any], entry: Entry) -> None:
        self._sent.append((call, entry))
        desk = self._desks.setdefault((call.options.queue, entry.state), [])
        desk.append(len(self._sent) - 1)
        if len(desk) >= MAX_ITEMS:
            del self._desks[(call.options.queue, entry.state)]
            await self._send(desk)

    async def finish(self) -> list[Handle[Any]]:
        for desk in self._desks.values():
            await self._send(desk)
        await asyncio.gather(*self._on_the_way)
        return [_handle(call, entry, self._codes[n], self._desk) for n, (call, entry) in enumerate(self._sent)]

    async def _send(self, positions: list[int]) -> None:
        while len(self._on_the_way) > 1:
            await self._on_the_way.pop(0)
        self._on_the_way.append(asyncio.create_task(self._write(positions)))
        await asyncio.sleep(0)  # so that it leaves now, not when the next batch is full

    async def _write(self, positions: list[int]) -> None:
        for batch in in_batches(positions, lambda position: entry_size(self._sent[position][1])):
            entries = [self._sent[position][1] for position in batch]
            codes = await self._intake.add_many(self._sent[batch[0]][0].options.queue, entries)
            self._codes.update(zip(batch, codes, strict=True))


def _handle(call: Call[Any], entry: Entry, code: int, desk: Desk | None) -> Handle[Any]:
    return Handle(entry.task_id, call.options.queue, call.type, str(entry.state), code == CREATED, desk)
