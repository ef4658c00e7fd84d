"""Leases: prolonged by those who work, claimed from those who have gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import StoreError
from veredus.store.connection import Argument
from veredus.store.places import text
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load
from veredus.wire import keys

EXTEND = load("lease/extend", keys="lease", args="task_prefix count {task_id owner lease_ms}* [now_ms]")
RECOVER = load(
    "lease/recover",
    keys="lease active",
    args="task_prefix limit owner claim_ms foreign_slack_ms since_ms max_gap_ms furthest_ms dead_worker [now_ms]",
)
OWNED = load("lease/owned", keys="lease", args="task_prefix worker limit [now_ms]")

FOREIGN_SLACK_MS = 30_000
"""Leases that a Go worker wrote by its own clock get the slack that Go gives them."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that this recoverer now holds, for a short while."""

    task_id: str
    message: bytes
    losses: int
    """How many leases of this task were lost so far, this one included."""
    cancel: str = ""
    """What to do with it if it was to be cancelled: archive, delete or retry."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one look at a queue's leases brought."""

    now_ms: int
    swept: bool
    """False when only the time was noted, because somebody had stood still or the server's clock was changed."""
    claimed: list[Claimed]
    tidied: list[str]
    next_expiry: float | None
    """Seconds until the next lease will expire unless it is prolonged."""
    has_lanes: bool = False
    """Whether tasks of this queue have order keys."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease to prolong."""

    task_id: str
    owner: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A task that a worker holds."""

    queue: str
    task_id: str
    owner: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Extension:
    """What became of one queue's holdings."""

    lost: list[Holding]
    """No longer ours."""
    cancels: list[tuple[Holding, str]]
    """Prolonged, but to be cancelled, and what to do with them then."""


class Leases:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def extend(self, holdings: dict[str, list[Holding]]) -> dict[str, Extension | StoreError]:
        """Prolong leases, by queue. Returns those that are no longer ours or shall be cancelled, or the error."""
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

    def _extend_call(self, queue: str, holdings: Sequence[Holding]) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), len(holdings)]
        for holding in holdings:
            args += (holding.task_id, holding.owner, holding.lease_ms)
        return Call(EXTEND, (keys.lease(queue),), args)

    async def owned(self, queues: Sequence[str], worker: str, limit: int = 5000) -> tuple[float, list[Owned]]:
        """What a worker holds, of so many leases of each queue that end first; and the server's time. Raises the first
        error."""
        calls = [Call(OWNED, (keys.lease(queue),), (keys.task_prefix(queue), worker, limit)) for queue in queues]
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
        """Claim what has expired in each queue; with `dead_worker`, what that worker still holds. `since` has
        the server's time in ms at the last sweep of each queue, and how much may have passed; else it is only noted."""
        calls = [
            Call(
                RECOVER,
                (keys.lease(queue), keys.active(queue)),
                (
                    keys.task_prefix(queue),
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
    now_ms, swept, claimed, tidied, next_expiry, cancels, has_lanes = reply
    asked = {cancels[i]: text(cancels[i + 1]) for i in range(0, len(cancels), 2)}
    return Sweep(
        now_ms,
        bool(swept),
        [
            Claimed(text(claimed[i]), claimed[i + 1], claimed[i + 2], asked.get(claimed[i], ""))
            for i in range(0, len(claimed), 3)
        ],
        [text(task_id) for task_id in tidied],
        None if next_expiry < 0 else (next_expiry - now_ms) / 1000,
        bool(has_lanes),
    )
