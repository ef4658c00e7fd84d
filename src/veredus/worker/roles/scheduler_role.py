"""SchedulerRole: runs the app's scheduler inside a worker."""

from __future__ import annotations

from typing import Protocol

from veredus.process.outage_log import OutageLog
from veredus.worker.role import Role


class Runs(Protocol):
    """A scheduler. The app makes it, because the worker does not import the scheduler package."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class SchedulerRole(Role):
    name = "scheduler"

    def __init__(self, scheduler: Runs, outages: OutageLog) -> None:
        super().__init__(0.0, outages)
        self._scheduler = scheduler

    async def run(self) -> None:
        await self._scheduler.run()

    def stop(self) -> None:
        super().stop()
        self._scheduler.stop()
