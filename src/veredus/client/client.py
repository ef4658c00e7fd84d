"""Sends calls: builds the messages, writes them in batches, tells what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from veredus.client.calls import Call
from veredus.client.handle import Handle
from veredus.clock import SYSTEM, Clock
from veredus.errors import TaskIdConflict
from veredus.model.build import build, due_text, expires_text
from veredus.model.lifecycle import State
from veredus.store.batching import in_batches
from veredus.store.intake import CREATED, ID_EXISTS, Entry, entry_size
from veredus.store.store import Store
from veredus.wire import keys
from veredus.wire.messages import encode_task


class Client:
    """The producer's side of one store."""

    def __init__(self, store: Store, *, max_payload: int, clock: Clock = SYSTEM) -> None:
        self.store = store
        self._max_payload = max_payload
        self._clock = clock

    async def enqueue(self, call: Call[Any]) -> Handle[Any]:
        """Returns once Redis has the task. Raises TaskIdConflict for an id that is taken."""
        entry = self._entry(call)
        queue = call.options.queue
        code = await self.store.intake.add(queue, entry)
        if code == ID_EXISTS:
            raise TaskIdConflict(entry.task_id, queue)
        return _handle(call, entry, code)

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Many tasks in few round trips; the handles stand in the order of the calls and tell what was created."""
        sent = [(call, self._entry(call)) for call in calls]
        codes: list[int] = [0] * len(sent)
        for positions in _in_batches(sent):
            queue = sent[positions[0]][0].options.queue
            results = await self.store.intake.add_many(queue, [sent[p][1] for p in positions])
            for position, code in zip(positions, results, strict=True):
                codes[position] = code
        return [_handle(call, entry, code) for (call, entry), code in zip(sent, codes, strict=True)]

    def _entry(self, call: Call[Any]) -> Entry:
        call.check_size(self._max_payload)
        options, now = call.options, self._clock.time()
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
        )


def _in_batches(sent: Sequence[tuple[Call[Any], Entry]]) -> Iterable[list[int]]:
    """Positions of calls that one script can take: same queue, all due now or all due later."""
    desks: dict[tuple[str, bool], list[int]] = {}
    for position, (call, entry) in enumerate(sent):
        desks.setdefault((call.options.queue, bool(entry.due)), []).append(position)
    for positions in desks.values():
        yield from in_batches(positions, lambda position: entry_size(sent[position][1]))


def _handle(call: Call[Any], entry: Entry, code: int) -> Handle[Any]:
    state = State.SCHEDULED if entry.due else State.PENDING
    return Handle(entry.task_id, call.options.queue, call.type, str(state), code == CREATED)
