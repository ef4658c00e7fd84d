"""Role: one repeated job of a worker. Roster: starts, restarts and stops the roles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts


class Role:
    """`step` does the job once; tests can call it directly."""

    name = "role"

    def __init__(self, interval: float, outages: OutageLog) -> None:
        self.interval = interval
        self.outages = outages
        self.stopping = asyncio.Event()

    async def step(self) -> bool | None:
        """False if it made no call to Redis, so that its success does not show that Redis is available."""
        raise NotImplementedError

    async def run(self) -> None:
        """Until stopped. If it ends for any other reason, the roster runs it again."""
        while not self.stopping.is_set():
            before = self.outages.count
            try:
                called = await self.step()
                # A step may log an outage of one queue and go on with the others.
                if called is not False and self.outages.count == before:
                    self.outages.recovered(self.name)
            except StoreError as exc:
                self.outages.error(self.name, f"{self.name} failed", exc)
            await self.pause(self.interval * random.uniform(0.9, 1.0))  # so that workers do not stay in step

    async def pause(self, seconds: float) -> None:
        """Wait between two steps."""
        await self.rest(seconds)

    async def rest(self, seconds: float) -> None:
        """Sleep, at most until the role is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        self.stopping.set()


class WokenRole(Role):
    """Its step is due when it is woken, and at its interval."""

    last_step_fails: str
    """What follows if the step after the stop fails, for the log."""

    def __init__(self, interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._wake = asyncio.Event()

    def wake(self, queue: str) -> None:
        """There is something to do in this queue."""
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

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
            await self.step()  # what came during the last step is done before the worker ends
        except StoreError as exc:
            self.outages.error(self.name, self.last_step_fails, exc)


class Roster:
    """Starts roles in order and stops them in reverse, so that senders stop before receivers. Restarts roles that
    end."""

    def __init__(self, roles: Sequence[Role], restarts: Restarts) -> None:
        self._roles = roles
        self._restarts = restarts
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        for role in self._roles:
            running = self._restarts.keep(role.name, role.run, is_over=role.stopping.is_set, sleep=role.rest)
            self._tasks[role.name] = asyncio.create_task(running, name=f"veredus-{role.name}")

    async def stop(self, role: Role, patience: float = 5.0) -> None:
        """Let the role finish its step; cancel it after `patience` seconds."""
        role.stop()
        task = self._tasks.pop(role.name, None)
        if task is None:
            return
        _, unfinished = await asyncio.wait([task], timeout=patience)
        for late in unfinished:
            late.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_all(self) -> None:
        for role in reversed(self._roles):
            await self.stop(role)
