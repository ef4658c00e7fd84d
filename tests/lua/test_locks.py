"""Unique locks: kept on every way of a living task, taken again when they lapsed, never taken from another task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.keyspace import Key
from tests.support.queue import LEASE_MS, NOW, Queue, differences

LOCK = "asynq:{q}:unique:t:1"
MARGIN = 60
LEASE = LEASE_MS // 1000

Step = Callable[[Queue], Awaitable[object]]


async def active(q: Queue) -> None:
    await q.enqueue(("a", b"m", LOCK, 5))
    await q.dequeue()


async def retried(q: Queue) -> None:
    await active(q)
    await q.retry(("a", "w:1", b"m", 1500, 1))


STEPS: dict[str, tuple[Step, Step, int]] = {
    # what comes before, the step that keeps the lock, and for how many seconds it then lives at least
    "dequeue": (lambda q: q.enqueue(("a", b"m", LOCK, 5)), lambda q: q.dequeue(), LEASE + MARGIN),
    "extend": (active, lambda q: q.extend(("a", "w:1", 30_000)), 30 + MARGIN),
    "retry": (active, lambda q: q.retry(("a", "w:1", b"m", 500_000, 1)), 500 + MARGIN),
    "requeue": (active, lambda q: q.requeue("a"), MARGIN),
    "recover": (active, lambda q: q.recover(claim_ms=5000, now=NOW + 60_000), 5 + MARGIN),
    "forward": (retried, lambda q: q.forward(now=NOW + 2000), MARGIN),
}
steps = pytest.mark.parametrize("step", STEPS)


@steps
async def test_a_short_one_is_prolonged(q: Queue, step: str) -> None:
    before, keep, seconds = STEPS[step]
    await before(q)
    await q.client.expire(LOCK, 2)
    await keep(q)
    assert await q.client.get(LOCK) == b"a"
    assert seconds - 2 <= await q.client.ttl(LOCK) <= seconds


@steps
async def test_a_long_one_is_left_alone(q: Queue, step: str) -> None:
    before, keep, _ = STEPS[step]
    await before(q)
    await q.client.expire(LOCK, 7200)
    await keep(q)
    assert 7190 <= await q.client.ttl(LOCK) <= 7200


@steps
async def test_one_without_an_end_is_left_alone(q: Queue, step: str) -> None:
    before, keep, _ = STEPS[step]
    await before(q)
    await q.client.persist(LOCK)
    await keep(q)
    assert await q.client.ttl(LOCK) == -1


@steps
async def test_one_that_lapsed_is_taken_again(q: Queue, step: str) -> None:
    before, keep, seconds = STEPS[step]
    await before(q)
    await q.client.delete(LOCK)
    await keep(q)
    assert await q.client.get(LOCK) == b"a"
    assert seconds - 2 <= await q.client.ttl(LOCK) <= seconds


@steps
async def test_one_that_another_task_took_stays_with_it(q: Queue, step: str) -> None:
    before, keep, _ = STEPS[step]
    await before(q)
    await q.client.set(LOCK, "another", ex=5)
    await keep(q)
    assert await q.client.get(LOCK) == b"another"
    assert await q.client.ttl(LOCK) <= 5


@steps
async def test_a_lock_of_a_wrong_type_stops_nothing(q: Queue, step: str) -> None:
    before, keep, _ = STEPS[step]
    await before(q)
    await q.client.delete(LOCK)
    await q.client.rpush(LOCK, "x")
    old = await q.everything()
    await keep(q)
    changed = differences(old, await q.everything())
    assert q.task("a") in changed
    assert LOCK not in changed


@steps
async def test_a_task_without_a_lock_gets_none(q: Queue, step: str) -> None:
    before, keep, _ = STEPS[step]
    await before(q)
    await q.client.delete(LOCK)
    await q.client.hdel(q.task("a"), "unique_key")
    await keep(q)
    assert not await q.client.keys("*unique*")


async def test_whoever_lost_the_task_keeps_no_lock(q: Queue) -> None:
    await active(q)
    await q.client.expire(LOCK, 2)
    assert await q.extend(("a", "z:9")) == [1]
    assert await q.retry(("a", "z:9")) == [1]
    assert await q.requeue(("a", "z:9")) == [1]
    assert await q.client.ttl(LOCK) <= 2


async def test_the_plain_way_costs_not_one_command_more(q: Queue) -> None:
    """Of a task without a lock nothing but one more field is read, in the call that reads the others anyway."""
    await q.enqueue("a")
    await q.dequeue()
    await q.client.config_resetstat()
    await q.extend("a")
    commands = {name.decode() if isinstance(name, bytes) else name for name in await q.client.info("commandstats")}
    assert not commands & {"cmdstat_get", "cmdstat_ttl", "cmdstat_pttl", "cmdstat_expire", "cmdstat_set"}
    assert "cmdstat_hmget" in commands


async def test_after_the_end_it_is_free(q: Queue) -> None:
    await active(q)
    await q.extend("a")
    await q.done(("a", "w:1", LOCK))
    assert await q.enqueue(("b", b"m", LOCK, 5)) == [1]
    assert (await q.everything())[LOCK] == Key("string", "b", "seconds")
