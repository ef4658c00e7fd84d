"""What all roles have in common: a name, a loop with pauses, and a way to stop; and the roster that runs them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from veredus.errors import StoreError
from veredus.restarts import Restarts
from veredus.worker.complaints import Complaints


class Role:
    """One job of the worker, done again and again. `step` does it once; a test can call it directly."""

    name = "role"

    def __init__(self, interval: float, complaints: Complaints) -> None:
        self.interval = interval
        self.complaints = complaints
        self.stopping = asyncio.Event()

    async def step(self) -> bool | None:
        """False says that there was nothing to ask Redis for, so that it may be away all the same."""
        raise NotImplementedError

    async def run(self) -> None:
        """Until stopped. Whatever else ends it, the roster starts it again: a role can be run more than once."""
        while not self.stopping.is_set():
            outages = self.complaints.outages
            try:
                asked = await self.step()
                # A step may meet an outage and go on with other queues, or have nothing to ask Redis for.
                if asked is not False and self.complaints.outages == outages:
                    self.complaints.recovered(self.name)
            except StoreError as exc:
                self.complaints.error(self.name, f"{self.name} failed", exc)
            await self.pause(self.interval * random.uniform(0.9, 1.0))  # a little apart from the other workers' beat

    async def pause(self, seconds: float) -> None:
        """Between two steps."""
        await self.rest(seconds)

    async def rest(self, seconds: float) -> None:
        """Sleep, but not through a stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        self.stopping.set()


class Roster:
    """Starts roles in order and stops them in reverse: senders stop before receivers. One that ends is restarted."""

    def __init__(self, roles: Sequence[Role], restarts: Restarts) -> None:
        self._roles = roles
        self._restarts = restarts
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        for role in self._roles:
            running = self._restarts.keep(role.name, role.run, is_over=role.stopping.is_set, sleep=role.rest)
            self._tasks[role.name] = asyncio.create_task(running, name=f"veredus-{role.name}")

    async def stop(self, role: Role, patience: float = 5.0) -> None:
        """Let the role finish its step; cancel it if that takes too long."""
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
