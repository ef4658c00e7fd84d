"""Scheduler as a role of the worker: it fires the app's schedules, unless another process does."""

from __future__ import annotations

from typing import Protocol

from veredus.worker.complaints import Complaints
from veredus.worker.role import Role


class Runs(Protocol):
    """A scheduler, which the app makes: the two rooms do not know each other."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class SchedulerRole(Role):
    name = "scheduler"

    def __init__(self, scheduler: Runs, complaints: Complaints) -> None:
        super().__init__(0.0, complaints)
        self._scheduler = scheduler

    async def run(self) -> None:
        await self._scheduler.run()

    def stop(self) -> None:
        super().stop()
        self._scheduler.stop()
