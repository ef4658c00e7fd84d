"""Roles of a worker, one step at a time: what each does when something beside it is late, broken or too much."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.support import Look, go_message
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import pause, until, until_sync
from veredus import App, Limit, current
from veredus.clock import SYSTEM, ServerClock
from veredus.errors import StoreError
from veredus.events import Bus, LeaseWasLost, TaskEnded
from veredus.model.lease import Lease
from veredus.model.settlement import Retry, Settlement
from veredus.model.verdict import End
from veredus.store.intake import Entry
from veredus.store.leases import Extension, Holding
from veredus.store.redis import Server
from veredus.store.store import Store, connect
from veredus.store.work import Batch, Work
from veredus.wire import keys
from veredus.wire.messages import decode_task, encode_task
from veredus.wire.presence import ServerRecord
from veredus.worker.complaints import Complaints
from veredus.worker.config import WorkerConfig
from veredus.worker.hands import Attempt, Hands
from veredus.worker.mux import Mux
from veredus.worker.roles.heartbeater import Heartbeater
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.syncer import Syncer
from veredus.worker.settlement import Settler

pytestmark = VALKEY_ONLY


async def _active(store: Store, *ids: str, queue: str = "default", worker: str = "w", lease_ms: int = 60_000) -> Batch:
    """Tasks that a worker has just taken."""
    await store.intake.add_many(queue, [Entry(one, encode_task(go_message("t", task_id=one))) for one in ids])
    batch = await Work(store.redis, worker, lease_ms=lease_ms).dequeue(queue, len(ids))
    assert [task_id for task_id, _ in batch.rows] == list(ids)
    return batch


async def _let_expire(client: Any, task_id: str, owner: str, queue: str = "default") -> None:
    """As if the lease had ended five seconds ago."""
    end = int(time.time()) - 5
    await client.zadd(keys.lease(queue), {task_id: end}, xx=True)
    await client.hset(keys.task(queue, task_id), "held", f"{owner}:{end}")


def _recoverer(store: Store, config: WorkerConfig) -> Recoverer:
    work = Work(store.redis, "sweeper", lease_ms=config.lease_ms)
    return Recoverer(store, work, "sweeper", config, Mux({}, {}, []), SYSTEM, Complaints(), Bus())


async def test_after_an_outage_no_task_is_claimed_before_its_worker_had_time_for_a_heartbeat(
    store: Store, redis_client: Any, look: Look
) -> None:
    """The recoverer's connection is new, so that of the living worker may still be broken: its lease has run out, but
    its heartbeat is on its way."""
    config = WorkerConfig(lease=12.0)
    server = store.redis
    assert isinstance(server, Server)
    recoverer = _recoverer(store, config)

    def wind_back() -> None:
        """As if the connection were as old as a lease."""
        assert server._connection is not None
        server._connection.connected_at -= config.lease

    owner = (await _active(store, "living")).owner
    await recoverer.step()  # from now on it knows when it swept last
    wind_back()
    await recoverer.step()
    await redis_client.client_kill_filter(_type="normal", skipme=True)
    await _let_expire(redis_client, "living", owner)
    await until(lambda: server.age("") == 0.0)
    for _ in range(2):  # the first one finds no connection and makes one, the second finds it young
        await recoverer.step()
        assert await look.state("living") == "active"
    answer = await store.leases.extend({"default": [Holding("living", owner, 12_000)]})
    assert answer["default"] == Extension([], []), "its heartbeat has come, and it is still its own"

    await _let_expire(redis_client, "living", owner)
    wind_back()
    await recoverer.step()
    assert await look.state("living") == "retry", "nobody prolonged it, and the connection is old enough"


async def test_one_settlement_that_is_refused_does_not_hold_up_the_others(
    store: Store, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    owner = (await _active(store, "a", "bad", "c")).owner
    syncer = Syncer(1.0, Complaints())
    syncer.settler = Settler(Work(store.redis, "w", lease_ms=60_000), Hands(1, lambda: None), Bus(), syncer.keep)
    message = encode_task(go_message("t"))
    impossible: Any = "soon"  # a delay that the script cannot calculate with
    syncer.keep(
        "default",
        [(Retry(one, owner, message, impossible if one == "bad" else 60_000, True), None) for one in ("a", "bad", "c")],
    )
    await syncer.step()
    assert [await look.state(one) for one in ("a", "bad", "c")] == ["retry", "active", "retry"]
    assert not syncer.idle, "what was refused is tried again"
    lines = [record.getMessage() for record in caplog.records if "cannot settle" in record.getMessage()]
    assert len(lines) == 1
    assert "cannot settle task bad of queue default" in lines[0]


def _attempt(batch: Batch, *, timeout: float, grace: float, lease: float = 12.0) -> Attempt:
    """A running attempt of a batch's only task, which may take so many seconds."""
    ((task_id, data),) = batch.rows
    now = time.monotonic()
    return Attempt(
        "default",
        task_id,
        batch.owner,
        data,
        decode_task(data),
        Lease(now + lease, now + timeout + grace),
        started_at=time.time(),
        deadline=time.time() + timeout,
        ends_at=now + timeout,
    )


class _Heart:
    """A heartbeater that beats when the test says so."""

    def __init__(self, config: WorkerConfig, *attempts: Attempt) -> None:
        self.overrun: list[str] = []
        self.hands = Hands(10, lambda: None)
        for attempt in attempts:
            self.hands.take(attempt)
        self.beater = Heartbeater(
            lambda: connect("unix:///nowhere/x.sock"),
            config,
            self.hands,
            ServerClock(),
            lambda: ServerRecord(
                host="host",
                pid=1,
                server_id="w",
                concurrency=10,
                queues={"default": 1},
                strict_priority=False,
                status="active",
                started_at=0.0,
                active_worker_count=1,
            ),
            lambda attempt, hung: self.overrun.append(attempt.task_id),
            Complaints(),
        )


async def test_a_heartbeat_renews_a_lease_only_until_the_deadline_and_its_grace(
    store: Store, look: Look, redis_client: Any
) -> None:
    attempt = _attempt(await _active(store, "a", lease_ms=1000), timeout=30, grace=10)
    heart = _Heart(WorkerConfig(lease=600.0), attempt)
    ends_by = time.time() + 40
    await heart.beater.beat(store)
    assert time.time() + 20 < (await look.scores("lease"))["a"] <= math.ceil(ends_by)
    assert attempt.lease.is_valid(time.monotonic() + 20)
    assert not attempt.lease.is_valid(time.monotonic() + 40)
    attempt.running = False  # what is earned is kept until it is written
    await heart.beater.beat(store)
    assert time.time() + 500 < (await look.scores("lease"))["a"]
    assert attempt.lease.is_valid(time.monotonic() + 500)


async def test_a_handler_that_overran_its_time_is_told_once_and_its_lease_runs_out(store: Store, look: Look) -> None:
    attempt = _attempt(await _active(store, "a", lease_ms=60_000), timeout=0, grace=0)
    heart = _Heart(WorkerConfig(lease=600.0), attempt)
    before = await look.scores("lease")
    await heart.beater.beat(store)
    await heart.beater.beat(store)
    assert await look.scores("lease") == before
    assert heart.overrun == ["a"]


async def test_a_heartbeat_brings_back_a_lease_that_ran_out_but_that_nobody_claimed(
    store: Store, look: Look, redis_client: Any
) -> None:
    batch = await _active(store, "a")
    attempt = _attempt(batch, timeout=1800, grace=3, lease=-5.0)
    await _let_expire(redis_client, "a", batch.owner)
    assert not attempt.lease.is_valid(time.monotonic())
    await _Heart(WorkerConfig(lease=60.0), attempt).beater.beat(store)
    assert attempt.lease.is_valid(time.monotonic() + 50)
    assert (await look.scores("lease"))["a"] > time.time() + 50


async def test_a_lease_that_was_lost_is_not_asked_for_again(store: Store, look: Look, redis_client: Any) -> None:
    attempt = _attempt(await _active(store, "a"), timeout=1800, grace=3)
    heart = _Heart(WorkerConfig(lease=60.0), attempt)
    other = int(time.time()) + 3600
    await redis_client.zadd(keys.lease("default"), {"a": other})  # as a Go worker would
    await heart.beater.beat(store)
    assert attempt.lease.lost
    await asyncio.sleep(0)
    assert attempt.forced is End.LEASE_LOST, "the handler is told"
    before = await _calls(redis_client)
    await heart.beater.beat(store)
    assert await _calls(redis_client) == before + 1, "only the beat itself"
    assert await look.scores("lease") == {"a": other}


async def _calls(client: Any) -> int:
    stats = await client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def test_a_handler_that_ends_after_its_lease_was_lost_writes_nothing(
    app: App, server: RealServer, look: Look
) -> None:
    """It blocks the loop, so that nobody can cancel it between the heartbeat and its end."""
    told: list[BaseException] = []
    events: list[Any] = []
    settled: list[Settlement] = []
    worker = app.worker(lease=1.5, on_error=lambda error, job: told.append(error))
    worker.bus.subscribe(events.append)

    @app.task
    async def work() -> str:
        (attempt,) = worker._hands.held()
        with server.client() as client:  # a Go worker takes it over
            client.zadd(keys.lease("default"), {attempt.task_id: int(time.time()) + 3600})
        until_sync(lambda: attempt.lease.lost, what="a heartbeat that notices it")
        return "a result nobody may see"

    async with worker:
        settle = worker._settler.settle

        def noted(queue: str, settlement: Settlement, attempt: Attempt | None) -> None:
            settled.append(settlement)
            settle(queue, settlement, attempt)

        worker._settler.settle = noted  # type: ignore[method-assign]
        handle = await work.enqueue()
        await until(lambda: [event for event in events if isinstance(event, TaskEnded)])
        assert not worker._hands.held()
    assert settled == []
    assert [event for event in events if isinstance(event, LeaseWasLost)] == [LeaseWasLost("default", handle.id)]
    assert [(event.end, event.action) for event in events if isinstance(event, TaskEnded)] == [
        ("lease lost", "nothing")
    ]
    assert told == []
    assert await look.active() == [handle.id]
    assert "result" not in await look.fields(handle.id)


async def test_a_task_whose_lease_ended_before_it_began_is_given_back_and_no_attempt_is_counted(
    app: App, look: Look
) -> None:
    """The answer to the dequeue came after the lease had ended: another worker may have the task by now."""
    attempts: list[int] = []
    events: list[Any] = []

    @app.task(max_retry=0)
    async def work() -> None:
        attempts.append(current().attempt)

    worker = app.worker(lease=1.0)
    worker.bus.subscribe(events.append)
    async with worker:
        ask = worker._work.dequeue_each
        late = 1

        async def ask_late(wanted: Sequence[tuple[str, int]]) -> list[Batch | StoreError]:
            nonlocal late
            answers = await ask(wanted)
            if late and isinstance(answers[0], Batch) and answers[0].rows:
                late = 0
                await pause(1.0, proves="a lease that ended on the way is not used")
            return answers

        worker._work.dequeue_each = ask_late  # type: ignore[method-assign]
        handle = await work.enqueue()
        await look.ends(handle.id, "gone")
    ends = [(event.end, event.action) for event in events if isinstance(event, TaskEnded)]
    assert (ends[0], ends[-1]) == (("aborted", "requeue"), ("succeeded", "done"))
    assert attempts == [1]
    assert await look.counters() == (1, 0)


async def test_room_that_is_made_while_the_answer_is_on_its_way_is_not_slept_through(app: App, look: Look) -> None:
    """The answer says that the queue is full until the lease of what runs ends; meanwhile that has ended."""
    release, ran = asyncio.Event(), []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        if n == 1:
            await release.wait()

    app.limit("default", Limit(concurrency=1))
    worker = app.worker(lease=600)
    async with worker:
        await work.enqueue(1)
        await until(lambda: ran)
        ask = worker._work.dequeue_each

        async def ask_and_make_room(wanted: Sequence[tuple[str, int]]) -> list[Batch | StoreError]:
            answers = await ask(wanted)
            if isinstance(answers[0], Batch) and answers[0].wait is not None:
                assert answers[0].wait > 30
                release.set()
                await until(lambda: worker._processor._rooms["default"], what="word that there is room")
            return answers

        worker._work.dequeue_each = ask_and_make_room  # type: ignore[method-assign]
        second = await work.enqueue(2)
        await look.ends(second.id, "gone")
    assert ran == [1, 2]
