"""Unserved: tells once of tasks that were passed over and that no live worker of their queue has a handler for."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from veredus.store.roll import Roll
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

MOST = 1000
"""Types that are remembered; a producer that makes up a type per task must not fill the memory."""


class Unserved(Role):
    """A type is looked into one interval after it was met: a worker that has just started shows its types by then."""

    name = "unserved"

    def __init__(self, roll: Roll, interval: float, complaints: Complaints) -> None:
        super().__init__(interval, complaints)
        self._roll = roll
        self._met: set[tuple[str, str]] = set()
        self._ripe: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()

    def met(self, queue: str, types: Sequence[str]) -> None:
        """These types were passed over in this queue."""
        for task_type in types:
            if len(self._met) + len(self._ripe) + len(self._told) < MOST and (queue, task_type) not in self._told:
                self._met.add((queue, task_type))

    async def step(self) -> bool:
        ripe, self._ripe, self._met = self._ripe, self._met, set()
        ripe -= self._told
        for queue in {queue for queue, _ in ripe}:
            types = sorted(task_type for name, task_type in ripe if name == queue)
            for task_type in await self._roll.unserved(queue, types):
                self._told.add((queue, task_type))
                logger.warning(
                    "tasks of type %s wait in queue %s, and no live worker of this queue has a handler for them: start "
                    "one that has, or look at them with: veredus task ls -q %s -s pending",
                    task_type,
                    queue,
                    queue,
                )
        return bool(ripe)
