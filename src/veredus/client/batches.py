"""The calls of one `enqueue_many`, cut into batches: each is one script call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from veredus.client.call import Call
from veredus.client.handle import Handle, handles_of
from veredus.client.handle_queries import HandleQueries
from veredus.client.templates import OptionsTemplate
from veredus.errors import ConnectionLost, NotConfirmed, NotReady, QueueFull
from veredus.model.build import new_ids
from veredus.model.lifecycle import State
from veredus.model.options import Options
from veredus.store.connection.batching import MAX_BYTES, MAX_ITEMS
from veredus.store.tasks.intake import CREATED, FULL, PLAIN, Code, Intake, LockHolder, NewTask
from veredus.store.tasks.results import GONE

MAX_ON_THE_WAY = 3
"""CallBatches that are sent and not answered: while Redis works on one, the next one is there and another arrives."""


class CallBatch:
    """Tasks of one queue that come into the same state, and their places among all calls. Of those that are only an id
    and a message, both are made when the batch is sent, all at once."""

    __slots__ = ("_calls", "_ids", "_payloads", "_size", "_templates", "durability", "kind", "places", "queue", "wait")

    def __init__(self, queue: str, kind: tuple[State, bool], durability: str, wait: float | None) -> None:
        self.queue, self.kind, self.durability, self.wait = queue, kind, durability, wait
        self.places: list[int] = []
        self._templates: list[OptionsTemplate | None] = []
        self._payloads: list[bytes] = []
        self._calls: dict[int, tuple[Call[Any], NewTask]] = {}
        """Those that have more, by their position here."""
        self._ids: list[str] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return len(self.places) >= MAX_ITEMS or self._size >= MAX_BYTES

    def add_plain(self, place: int, template: OptionsTemplate, payload: bytes) -> None:
        self.places.append(place)
        self._templates.append(template)
        self._payloads.append(payload)
        self._size += len(payload)

    def add(self, place: int, call: Call[Any], entry: NewTask) -> None:
        self._calls[len(self.places)] = call, entry
        self.places.append(place)
        self._templates.append(None)
        self._payloads.append(b"")
        self._size += len(entry.message)

    @property
    def key(self) -> tuple[str, tuple[State, bool], str, float | None]:
        """Calls with the same go in together."""
        return self.queue, self.kind, self.durability, self.wait

    def refuse(self) -> Sequence[Code]:
        """Not sent, because calls before these had no room."""
        self._ids = new_ids(len(self.places))
        return [FULL] * len(self.places)

    async def write(self, intake: Intake) -> Sequence[Code]:
        self._ids = new_ids(len(self.places))
        parts = zip(self._ids, self._templates, self._payloads, strict=True)
        rows = [
            (task_id, template.fill(task_id, payload)) for task_id, template, payload in parts if template is not None
        ]
        if not self._calls:
            return await intake.add_plain(self.queue, rows, wait=self.wait or 0.0)
        entries = [NewTask(*row) for row in rows]
        for position, (_, entry) in self._calls.items():  # in ascending order
            entries.insert(position, entry)
            self._ids[position] = entry.task_id
        return await intake.add_many(self.queue, entries, wait=self.wait or 0.0)

    def handles(self, codes: Sequence[Code], queries: HandleQueries | None) -> list[Handle[Any]]:
        if not self._calls and list(codes) == [CREATED] * len(codes):
            return handles_of(self._ids, [template.stored for template in self._templates if template is not None])
        handles = []
        for position, code in enumerate(codes):
            template = self._templates[position]
            task_type = template.type if template is not None else self._calls[position][0].type
            handles.append(handle_of(self._ids[position], self.queue, task_type, self.kind[0], code, queries))
        return handles


class CallBatches:
    """Sends full batches while the next ones are being filled, in order."""

    def __init__(self, intake: Callable[[str], Intake], queries: HandleQueries | None) -> None:
        self._intake = intake
        self._queries = queries
        self._count = 0
        self._filling: dict[tuple[str, tuple[State, bool], str, float | None], CallBatch] = {}
        self._full: dict[str, int] = {}
        """Queues that had no room for all, and how many tasks may wait there."""
        self._newest: tuple[OptionsTemplate, CallBatch] | None = None
        """The batch that the last call went to: the next one mostly goes there too."""
        self._written: list[tuple[list[int], list[Handle[Any]]]] = []
        self._unconfirmed: list[NotConfirmed] = []
        self._on_the_way: list[asyncio.Task[None]] = []
        self._last: dict[str, asyncio.Task[None]] = {}
        """The last batch of each queue that has a bound, and the last with order keys: the next one waits for it."""

    def add_plain(self, template: OptionsTemplate, payload: bytes) -> CallBatch | None:
        """The batch that is full now, if any: then it must be sent."""
        newest = self._newest
        if newest is not None and newest[0] is template:
            batch = newest[1]
        else:
            batch = self._batch(template.options, PLAIN)
            self._newest = template, batch
        batch.add_plain(self._count, template, payload)
        self._count += 1
        return batch if batch.is_full else None

    def add(self, call: Call[Any], entry: NewTask) -> CallBatch | None:
        """The same for a call that has more than an id and a message."""
        batch = self._batch(call.options, entry.batch_kind)
        batch.add(self._count, call, entry)
        self._count += 1
        return batch if batch.is_full else None

    def _batch(self, options: Options, kind: tuple[State, bool]) -> CallBatch:
        key = options.queue, kind, options.durability, options.wait_for_room
        batch = self._filling.get(key)
        if batch is None:
            batch = self._filling[key] = CallBatch(*key)
        return batch

    async def finish(self) -> list[Handle[Any]]:
        with contextlib.suppress(ConnectionLost, NotReady):  # each write tries that again, for as long as it may
            await self._intake("any").register(*{batch.queue for batch in self._filling.values()})
        # Together: the rest of many queues costs one round trip per server.
        self._on_the_way += [self._start(batch) for batch in self._filling.values()]
        await asyncio.gather(*self._on_the_way)
        handles = self._in_order()
        if self._full:
            raise QueueFull(*next(iter(self._full.items())), handles=handles)
        if self._unconfirmed:
            count = f"{len(self._unconfirmed):,} of {self._count:,} tasks are"
            raise NotConfirmed(f"{count} {self._unconfirmed[0]}", handles=handles)
        return handles

    async def send(self, batch: CallBatch) -> None:
        del self._filling[batch.key]
        self._newest = None
        while len(self._on_the_way) >= MAX_ON_THE_WAY:
            await self._on_the_way.pop(0)
        self._on_the_way.append(self._start(batch))
        await asyncio.sleep(0)  # so that it leaves now, not when the next batch is full

    def _start(self, batch: CallBatch) -> asyncio.Task[None]:
        if not batch.kind[1] and not self._intake(batch.durability).most_in(batch.queue):
            return asyncio.create_task(self._write(batch))
        self._last[batch.queue] = asyncio.create_task(self._write(batch, self._last.get(batch.queue)))
        return self._last[batch.queue]

    async def _write(self, batch: CallBatch, after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await after
        intake = self._intake(batch.durability)
        codes = batch.refuse() if batch.queue in self._full else await batch.write(intake)
        if FULL in codes:
            self._full[batch.queue] = intake.most_in(batch.queue)
        self._written.append((batch.places, batch.handles(codes, self._queries)))
        self._unconfirmed += [code for code in codes if isinstance(code, NotConfirmed)]

    def _in_order(self) -> list[Handle[Any]]:
        """Of the calls; those of one batch mostly stand side by side."""
        handles: list[Any] = [None] * self._count
        for places, found in self._written:
            first, last = places[0], places[-1]
            if last - first == len(places) - 1:
                handles[first : last + 1] = found
            else:
                for place, handle in zip(places, found, strict=True):
                    handles[place] = handle
        return handles


def handle_of(
    task_id: str, queue: str, task_type: str, state: State, code: Code, queries: HandleQueries | None
) -> Handle[Any]:
    """What became of one call."""
    if isinstance(code, LockHolder):
        return Handle(code.task_id, queue, task_type, code.state or GONE, False, queries)
    created = code == CREATED or isinstance(code, NotConfirmed)
    return Handle(task_id, queue, task_type, str(state), created, queries)
