"""WaitLooker: looks at what parked tasks wait for. Wake-ups make waits end at once; this makes them end in any case."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from veredus.client.emitting import wake
from veredus.clock import Clock
from veredus.errors import DamagedRun, StoreError
from veredus.model.durable import ALL_THERE, GATHER, KEPT, FanOutRecord, child_id, event_of
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.emitted import Waiter
from veredus.store.tasks.runs import JoinRow, WaitingTask, WakeRow
from veredus.wire.messages import cancelled
from veredus.worker.roles.child_relayer import relay, tell_parents


class WaitLooker:
    def __init__(self, store: Store, outages: OutageLog, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._outages = outages

    async def look(self, queues: Sequence[str]) -> None:
        """One look at the waiting tasks of these queues whose turn it is."""
        for queue in queues:
            await relay(self._store, queue)
            await self._cancel_children(queue)
        for queue, found in zip(queues, await self._store.runs.look(queues), strict=True):
            if isinstance(found, StoreError):
                self._outages.error(("waits", queue), f"cannot look at the waiting tasks of queue {queue}", found)
            else:
                await self._look_for_events([one for one in found if one.kind == "event"])
                for one in found:
                    if one.kind == "children":
                        await self._look_for_children(one)

    async def _cancel_children(self, queue: str) -> None:
        """Cancel the children of cancelled parents, should the process that began it have died."""
        try:
            await self._store.orphans.cancel(queue, functools.partial(cancelled, now=self._clock.time()))
        except StoreError as exc:
            self._outages.error(
                ("orphans", queue), f"children of cancelled tasks of queue {queue} are not cancelled yet", exc
            )

    async def _look_for_children(self, parent: WaitingTask) -> None:
        """Read the outcomes of the children that have none yet. One that is gone was enqueued before its parent
        waited."""
        name, runs = parent.field[len(ALL_THERE) :], self._store.runs
        mark, record = await runs.mark_and_field(parent.queue, parent.task_id, GATHER + name)
        if mark != parent.mark:
            return
        try:
            fan_out = FanOutRecord.unpack(record)
        except DamagedRun:  # its handler meets the same, and the task ends in the archive with the reason
            await runs.wake(parent.queue, [WakeRow(parent.task_id, parent.mark, parent.field, KEPT)])
            return
        known = await runs.ended_kids(parent.queue, parent.task_id, mark, name, fan_out.size)
        missing = [
            ChildTask(queue, child_id(parent.task_id, mark, name, at), parent.queue, parent.task_id, mark, name, at)
            for at, queue in enumerate(fan_out.queue_of())
            if at not in known
        ]
        if missing:
            await tell_parents(self._store, await self._store.children.look_at_late(missing))
        elif known:  # all outcomes are there, but the parent was not woken
            first = min(known)
            outcomes, _ = await runs.outcomes(parent.queue, parent.task_id, mark, name, first, first + 1)
            rows = [JoinRow(parent.task_id, mark, name, at, outcome) for at, outcome in outcomes.items()]
            await runs.join(parent.queue, rows)

    async def _look_for_events(self, found: Sequence[WaitingTask]) -> None:
        """Read the events, and note again who waits for them."""
        if not found:
            return
        waiters = [(event_of(one.field), Waiter(one.queue, one.task_id, one.mark, one.field)) for one in found]
        replies = await self._store.emitted.listen_each(waiters)
        for (_, waiter), reply in zip(waiters, replies, strict=True):
            if isinstance(reply, StoreError):
                self._outages.error(("events", waiter.queue), "cannot read events that tasks wait for", reply)
            elif reply is not None:
                await wake(self._store, [waiter], reply)
