"""The right of one worker to block on a queue: how it is taken, renewed and given back; and how rarely others look."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, forever
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.worker.roles.pending_watcher import AGAIN_AFTER, HOLD_MS, MOST_AGAIN, RENEW, PendingWatcher

KEY = keys.watcher("q")


def watcher_of(
    store: Store, worker: str = "w1", redis: Any = None, queues: Sequence[str] = ("q",)
) -> tuple[PendingWatcher, list[str]]:
    """Of a worker that waits for work in all its queues, and the queues in which it was told to look."""
    asleep, found = {queue: asyncio.Event() for queue in queues}, list[str]()
    for event in asleep.values():
        event.set()
    redis = redis or store.redis
    work = Work(store.redis, worker, lease_ms=30_000)
    return PendingWatcher(redis, work, queues, worker, OutageLog(), asleep=asleep, found=found.append), found


async def test_one_worker_has_the_right_and_gives_it_back(store: Store, redis_client: Any) -> None:
    (first, _), (second, _) = watcher_of(store, "w1"), watcher_of(store, "w2")
    for role in (first, second):
        await role._take(["q"])
    assert (first._held["q"].is_set(), second._held["q"].is_set()) == (True, False)
    assert await redis_client.get(KEY) == b"w1"
    assert HOLD_MS - 5000 < await redis_client.pttl(KEY) <= HOLD_MS
    await second._release(["q"])
    assert await redis_client.get(KEY) == b"w1", "it is not theirs to give back"
    await first._release(["q"])
    assert not first._held["q"].is_set()
    assert not await redis_client.exists(KEY)


async def test_a_stop_before_the_reply_gives_the_right_back(store: Store, redis_client: Any) -> None:
    class Slow:
        """Its replies do not come."""

        def __init__(self) -> None:
            self.was_asked = asyncio.Event()

        def __getattr__(self, name: str) -> Any:
            return getattr(store.redis, name)

        async def command_each(self, commands: Sequence[Any]) -> None:
            await store.redis.command_each(commands)
            self.was_asked.set()
            await forever()

    slow = Slow()
    role, _ = watcher_of(store, redis=slow)
    running = asyncio.create_task(role.run())
    await asyncio.wait_for(slow.was_asked.wait(), PATIENCE)
    assert await redis_client.get(KEY) == b"w1"
    running.cancel()
    await asyncio.wait([running])
    assert not await redis_client.exists(KEY)


@pytest.mark.parametrize(
    ("holder", "is_due", "is_ours", "then"),
    [
        ("", False, True, None),
        ("", True, True, b"w1"),
        ("w1", True, True, b"w1"),
        ("w2", False, True, b"w2"),
        ("w2", True, False, b"w2"),
    ],
)
async def test_the_right_is_renewed_when_it_is_time_unless_another_has_it(
    store: Store, redis_client: Any, holder: str, is_due: bool, is_ours: bool, then: bytes | None
) -> None:
    role, _ = watcher_of(store)
    now = time.monotonic()
    role._renew_at["q"] = at = now - 1 if is_due else now + 600
    if holder:
        await redis_client.set(KEY, holder, px=1000)
    assert await role._renew("q") is is_ours
    assert await redis_client.get(KEY) == then
    if is_due and is_ours:
        assert HOLD_MS - 5000 < await redis_client.pttl(KEY) <= HOLD_MS
        assert RENEW - 5 < role._renew_at["q"] - now < RENEW + 30
    else:
        assert role._renew_at["q"] == at


@pytest.mark.parametrize(("idle", "is_eager"), [(0, True), (1, True), (2, False)])
async def test_the_only_idle_worker_leaves_tasks_to_nobody(
    store: Store, redis_client: Any, idle: int, is_eager: bool
) -> None:
    role, _ = watcher_of(store)
    for number in range(idle):
        await redis_client.zadd(keys.idle("q"), {f"asynq:wake:{number}": number})
    assert await role._renew("q")
    assert (role._eager_until["q"] == role._renew_at["q"]) is is_eager


@pytest.mark.parametrize("count", [1, AGAIN_AFTER - 1, AGAIN_AFTER, 2 * AGAIN_AFTER, (MOST_AGAIN + 1) * AGAIN_AFTER])
async def test_every_queue_is_entered_again_once_in_so_many_looks(store: Store, count: int) -> None:
    """A few at each, and never more than so many."""
    queues = [f"q{number}" for number in range(count)]
    role, found = watcher_of(store, queues=queues)
    sizes = []
    for _ in range(AGAIN_AFTER + 1):
        before = len(found)
        role._enter_again(queues)
        sizes.append(len(found) - before)
    assert max(sizes) <= min(MOST_AGAIN, -(-count // AGAIN_AFTER))
    times = Counter(found)
    if count <= MOST_AGAIN * AGAIN_AFTER:
        assert times.keys() == set(queues)
    assert max(times.values()) <= 2
    role._enter_again([])
    assert len(found) == sum(sizes)
