"""ChildRelayer: brings the outcomes of children to their parents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from veredus.errors import CommandRefused
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.children import EndedChild
from veredus.store.tasks.runs import JoinRow
from veredus.worker.role import WokenRole

MOST_ROWS, MOST_BYTES = 500, 1024 * 1024
"""Outcomes that are stored in one call."""


class ChildRelayer(WokenRole):
    """Sleeps until it is woken. What it misses is found by the looks of `worker/wait_looker.py`."""

    name = "child-relayer"
    last_step_fails = "durable tasks may learn of their children late"

    def __init__(self, store: Store, interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._store = store
        self._woken: set[str] = set()

    def wake(self, queue: str) -> None:
        """Children in this queue have ended."""
        self._woken.add(queue)
        super().wake(queue)

    async def step(self) -> bool:
        woken, self._woken = self._woken, set()
        for queue in woken:
            await relay(self._store, queue)
        return bool(woken)


async def relay(store: Store, queue: str) -> bool:
    """Tell the parents of all children in this queue that have ended; whether there were any."""
    found = False
    while True:
        try:
            ended = await store.children.take_ended(queue)
        except CommandRefused:
            return found  # the key is damaged: the doctor says so, and the periodic looks find the outcomes
        if not ended:
            return found
        found = True
        await tell_parents(store, ended)


async def tell_parents(store: Store, ended: Sequence[EndedChild]) -> None:
    """Store the outcomes with the parents; those without one are looked at first."""
    unknown = [one.child for one in ended if one.outcome is None]
    found = [one for one in ended if one.outcome is not None] + (await store.children.look(unknown) if unknown else [])
    by_queue: dict[str, list[JoinRow]] = {}
    for one in found:
        child = one.child
        row = JoinRow(child.parent, child.mark, child.name, child.position, one.outcome or b"")
        by_queue.setdefault(child.parent_queue, []).append(row)
    for parent_queue, rows in by_queue.items():
        for portion in portions(rows):
            await store.runs.join(parent_queue, portion)


def portions(rows: Sequence[JoinRow]) -> Iterator[list[JoinRow]]:
    """Outcomes that one call may store: more would hold up the server."""
    portion: list[JoinRow] = []
    size = 0
    for row in rows:
        if portion and (len(portion) == MOST_ROWS or size + len(row.outcome) > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += len(row.outcome)
    if portion:
        yield portion
