"""Ways in which a running task stops being its worker's own; every settlement must leave such a task alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.queue import LEASE_END, LEASE_MS, NOW, Queue

Fence = Callable[[Queue], Awaitable[str]]
"""Makes the task `a`, active for w:1, not theirs any more; returns the owner who will try to settle it."""


async def _another_worker(q: Queue) -> str:
    return "x:1"


async def _another_batch_of_the_same_worker(q: Queue) -> str:
    return "w:2"


async def _no_owner_at_all(q: Queue) -> str:
    return ""


async def _a_go_worker_wrote_the_lease(q: Queue) -> str:
    """The field `held` stays as we wrote it: Go does not know it."""
    await q.client.zadd(q.key("lease"), {"a": LEASE_END + 30})
    return "w:1"


async def _a_go_worker_moved_the_task_to_retry(q: Queue) -> str:
    await q.client.lrem(q.key("active"), 0, "a")
    await q.client.zrem(q.key("lease"), "a")
    await q.client.zadd(q.key("retry"), {"a": LEASE_END + 30})
    await q.client.hset(q.task("a"), "state", "retry")
    return "w:1"


async def _the_lease_is_gone(q: Queue) -> str:
    await q.client.zrem(q.key("lease"), "a")
    return "w:1"


async def _a_recoverer_claimed_it(q: Queue) -> str:
    _, claimed, _ = await q.recover(now=NOW + LEASE_MS + 1000)
    assert "a" in [row[0] for row in claimed]
    return "w:1"


async def _the_hash_is_gone(q: Queue) -> str:
    await q.client.delete(q.task("a"))
    return "w:1"


async def _the_hash_has_a_wrong_type(q: Queue) -> str:
    await q.client.delete(q.task("a"))
    await q.client.set(q.task("a"), "x")
    return "w:1"


FENCES = pytest.mark.parametrize(
    "fence",
    [
        _another_worker,
        _another_batch_of_the_same_worker,
        _no_owner_at_all,
        _a_go_worker_wrote_the_lease,
        _a_go_worker_moved_the_task_to_retry,
        _the_lease_is_gone,
        _a_recoverer_claimed_it,
        _the_hash_is_gone,
        _the_hash_has_a_wrong_type,
    ],
    ids=lambda fence: fence.__name__.strip("_"),
)
