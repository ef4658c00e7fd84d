"""Limiter: says what the limits of the served queues are, at the start and whenever Redis has forgotten all of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from veredus.errors import CommandRefused
from veredus.store.limits import LimitDesk
from veredus.worker.complaints import Complaints
from veredus.worker.role import Role

logger = logging.getLogger("veredus.worker")

INTERVAL = 8.0
Specs = Mapping[str, Mapping[str, str]]
"""Per queue: what is limited -> its numbers, empty for what has no limit (any more)."""


class Limiter(Role):
    """The limits stand in Redis, so that every worker keeps them, also one whose code does not know them. The worker
    that started last is right; later it only fills a gap, or two versions of an app would take turns for ever."""

    name = "limiter"

    def __init__(self, desk: LimitDesk, specs: Specs, complaints: Complaints) -> None:
        super().__init__(INTERVAL, complaints)
        self._desk = desk
        self._specs = specs

    @property
    def has_limits(self) -> bool:
        return any(numbers for specs in self._specs.values() for numbers in specs.values())

    async def declare(self) -> None:
        for queue, specs in self._specs.items():
            with self._alone(queue):
                known = await self._desk.declared(queue)
                if any(known.get(spec, "") != numbers for spec, numbers in specs.items()):
                    await self._desk.declare(queue, specs)
                    logger.info("the limits of queue %s are declared", queue)

    async def step(self) -> None:
        for queue, specs in self._specs.items():
            with self._alone(queue):
                if any(specs.values()) and not await self._desk.declared(queue):
                    await self._desk.declare(queue, specs)

    @contextlib.contextmanager
    def _alone(self, queue: str) -> Iterator[None]:
        """A queue whose keys are damaged keeps no other from having its limits."""
        try:
            yield
        except CommandRefused as exc:
            self.complaints.error(("limits", queue), f"cannot declare the limits of queue {queue}", exc)
