"""Herald: passes on to clients of the gateway what became of the tasks that they follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from veredus.client.following import Herald as Messenger
from veredus.client.notifier import Notifier
from veredus.errors import StoreError
from veredus.store.store import Store
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role


class Herald(Role):
    """Asleep until something was told; looks now and then all the same, because a wake-up may be lost."""

    name = "herald"

    def __init__(self, store: Store, queues: Sequence[str], interval: float, complaints: Complaints) -> None:
        super().__init__(interval, complaints)
        self._queues = list(queues)
        self._messenger = Messenger(store, Notifier(store))
        self._wake = asyncio.Event()

    def wake(self, queue: str) -> None:
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def step(self) -> None:
        await self._messenger.pass_on(self._queues)

    async def pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def run(self) -> None:
        await super().run()
        try:
            await self.step()  # what ended last is told before the worker goes
        except StoreError as exc:
            self.complaints.error(self.name, "followers may be told late", exc)
