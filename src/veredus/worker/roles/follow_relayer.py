"""FollowRelayer: notifies clients of the gateway about the tasks that they follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from veredus.client.follow_relay import FollowRelay
from veredus.client.notifier import Notifier
from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.worker.role import Role


class FollowRelayer(Role):
    """Sleeps until it is woken. Also runs at an interval, because a wake-up may be lost."""

    name = "follow-relayer"

    def __init__(self, store: Store, queues: Sequence[str], interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._queues = list(queues)
        self._relay = FollowRelay(store, Notifier(store))
        self._wake = asyncio.Event()

    def wake(self, queue: str) -> None:
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    async def step(self) -> None:
        await self._relay.pass_on(self._queues)

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
            await self.step()  # the last results are passed on before the worker ends
        except StoreError as exc:
            self.outages.error(self.name, "followers may be notified late", exc)
