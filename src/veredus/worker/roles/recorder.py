"""Recorder: writes what this worker counted of task types and errors to Redis, every few seconds."""

from __future__ import annotations

from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.store.tasks.stats import ErrorRow, Stats, TypeRow
from veredus.worker.role import Role
from veredus.worker.type_counts import MOST_KEPT, TypeCounts

EVERY = 2.0
"""Seconds between two records. So much is missing of what a worker that is killed had counted."""
_Rows = tuple[list[TypeRow], list[ErrorRow]]


class Recorder(Role):
    """A record is repeated with its number until it is answered, so that a lost reply counts nothing twice. What was
    counted since then waits for the next record."""

    name = "recorder"

    def __init__(self, stats: Stats, worker_id: str, counts: TypeCounts, outages: OutageLog) -> None:
        super().__init__(EVERY, outages)
        self._stats = stats
        self._worker_id = worker_id
        self._counts = counts
        self._waiting: dict[str, _Rows] = {}
        self._sent: dict[str, tuple[int, _Rows]] = {}
        """By queue: the record that has not been answered yet, with its number."""
        self._numbers: dict[str, int] = {}

    async def step(self) -> bool:
        """Raises the last error, once all other queues are written."""
        for queue, (types, errors) in self._counts.take().items():
            waiting = self._waiting.setdefault(queue, ([], []))
            waiting[0].extend(types)
            waiting[1].extend(errors)
            del waiting[0][:-MOST_KEPT], waiting[1][:-MOST_KEPT]
        failure: StoreError | None = None
        queues = {*self._sent, *self._waiting}
        for queue in queues:
            try:
                await self._write(queue)
            except StoreError as exc:
                failure = exc
        if failure is not None:
            raise failure
        return bool(queues)

    async def _write(self, queue: str) -> None:
        while queue in self._sent or queue in self._waiting:
            if queue not in self._sent:
                number = self._numbers[queue] = self._numbers.get(queue, 0) + 1
                self._sent[queue] = (number, self._waiting.pop(queue))
            number, (types, errors) = self._sent[queue]
            await self._stats.record(queue, self._worker_id, number, types, errors)
            del self._sent[queue]
