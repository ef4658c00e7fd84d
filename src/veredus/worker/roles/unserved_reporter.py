"""UnservedReporter: warns once about task types for which no live worker of their queue has a handler."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from veredus.process.outage_log import OutageLog
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

MOST = 1000
"""Types to remember. A producer with a new type for each task must not fill the memory."""


class UnservedReporter(Role):
    """Checks a type one interval after it was first passed over: a new worker has published its types by then."""

    name = "unserved-reporter"

    def __init__(self, live_processes: LiveProcesses, interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._live_processes = live_processes
        self._met: set[tuple[str, str]] = set()
        self._due: set[tuple[str, str]] = set()
        self._reported: set[tuple[str, str]] = set()

    def met(self, queue: str, types: Sequence[str]) -> None:
        """These types were passed over in this queue."""
        for task_type in types:
            if (
                len(self._met) + len(self._due) + len(self._reported) < MOST
                and (queue, task_type) not in self._reported
            ):
                self._met.add((queue, task_type))

    async def step(self) -> bool:
        due, self._due, self._met = self._due, self._met, set()
        due -= self._reported
        for queue in {queue for queue, _ in due}:
            types = sorted(task_type for name, task_type in due if name == queue)
            for task_type in await self._live_processes.unserved(queue, types):
                self._reported.add((queue, task_type))
                logger.warning(
                    "tasks of type %s wait in queue %s, and no live worker of this queue has a handler for them: start "
                    "one that has, or look at them with: veredus task ls -q %s -s pending",
                    task_type,
                    queue,
                    queue,
                )
        return bool(due)
