"""Leases: workers renew theirs, recoverers claim those of lost workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys

RECOVER = load(
    "lease/recover",
    keys="lease active",
    args="queue_prefix limit owner claim_ms foreign_slack_ms since_ms max_gap_ms furthest_ms dead_worker",
)
OWNED = load("lease/owned", keys="lease", args="queue_prefix worker limit")

FOREIGN_SLACK_MS = 30_000
"""Leases that a Go worker wrote by its own clock get the slack that Go gives them."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that this recoverer holds now, for a short time."""

    task_id: str
    message: bytes
    losses: int
    """How many leases of this task were lost so far, including this one."""
    cancel: str = ""
    """The requested end if it was cancelled: archive, delete or retry."""
    lost_by: str = ""
    """The owner that lost it; empty if no worker of Veredus held it."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of one sweep of a queue's leases."""

    now_ms: int
    swept: bool
    """False if only the time was noted, because a process had stood still or the server's clock was changed."""
    claimed: list[Claimed]
    tidied: list[str]
    next_expiry: float | None
    """Seconds until the next lease expires unless it is renewed."""
    has_lanes: bool = False
    """Whether tasks of this queue have order keys."""
    has_waits: bool = False
    """Whether tasks of this queue wait for events or children."""


class Holding(NamedTuple):
    """A lease to renew."""

    task_id: str
    owner: str
    lease_ms: int


EXTEND = load("lease/extend", keys="lease", args="queue_prefix", rows=Holding)


@dataclass(frozen=True, slots=True)
class Owned:
    """A task that a worker holds."""

    queue: str
    task_id: str
    owner: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Extension:
    """The result for one queue's tasks."""

    lost: list[Holding]
    """Tasks that this worker no longer owns."""
    cancels: list[tuple[Holding, str]]
    """Renewed tasks that were cancelled, with their requested end."""


class Leases:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def extend(self, holdings: dict[str, list[Holding]]) -> dict[str, Extension | StoreError]:
        """Renew leases, by queue. Returns the tasks that are lost or cancelled, or the error."""
        queues = list(holdings)
        replies = await self._redis.run_each([self._extend_call(queue, holdings[queue]) for queue in queues])
        results: dict[str, Extension | StoreError] = {}
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, StoreError):
                results[queue] = reply
            elif isinstance(reply, BaseException):
                raise reply
            else:
                held, (_, lost, cancels) = holdings[queue], reply
                results[queue] = Extension(
                    [held[position - 1] for position in lost],
                    [(held[cancels[i] - 1], text(cancels[i + 1])) for i in range(0, len(cancels), 2)],
                )
        return results

    def _extend_call(self, queue: str, holdings: Sequence[Holding]) -> ScriptCall:
        return ScriptCall(EXTEND, (keys.lease(queue),), EXTEND.args((keys.queue_prefix(queue),), holdings))

    async def owned(self, queues: Sequence[str], worker: str, limit: int = 5000) -> tuple[float, list[Owned]]:
        """The tasks that a worker holds, among each queue's first leases to end; and the server's time. Raises the
        first error."""
        calls = [ScriptCall(OWNED, (keys.lease(queue),), (keys.queue_prefix(queue), worker, limit)) for queue in queues]
        now, found = 0.0, []
        for queue, reply in zip(queues, await self._redis.run_each(calls), strict=True):
            if isinstance(reply, BaseException):
                raise reply
            now, rows = reply[0] / 1000, reply[1]
            found += [Owned(queue, text(rows[i]), text(rows[i + 1]), rows[i + 2]) for i in range(0, len(rows), 3)]
        return now, found

    async def recover(
        self,
        queues: Sequence[str],
        owner: str,
        *,
        since: Mapping[str, tuple[int, int]],
        claim_ms: int,
        furthest_ms: int = 60_000,
        limit: int = 100,
        dead_worker: str = "",
    ) -> dict[str, Sweep | StoreError]:
        """Claim the expired leases of each queue; with `dead_worker`, also the tasks that this worker still holds.
        `since` has the server's time in ms at each queue's last sweep, and how much time may have passed; otherwise
        only the time is noted."""
        calls = [
            ScriptCall(
                RECOVER,
                (keys.lease(queue), keys.active(queue)),
                (
                    keys.queue_prefix(queue),
                    limit,
                    owner,
                    claim_ms,
                    FOREIGN_SLACK_MS,
                    *since.get(queue, (0, 0)),
                    furthest_ms,
                    dead_worker,
                ),
            )
            for queue in queues
        ]
        replies = await self._redis.run_each(calls)
        return {queue: _sweep(reply) for queue, reply in zip(queues, replies, strict=True)}


def _sweep(reply: Any) -> Sweep | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    now_ms, swept, claimed, tidied, next_expiry, cancels, has_lanes, has_waits = reply
    asked = {cancels[i]: text(cancels[i + 1]) for i in range(0, len(cancels), 2)}
    return Sweep(
        now_ms,
        bool(swept),
        [
            Claimed(text(claimed[i]), claimed[i + 1], claimed[i + 2], asked.get(claimed[i], ""), text(claimed[i + 3]))
            for i in range(0, len(claimed), 4)
        ],
        [text(task_id) for task_id in tidied],
        None if next_expiry < 0 else (next_expiry - now_ms) / 1000,
        bool(has_lanes),
        bool(has_waits),
    )
