"""Syncer: keeps settlements that could not be written, and writes them as soon as Redis accepts them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from veredus.clock import SYSTEM, Clock
from veredus.errors import AuthError, ConnectionLost, StoreError
from veredus.model.settlement import Archive, Complete, Retry
from veredus.model.verdict import write_failure
from veredus.process.outage_log import OUTAGES, OutageLog
from veredus.wire.messages import decode_task, encode_task
from veredus.worker.role import Role
from veredus.worker.settler import Item, Settler

logger = logging.getLogger("veredus.worker")

LARGE = 64 * 1024
"""Bytes from which a result is written alone: a server that refuses it for its size may just close the connection, and
that must not delay other settlements."""
MOST_TRIES = 3
"""Tries of a settlement that is itself refused, before its task is archived instead."""
LONGEST_PAUSE = 60.0
"""Seconds between two tries if the task cannot be archived either, because keys of its queue are damaged."""


@dataclass(frozen=True, slots=True)
class UnwrittenSettlement:
    """A settlement that is still to be written."""

    queue: str
    item: Item
    failures: int = 0
    """How often it was refused itself, not because the server was away."""
    at: float = 0.0
    """When to try again, on the monotonic clock."""

    @property
    def task_id(self) -> str:
        return self.item[0].task_id

    @property
    def is_large(self) -> bool:
        settlement = self.item[0]
        return isinstance(settlement, Complete) and len(settlement.result or b"") > LARGE


class Syncer(Role):
    """The leases of these tasks are still renewed, so no other worker runs them."""

    name = "syncer"

    def __init__(self, interval: float, outages: OutageLog, clock: Clock = SYSTEM) -> None:
        super().__init__(interval, outages)
        self._clock = clock
        self._kept: list[UnwrittenSettlement] = []
        self._any = asyncio.Event()
        self.settler: Settler
        """Set once the settler is made, which needs `keep`."""

    def keep(self, queue: str, items: Sequence[Item]) -> None:
        self._kept.extend(UnwrittenSettlement(queue, item) for item in items)
        self._any.set()

    def stop(self) -> None:
        super().stop()
        self._any.set()

    @property
    def idle(self) -> bool:
        return not self._kept

    async def run(self) -> None:
        while not self.stopping.is_set():
            await self._any.wait()
            if self._kept:
                await self.step()
            if self._kept:
                await self.pause(self.interval)
            elif not self.stopping.is_set():
                self._any.clear()
        if self._kept:
            await self.step()

    async def step(self) -> None:
        """Try all due settlements once; keep those that are refused."""
        now = time.monotonic()
        kept, self._kept = self._kept, []
        groups: dict[tuple[str, type], list[UnwrittenSettlement]] = {}
        large: list[UnwrittenSettlement] = []
        for one in kept:
            if one.at > now and not self.stopping.is_set():
                self._kept.append(one)
            elif one.is_large:
                large.append(one)
            else:
                groups.setdefault((one.queue, type(one.item[0])), []).append(one)
        await asyncio.gather(*[self._write(group) for group in groups.values()])
        for one in large:
            await self._write([one])

    async def _write(self, group: list[UnwrittenSettlement]) -> None:
        """Settlements of one queue and kind."""
        queue = group[0].queue
        try:
            await self.settler.write(queue, [one.item for one in group], first_try=False)
            self.outages.recovered(("settle", queue))
        except (*OUTAGES, AuthError) as exc:  # a right that was taken away is no fault of the task either
            if isinstance(exc, ConnectionLost) and group[0].is_large and await self._answers(queue):
                self._refused(group[0], exc)
                return
            self.outages.outage(exc, ("settle", queue))
            self._kept.extend(group)
        except StoreError as exc:
            if len(group) > 1:  # one bad item must not hold up the others
                for one in group:
                    await self._write([one])
                return
            self._refused(group[0], exc)
        except BaseException:
            self._kept.extend(group)  # the role ends and is restarted: lose nothing
            raise

    async def _answers(self, queue: str) -> bool:
        """Whether the server answers. If so, the settlement itself broke the connection."""
        return await self.settler.work.lengths([queue]) != [None]

    def _refused(self, one: UnwrittenSettlement, exc: StoreError) -> None:
        """The settlement itself was refused. After a few tries its task is archived with the reason. If the queue is
        damaged, the settlement is retried at growing intervals until the queue is repaired."""
        failures = one.failures + 1
        is_damage = "WRONGTYPE" in str(exc)
        settlement, attempt = one.item
        if failures >= MOST_TRIES and not is_damage and isinstance(settlement, Complete | Retry):
            what = "retry" if isinstance(settlement, Retry) else f"result of {len(settlement.result or b''):,} bytes"
            reason = f"the server refused its {what}: {exc}"
            logger.error("task %s of queue %s is archived: %s", one.task_id, one.queue, reason)
            lock = settlement.unique_key if isinstance(settlement, Complete) else ""
            message = write_failure(decode_task(settlement.message), reason, self._clock.time(), counts=False)
            message.completed_at = 0
            archive = Archive(
                one.task_id,
                settlement.owner,
                lock or message.unique_key,
                encode_task(message),
                attempt=settlement.attempt,
            )
            self._kept.append(UnwrittenSettlement(one.queue, (archive, attempt)))
            return
        if failures == 1:
            logger.error("cannot settle task %s of queue %s: %s", one.task_id, one.queue, exc)
        pause = min(LONGEST_PAUSE, self.interval * 2 ** (failures - 1))
        self._kept.append(replace(one, failures=failures, at=time.monotonic() + pause))
