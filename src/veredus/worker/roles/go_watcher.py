"""GoWatcher: finds the Go servers of the same queues and what they can run, so that they get a share of the tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from veredus.model.go_share import GoShare
from veredus.process.outage_log import OutageLog
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.worker.role import Role

INTERVAL = 10.0
"""Seconds between two searches for Go servers."""
TRIALS = 1.0
"""Seconds between two checks of trials."""


class GoWatcher(Role):
    """`shares` has a GoShare for each queue that the worker serves. This costs one command per interval while there is
    no Go server and no worker process starts or ends."""

    name = "go-watcher"

    def __init__(self, live_processes: LiveProcesses, queues: Iterable[str], outages: OutageLog) -> None:
        super().__init__(min(INTERVAL, TRIALS), outages)
        self._live_processes = live_processes
        self._known: list[str] | None = None
        self._search_at = 0.0
        self.shares = {queue: GoShare() for queue in queues}

    async def step(self) -> bool | None:
        trials = [
            (queue, share, name, task_id)
            for queue, share in self.shares.items()
            for name, task_id in share.trials.items()
        ]
        for queue, share, name, task_id in trials:
            share.found(name, task_id, *await self._live_processes.fate(queue, task_id))
        now = time.monotonic()
        if now < self._search_at:
            return None if trials else False
        self._search_at = now + INTERVAL
        await self.search()
        return None

    async def search(self) -> None:
        """Update the shares if servers have started or ended."""
        names = await self._live_processes.names()
        if names == self._known and not any(share.percent for share in self.shares.values()):
            return
        members = [member for member in await self._live_processes.members(names) if member.server.status == "active"]
        self._known = names
        for queue, share in self.shares.items():
            serving = [member for member in members if queue in member.server.queues]
            go = [member.server for member in serving if member.is_go]
            ours = max(1, len(serving) - len(go))
            share.serve([server.id for server in go], ours, sum(server.concurrency for server in go))
