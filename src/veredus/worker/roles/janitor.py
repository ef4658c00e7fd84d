"""Janitor: deletes completed tasks whose retention has ended, and stale due times, in all queues."""

from __future__ import annotations

from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.worker.role import Role

BATCH = 500


class Janitor(Role):
    name = "janitor"

    def __init__(self, store: Store, interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._store = store

    async def step(self) -> None:
        queues = (await self._store.surveys.survey("kept", await self._store.queues())).queues
        while queues and not self.stopping.is_set():
            results = await self._store.retention.expire(queues, BATCH)
            full = []
            for queue, result in zip(queues, results, strict=True):
                if isinstance(result, StoreError):
                    self.outages.error(("expire", queue), f"cannot clean queue {queue}", result)
                elif result >= BATCH:
                    full.append(queue)
            queues = full
