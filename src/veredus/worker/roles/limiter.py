"""Limiter: writes the limits of the served queues to Redis, at the start and whenever Redis has lost them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from veredus.errors import CommandRefused
from veredus.model.limits import queue_specs, task_specs
from veredus.process.outage_log import OutageLog
from veredus.store.tasks.limits import LimitStore
from veredus.worker.role import Role

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")

INTERVAL = 8.0
Specs = Mapping[str, Mapping[str, str]]
"""Per queue: what is limited -> its numbers; empty if it no longer has a limit."""


def limit_specs(app: App, queues: Sequence[str]) -> dict[str, dict[str, str]]:
    """The limits of these queues in the app, including those that it no longer has."""
    specs: dict[str, dict[str, str]] = {queue: {} for queue in queues}
    for name, task in [*app.tasks.items(), *app.patterns.items()]:
        if task.options.queue in specs:
            specs[task.options.queue] |= task_specs(name, task.limits)
    for queue, limits in app.limits.items():
        if queue in specs:
            specs[queue] |= queue_specs(limits)
    return specs


class Limiter(Role):
    """Limits are stored in Redis, so that workers with other code respect them too. The worker that started last sets
    them. Later it only restores lost ones: otherwise two versions of an app would overwrite each other forever."""

    name = "limiter"

    def __init__(self, limits: LimitStore, specs: Specs, outages: OutageLog) -> None:
        super().__init__(INTERVAL, outages)
        self._limits = limits
        self._specs = specs

    @property
    def has_limits(self) -> bool:
        return any(numbers for specs in self._specs.values() for numbers in specs.values())

    async def declare(self) -> None:
        for queue, specs in self._specs.items():
            with self._alone(queue):
                known = await self._limits.declared(queue)
                if any(known.get(spec, "") != numbers for spec, numbers in specs.items()):
                    await self._limits.declare(queue, specs)
                    logger.info("the limits of queue %s are declared", queue)

    async def step(self) -> None:
        for queue, specs in self._specs.items():
            with self._alone(queue):
                if any(specs.values()) and not await self._limits.declared(queue):
                    await self._limits.declare(queue, specs)

    @contextlib.contextmanager
    def _alone(self, queue: str) -> Iterator[None]:
        """A queue with damaged keys does not affect the others."""
        try:
            yield
        except CommandRefused as exc:
            self.outages.error(("limits", queue), f"cannot declare the limits of queue {queue}", exc)
