"""Go and Python on one queue, where a fault or a moment has to be placed exactly: an emulated Go peer stands still
between two of its steps. Everything else is in `live`, beside the real one."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest
import redis.asyncio

from tests.interop.go_peer import LEASE_EXPIRED, GoPeer
from tests.interop.golden import STATISTICS
from tests.interop.test_replay import start_victim
from tests.interop.test_takeover import Recorder
from tests.support.keyspace import check_invariant
from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import pause, until
from veredus import App, Job
from veredus.store.store import Store

LOCK = "asynq:{default}:unique:t:9dd4e461268c8034f5c8564e155c67a6"


def _key(rest: str) -> str:
    return f"asynq:{{default}}:{rest}"


async def _state(client: Any, task_id: str) -> bytes | None:
    state: bytes | None = await client.hget(_key(f"t:{task_id}"), "state")
    return state


async def _reaches(client: Any, task_id: str, state: bytes | None) -> None:
    async def there() -> bool:
        return await _state(client, task_id) == state

    await until(there, what=f"state {state!r}")


async def _only_counters_left(client: Any) -> None:
    keys = {key for key in map(bytes.decode, await client.keys("*")) if not STATISTICS.search(key)}
    odd = {key for key in keys if not any(part in key for part in (":processed", ":failed", ":batch:", ":sent:"))}
    assert odd <= {"asynq:queues"}, odd
    assert await check_invariant(client) == []


@pytest.fixture
def peer(redis_client: Any) -> GoPeer:
    return GoPeer(redis_client)


async def test_a_task_that_go_retries_does_not_run_at_its_old_time(
    url: str, store: Store, redis_client: Any, peer: GoPeer
) -> None:
    """Our index still has the first due time; Go took the task meanwhile and put it off by an hour."""
    recorder = Recorder(url)
    handle = await recorder.app.enqueue("t", b"", delay=0.4)
    peer.skew = 2
    assert await peer.forward() == 1
    message = await peer.dequeue()
    assert message
    await peer.retry(message, 3600, "go failed")
    peer.skew = 0
    assert await redis_client.zscore(_key("due"), handle.id)
    later = await recorder.app.enqueue("later", b"", delay=0.6)
    async with recorder.app.worker({"default": 1}):
        await _reaches(redis_client, later.id, None)
    await recorder.app.close()
    assert [job.type for job in recorder.jobs] == ["later"]
    assert await _state(redis_client, handle.id) == b"retry"
    assert await redis_client.zscore(_key("due"), handle.id) is None
    moved, _, _, _ = await Queue(store.redis, redis_client, "default").forward(now=int(time.time() + 3700) * 1000)
    assert moved == 1


async def test_a_task_that_go_forwards_is_run_by_us_once(url: str, redis_client: Any, peer: GoPeer) -> None:
    recorder = Recorder(url)
    handle = await recorder.app.enqueue("t", b"", delay=0.3)
    peer.skew = 2
    assert await peer.forward() == 1
    last = await recorder.app.enqueue("last", b"", delay=0.6)
    async with recorder.app.worker({"default": 1}):
        await _reaches(redis_client, last.id, None)
    await recorder.app.close()
    assert [job.id for job in recorder.jobs] == [handle.id, last.id]
    await _only_counters_left(redis_client)


@VALKEY_ONLY
async def test_go_settles_a_task_whose_lease_we_let_lapse(store: Store, redis_client: Any, peer: GoPeer) -> None:
    queue = Queue(store.redis, redis_client, "default")
    task_id = await peer.enqueue("t", b"x", unique=600, lock=LOCK)
    assert (await queue.dequeue(now=None))[0] == [task_id]
    assert await peer.recover() == []  # the lease holds
    peer.skew = 12 + 2 + 30
    assert await peer.recover(delay=0) == [task_id]
    assert await peer.forward() == 1
    message = await peer.dequeue()
    assert message
    assert (message["retried"], message["error_msg"]) == (1, LEASE_EXPIRED)
    assert await queue.extend(task_id, now=None) == [1]
    assert await queue.done((task_id, "w:1", LOCK), now=None) == [1]
    assert await redis_client.get(LOCK) == task_id.encode()
    await peer.done(message)
    assert await redis_client.exists(LOCK) == 0
    assert await queue.done((task_id, "w:1", LOCK), now=None) == [1]
    await _only_counters_left(redis_client)


@VALKEY_ONLY
async def test_go_recovers_what_our_killed_worker_held(url: str, redis_client: Any, peer: GoPeer) -> None:
    app = App(url)
    handle = await app.enqueue("sleep", b"60000", max_retry=1)
    victim = start_victim(url, lease=12.0)
    try:
        await _reaches(redis_client, handle.id, b"active")
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    await app.close()
    assert await peer.recover() == []
    peer.skew = 12 + 2 + 30
    assert await peer.recover(delay=0) == [handle.id]
    assert await peer.forward() == 1
    message = await peer.dequeue()
    assert message
    assert message["error_msg"] == LEASE_EXPIRED
    assert message["retried"] == 1
    fields = await redis_client.hgetall(_key(f"t:{handle.id}"))
    assert set(fields) == {b"msg", b"state", b"held"}  # ours stays, and means nothing under Go's lease
    peer.skew += 90
    assert await peer.recover() == [handle.id]  # Go's worker died as well: no retry is left
    assert await _state(redis_client, handle.id) == b"archived"
    assert await check_invariant(redis_client) == []


@VALKEY_ONLY
async def test_we_recover_what_a_killed_go_worker_held(url: str, redis_client: Any, peer: GoPeer) -> None:
    recorder = Recorder(url)
    task_id = await peer.enqueue("t", b"x", unique=600, lock=LOCK)
    peer.skew = -62  # it took the task a minute ago, and was never seen again
    assert await peer.dequeue()
    async with recorder.app.worker({"default": 1}, lease=1.0, sweep=0.2):
        await _reaches(redis_client, task_id, None)
    await recorder.app.close()
    (job,) = recorder.jobs
    assert (job.id, job.retried, job.message.error_msg) == (task_id, 1, LEASE_EXPIRED)
    assert (await redis_client.get(_key("processed")), await redis_client.get(_key("failed"))) == (b"2", b"1")
    await _only_counters_left(redis_client)


@VALKEY_ONLY
async def test_a_go_worker_that_keeps_its_lease_keeps_its_task(url: str, redis_client: Any, peer: GoPeer) -> None:
    recorder = Recorder(url)
    task_id = await peer.enqueue("t")
    peer.skew = -62
    message = await peer.dequeue()
    assert message
    peer.skew = 0
    await peer.extend(task_id)
    async with recorder.app.worker({"default": 1}, lease=0.5, sweep=0.1):
        canary = await peer.enqueue("canary")
        await _reaches(redis_client, canary, None)
        await pause(1.0, proves="no sweep takes the task")
        assert await _state(redis_client, task_id) == b"active"
    await recorder.app.close()
    await peer.done(message)
    assert [job.id for job in recorder.jobs] == [canary]
    await _only_counters_left(redis_client)


async def test_a_plain_push_of_go_is_picked_up_at_once(
    url: str, server: RealServer, redis_client: Any, peer: GoPeer
) -> None:
    app, second = App(url), redis.asyncio.Redis(unix_socket_path=server.socket)
    arrived: asyncio.Queue[float] = asyncio.Queue()

    @app.handler("*")
    async def note(job: Job) -> None:
        arrived.put_nowait(time.perf_counter())

    waits: list[float] = []
    plain: list[float] = []
    async with app.worker({"default": 1}):
        for _ in range(60):
            sent = time.perf_counter()
            task_id = await peer.enqueue("go")
            waits.append((await arrived.get() - sent) * 1000)
            await _reaches(redis_client, task_id, None)
            await until(lambda: _idle(redis_client), what="an idle worker")
            plain.append(await _round_trip_of_a_plain_wait(redis_client, second))
    await second.aclose()
    await app.close()
    p50, usual = sorted(waits)[30], sorted(plain)[30]
    print(f"pick-up of a plain LPUSH: p50 {p50:.2f} ms; a client that just waits: {usual:.2f} ms")
    assert p50 <= 20 + 10 * usual


async def _round_trip_of_a_plain_wait(client: redis.asyncio.Redis, second: redis.asyncio.Redis) -> float:
    """Milliseconds from a push to its arrival at a client that is blocked for it, on this machine just now."""
    waiting = asyncio.ensure_future(second.blpop(["plain"], timeout=0))
    await until(lambda: _blocked(client, 2), what="the client that waits")
    sent = time.perf_counter()
    await client.lpush("plain", "x")
    await waiting
    return (time.perf_counter() - sent) * 1000


async def _counted(client: Any, number: int) -> bool:
    return bool(await client.get(_key("processed")) == b"%d" % number)


async def _seen(recorder: Recorder, task_id: str) -> bool:
    return task_id in [job.id for job in recorder.jobs]


async def _idle(client: Any) -> bool:
    return await _blocked(client, 1)


async def _blocked(client: Any, least: int) -> bool:
    return bool((await client.info("clients"))["blocked_clients"] >= least)


async def test_a_set_that_go_left_behind_comes_back_to_its_group(url: str, redis_client: Any) -> None:
    """As Go's AggregationCheck leaves it when its server dies right afterwards."""
    app, seen = App(url), list[int]()

    @app.aggregate("g:1", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> list[Any]:
        seen.append(len(jobs))
        return []

    await app.enqueue("item", b"1", group="g:1")
    left = _key("g:g:1:0f1c0a3e-0000-4000-8000-000000000000")
    await redis_client.rename(_key("g:g:1"), left)
    await redis_client.srem(_key("groups"), "g:1")
    await redis_client.zadd(_key("aggregation_sets"), {left: int(time.time()) - 1})
    async with app.worker({"default": 1}, lease=1.5, sweep=0.3):
        await until(lambda: seen == [1])
    await app.close()
    assert await check_invariant(redis_client) == []
