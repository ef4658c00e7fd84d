"""Sharer: looks which Go servers serve the same queues and what they can run, so that they get a share of the tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from veredus.model.sharing import Share
from veredus.store.roll import Roll
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role

INTERVAL = 10.0
"""Seconds between two looks for Go servers."""
TRIALS = 1.0
"""Seconds between two looks at what has become of trials."""


class Sharer(Role):
    """`shares` has one for each queue that the worker serves. While no other worker process comes or goes, and none is
    Go's, one command per interval is all that this costs."""

    name = "sharer"

    def __init__(self, roll: Roll, queues: Iterable[str], complaints: Complaints) -> None:
        super().__init__(min(INTERVAL, TRIALS), complaints)
        self._roll = roll
        self._known: list[str] | None = None
        self._look_at = 0.0
        self.shares = {queue: Share() for queue in queues}

    async def step(self) -> bool | None:
        trials = [
            (queue, share, name, task_id)
            for queue, share in self.shares.items()
            for name, task_id in share.trials.items()
        ]
        for queue, share, name, task_id in trials:
            share.found(name, task_id, *await self._roll.fate(queue, task_id))
        now = time.monotonic()
        if now < self._look_at:
            return None if trials else False
        self._look_at = now + INTERVAL
        await self.look()
        return None

    async def look(self) -> None:
        """For servers that have come or gone."""
        names = await self._roll.names()
        if names == self._known and not any(share.percent for share in self.shares.values()):
            return
        members = [member for member in await self._roll.members(names) if member.server.status == "active"]
        self._known = names
        for queue, share in self.shares.items():
            serving = [member for member in members if queue in member.server.queues]
            go = [member.server for member in serving if member.is_go]
            ours = max(1, len(serving) - len(go))
            share.serve([server.id for server in go], ours, sum(server.concurrency for server in go))
