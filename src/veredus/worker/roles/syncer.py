"""Syncer: keeps settlements that Redis refused, as values, and writes them as soon as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from veredus.errors import ConnectionLost, NotReady, StoreError
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role
from veredus.worker.settlement import Item, Settler


class Syncer(Role):
    """The leases of what it keeps are still renewed, so nobody else runs those tasks meanwhile."""

    name = "syncer"

    def __init__(self, interval: float, complaints: Complaints) -> None:
        super().__init__(interval, complaints)
        self._kept: list[tuple[str, Item]] = []
        self._any = asyncio.Event()
        self.settler: Settler | None = None

    def keep(self, queue: str, items: Sequence[Item]) -> None:
        self._kept.extend((queue, item) for item in items)
        self._any.set()

    def stop(self) -> None:
        super().stop()
        self._any.set()

    @property
    def idle(self) -> bool:
        return not self._kept

    async def run(self) -> None:
        while not self.stopping.is_set():
            await self._any.wait()
            if self._kept:
                await self.step()
            if self._kept:
                await self.pause(self.interval)
            elif not self.stopping.is_set():
                self._any.clear()
        if self._kept:
            await self.step()

    async def step(self) -> None:
        """Try everything once; what is refused stays."""
        assert self.settler is not None
        kept, self._kept = self._kept, []
        groups: dict[tuple[str, type], list[Item]] = {}
        for queue, item in kept:
            groups.setdefault((queue, type(item[0])), []).append(item)
        await asyncio.gather(*[self._write(queue, items) for (queue, _), items in groups.items()])

    async def _write(self, queue: str, items: list[Item]) -> None:
        assert self.settler is not None
        try:
            await self.settler.write(queue, items, first_try=False)
            self.complaints.recovered(("settle", queue))
        except (ConnectionLost, NotReady) as exc:
            self.complaints.outage(exc, ("settle", queue))
            self._kept.extend((queue, item) for item in items)
        except StoreError as exc:
            if len(items) > 1:  # one bad item must not hold up the others
                for item in items:
                    await self._write(queue, [item])
                return
            task_id = items[0][0].task_id
            self.complaints.error(("settle", queue, task_id), f"cannot settle task {task_id} of queue {queue}", exc)
            self._kept.extend((queue, item) for item in items)
