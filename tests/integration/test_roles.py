"""Roles of a worker, one step at a time: what each does when something beside it is late, broken or too much."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.support import FAST, Look, go_message
from tests.support.proxy import Proxy, proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, forever, pause, until, until_sync
from veredus import App, Limit, current
from veredus.clock import SYSTEM, ServerClock
from veredus.errors import CommandRefused, ConnectionLost, StoreError
from veredus.events import Bus, LeaseWasLost, TaskEnded
from veredus.handlers.mux import Mux
from veredus.model.lease import Lease
from veredus.model.request import Origin
from veredus.model.settlement import Done, Retry, Settlement
from veredus.model.verdict import End
from veredus.process import outage_log
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.connection import wakeups
from veredus.store.store import Store, connect
from veredus.store.tasks.cancels import Cancels
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.leases import Extension, Holding
from veredus.store.tasks.work import Batch, DequeueRequest, Work
from veredus.wire import keys, lease_owner
from veredus.wire.messages import decode_task, encode_task
from veredus.wire.presence import ServerRecord
from veredus.worker.attempt import Attempt, InFlight
from veredus.worker.canceller import Canceller
from veredus.worker.config import WorkerConfig
from veredus.worker.role import Role
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.heartbeater import Heartbeater, HeartbeatHooks
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.subscriber import Subscriber
from veredus.worker.roles.syncer import Syncer
from veredus.worker.settler import Settler
from veredus.worker.supervisor import give_back

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


async def _active(store: Store, *ids: str, lease_ms: int = 60_000) -> Batch:
    """Tasks that a worker has just taken."""
    queue, worker = "default", f"w-{ids[0]}"
    await store.intake.add_many(queue, [NewTask(one, encode_task(go_message("t", task_id=one))) for one in ids])
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
    return Recoverer(store, work, "sweeper", config, Mux({}, {}, []), SYSTEM, OutageLog(), Bus())


@asynccontextmanager
async def _lossy(server: RealServer) -> AsyncIterator[tuple[Proxy, Store]]:
    """The server behind a proxy, and a store that knows only that."""
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url))
        yield proxy, store
        await store.close()


def _be_calm(recoverer: Recoverer) -> None:
    """As if nothing had happened for a lease."""
    calm = recoverer._gate
    calm._from = {queue: at - calm._lease for queue, at in calm._from.items()}


def _stand_still(recoverer: Recoverer, seconds: float) -> None:
    """As if its last sweep had been that much earlier."""
    last = recoverer._gate._last
    for queue, (now_ms, asked) in last.items():
        last[queue] = (now_ms - round(seconds * 1000), asked - seconds)


async def test_after_an_outage_no_task_is_claimed_before_its_worker_had_time_for_a_heartbeat(
    store: Store, redis_client: Any, look: Look
) -> None:
    """It swept last before the outage. The lease of the living worker has run out, but its heartbeat is on its way."""
    recoverer = _recoverer(store, WorkerConfig(lease=12.0))
    owner = (await _active(store, "living")).owner
    await recoverer.step()  # from now on it knows when it swept last
    _be_calm(recoverer)
    await recoverer.step()
    _stand_still(recoverer, 6.0)
    await _let_expire(redis_client, "living", owner)
    for _ in range(3):  # not only the first one after it
        await recoverer.step()
        assert await look.state("living") == "active"
    answer = await store.leases.extend({"default": [Holding("living", owner, 12_000)]})
    assert answer["default"] == Extension([], []), "its heartbeat has come, and it is still its own"

    await _let_expire(redis_client, "living", owner)
    _be_calm(recoverer)
    await recoverer.step()
    assert await look.state("living") == "retry", "nobody prolonged it for a whole lease"


async def test_connections_that_live_shorter_than_a_lease_do_not_stop_the_recovery(
    server: RealServer, store: Store, redis_client: Any, look: Look
) -> None:
    """A server with `timeout 1`, or a proxy that cuts what is idle: the server is there whenever it is asked."""
    config = WorkerConfig(lease=12.0)
    owner = (await _active(store, "dead")).owner
    async with _lossy(server) as (proxy, lossy):
        recoverer = _recoverer(lossy, config)
        await recoverer.step()
        _be_calm(recoverer)
        await recoverer.step()  # a sweep that comes when it should changes nothing
        await _let_expire(redis_client, "dead", owner)
        proxy.lose_request = 1
        await recoverer.step()
        assert await look.state("dead") == "active", "this sweep did not arrive"
        await recoverer.step()
        assert await look.state("dead") == "retry"


async def test_a_sweep_without_an_answer_is_soon_repeated(server: RealServer, store: Store) -> None:
    """Else two of them, a sweep's interval apart, would be an outage after which nobody is recovered for a lease."""
    config = WorkerConfig(lease=600.0, sweep=100.0)
    await _active(store, "a")
    async with _lossy(server) as (proxy, lossy):
        recoverer = _recoverer(lossy, config)
        await recoverer.step()
        assert recoverer._next_expiry > 30.0
        proxy.lose_request = 1
        await recoverer.step()
        assert recoverer._next_expiry == 25.0
        recoverer._queues_read_at = -math.inf
        proxy.marker, proxy.lose_request = b"SMEMBERS", 2  # it is asked for once more on a fresh connection
        with pytest.raises(ConnectionLost):
            await recoverer.step()
        assert recoverer._next_expiry == 25.0


@pytest.mark.parametrize("beats", [True, False])
async def test_a_blocked_loop_does_not_stop_recovery_while_the_heart_goes_on_beating(
    store: Store, redis_client: Any, look: Look, beats: bool
) -> None:
    """Handlers that block every loop for seconds again and again shall not keep dead workers' tasks from anybody."""
    recoverer = _recoverer(store, WorkerConfig(lease=12.0))
    recoverer._steady_since = lambda: 0.0 if beats else math.inf
    owner = (await _active(store, "dead")).owner
    await recoverer.step()
    _be_calm(recoverer)
    _stand_still(recoverer, 9.0)
    await _let_expire(redis_client, "dead", owner)
    await recoverer.step()
    assert await look.state("dead") == ("retry" if beats else "active")


async def test_a_queue_that_is_new_is_recovered_by_who_was_there_before_it(
    store: Store, redis_client: Any, look: Look
) -> None:
    recoverer = _recoverer(store, WorkerConfig(lease=12.0))
    await store.register(["other"])
    await recoverer.step()
    _be_calm(recoverer)
    owner = (await _active(store, "dead")).owner
    await _let_expire(redis_client, "dead", owner)
    recoverer._queues_read_at = -math.inf
    await recoverer.step()  # notes when it saw the queue first
    await recoverer.step()
    assert await look.state("dead") == "retry"


async def test_a_heart_that_missed_a_beat_is_not_steady(store: Store) -> None:
    beater = _Heart(WorkerConfig(lease=12.0)).beater
    assert beater.steady_since == math.inf, "it has not beaten yet"
    now = time.monotonic()
    beater._beaten(now)
    beater._beaten(now + 4.0)
    assert beater.steady_since == now
    beater._beaten(now + 11.0)
    assert beater.steady_since == now + 11.0
    beater.beaten_at = now - 7.0
    assert beater.steady_since == math.inf, "the next one does not come"


async def test_what_a_dead_worker_held_is_counted_over_all_queues(store: Store) -> None:
    """The supervisor asks again until nothing was found, so the count must not be that of one queue alone."""
    work = Work(store.redis, "dead", lease_ms=60_000)
    for queue, ids in (("a", ["a1", "a2"]), ("b", ["b1"]), ("c", [])):
        message = encode_task(go_message("t", queue=queue))
        await store.intake.add_many(queue, [NewTask(one, message) for one in [*ids, "free"]])
        if ids:
            await work.dequeue(queue, len(ids))
    recoverer = _recoverer(store, WorkerConfig(lease=12.0))
    assert await recoverer.give_back(lease_owner.owner("dead", "")) == 3
    assert await recoverer.give_back(lease_owner.owner("dead", "")) == 0


async def test_all_that_a_dead_worker_held_is_given_back_however_much_it_was(
    app: App, store: Store, look: Look
) -> None:
    """One sweep claims a hundred."""
    ids = [f"t{number}" for number in range(101)]
    await store.intake.add_many("default", [NewTask(one, encode_task(go_message("t", task_id=one))) for one in ids])
    await Work(store.redis, "dead", lease_ms=60_000).dequeue("default", len(ids))
    assert await give_back(app, WorkerConfig(lease=60.0), "dead", Bus(), "its worker died") == 101
    assert (await look.active(), len(await look.scores("retry"))) == ([], 101)


async def test_one_settlement_that_is_refused_does_not_hold_up_the_others(
    store: Store, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    owner = (await _active(store, "a", "bad", "c")).owner
    syncer = Syncer(1.0, OutageLog())
    syncer.settler = Settler(Work(store.redis, "w", lease_ms=60_000), InFlight(1, lambda: None), Bus(), syncer.keep)
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


async def test_what_is_kept_is_tried_once_more_at_a_stop(store: Store, look: Look) -> None:
    owner = (await _active(store, "a")).owner
    syncer = Syncer(3600.0, OutageLog())
    settler = Settler(Work(store.redis, "w", lease_ms=60_000), InFlight(1, lambda: None), Bus(), syncer.keep)
    syncer.settler = Settler(_Away(store.redis, "w", lease_ms=60_000), InFlight(1, lambda: None), Bus(), syncer.keep)
    running = asyncio.create_task(syncer.run())
    syncer.keep("default", [(Done("a", owner, ""), None)])
    await until(lambda: syncer.outages.count, what="a try that fails")
    syncer.settler = settler
    syncer.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert syncer.idle
    assert await look.state("a") == "gone"


class _Away(Work):
    """Its server cannot be reached."""

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[int]:
        raise ConnectionLost("away")


def _attempt(batch: Batch, *, timeout: float, grace: float, lease: float = 12.0) -> Attempt:
    """A running attempt of a batch's only task, which may take so many seconds."""
    ((task_id, data),) = batch.rows
    now, message = time.monotonic(), decode_task(data)
    message.timeout = timeout or 1e-9  # type: ignore[assignment]  # 0 would be the default
    attempt = Attempt("default", task_id, batch.owner, data, message, Lease(now + lease), started_at=time.time())
    attempt.begin(time.time(), now, grace)
    return attempt


class _Heart:
    """A heartbeater that beats when the test says so."""

    def __init__(self, config: WorkerConfig, *attempts: Attempt) -> None:
        self.overrun: list[str] = []
        self.in_flight = InFlight(10, lambda: None)
        for attempt in attempts:
            self.in_flight.take(attempt)
        self.beater = Heartbeater(
            lambda: connect("unix:///nowhere/x.sock"),
            config,
            self.in_flight,
            ServerClock(),
            HeartbeatHooks(
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
                lambda attempt: self.overrun.append(attempt.task_id),
                lambda what: None,
                lambda what: None,
            ),
            OutageLog(),
            Restarts(),
        )


async def test_a_task_that_may_be_retried_while_it_runs_is_leased_only_until_its_deadline_and_grace(
    store: Store, look: Look, redis_client: Any
) -> None:
    attempt = _attempt(await _active(store, "a", lease_ms=1000), timeout=30, grace=10)
    heart = _Heart(WorkerConfig(lease=600.0, retry_while_running=True), attempt)
    ends_by = time.time() + 40
    await heart.beater.beat(store)
    assert time.time() + 20 < (await look.scores("lease"))["a"] <= math.ceil(ends_by)
    assert attempt.lease.is_valid(time.monotonic() + 20)
    assert not attempt.lease.is_valid(time.monotonic() + 40)
    attempt.running = False  # what is earned is kept until it is written
    await heart.beater.beat(store)
    assert time.time() + 500 < (await look.scores("lease"))["a"]
    assert attempt.lease.is_valid(time.monotonic() + 500)


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("retried", [False, True])
async def test_a_handler_that_overran_its_time_is_told_once_and_keeps_its_lease_unless_it_may_be_retried(
    store: Store, look: Look, where: str, retried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = _attempt(await _active(store, "a", lease_ms=60_000), timeout=0, grace=0)
    attempt.where = where
    heart = _Heart(WorkerConfig(lease=600.0, retry_while_running=retried), attempt)
    before = await look.scores("lease")
    for _ in range(2):
        await heart.beater.beat(store)
        heart.beater.check_handlers(time.monotonic())
    assert (await look.scores("lease") == before) is retried
    await until(lambda: heart.overrun == ["a"])
    assert heart.beater.hangs == ""
    assert caplog.text.count("task a (t) runs on after its deadline") == 1


async def test_a_loop_that_has_not_answered_yet_is_asked_again_before_anything_is_concluded(store: Store) -> None:
    """It may be blocked, or only busy; the time is measured from the question, not from an earlier heartbeat."""
    attempt = _attempt(await _active(store, "a"), timeout=0, grace=0)
    heart = _Heart(WorkerConfig(lease=600.0, deadline_grace=3.0), attempt)
    now = time.monotonic()
    heart.beater._watch.ask(now)
    assert heart.beater.check_handlers(now + 1.0) == pytest.approx(2.0)
    assert (heart.overrun, heart.beater.hangs) == ([], "")
    heart.beater.check_handlers(now + 3.0)
    heart.beater.check_handlers(now + 4.0)
    assert heart.overrun == []
    assert heart.beater.hangs.startswith("the event loop has been blocked for 3.0 s by no task, at /")
    await until(lambda: heart.beater._watch.silence(time.monotonic()) == 0)
    heart.beater.check_handlers(now + 5.0)
    await until(lambda: heart.overrun == ["a"])
    assert heart.beater.hangs == ""


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
        (attempt,) = worker._in_flight.held()
        with server.client() as client:  # a Go worker takes it over
            client.zadd(keys.lease("default"), {attempt.task_id: int(time.time()) + 3600})
        until_sync(lambda: attempt.lease.lost, what="a heartbeat that notices it")
        return "a result nobody may see"

    async with worker:
        settle = worker._execution.settler.settle

        def noted(queue: str, settlement: Settlement, attempt: Attempt | None) -> None:
            settled.append(settlement)
            settle(queue, settlement, attempt)

        worker._execution.settler.settle = noted  # type: ignore[method-assign]
        handle = await work.enqueue()
        await until(lambda: [event for event in events if isinstance(event, TaskEnded)])
        assert not worker._in_flight.held()
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
        ask = worker._execution.work.dequeue_each
        late = 1

        async def ask_late(asks: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
            nonlocal late
            answers = await ask(asks)
            if late and isinstance(answers[0], Batch) and answers[0].rows:
                late = 0
                await pause(1.0, proves="a lease that ended on the way is not used")
            return answers

        worker._execution.work.dequeue_each = ask_late  # type: ignore[method-assign]
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
        ask = worker._execution.work.dequeue_each

        async def ask_and_make_room(asks: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
            answers = await ask(asks)
            if isinstance(answers[0], Batch) and answers[0].wait is not None:
                assert answers[0].wait > 30
                release.set()
                await until(lambda: worker._roles.processor._room_signals["default"], what="word that there is room")
            return answers

        worker._execution.work.dequeue_each = ask_and_make_room  # type: ignore[method-assign]
        await work.enqueue(1)
        await until(lambda: ran)
        second = await work.enqueue(2)
        await look.ends(second.id, "gone")
    assert ran == [1, 2]


async def test_many_empty_queues_in_strict_order_are_watched_for_later_tasks(app: App, look: Look) -> None:
    """Of many queues most are only asked how long they are; an empty one must be watched all the same."""
    ran: list[str] = []

    @app.task(queue="q0")
    async def work(queue: str) -> None:
        ran.append(queue)

    names = [f"q{n}" for n in range(6)]
    worker = app.worker({name: n + 1 for n, name in enumerate(names)}, strict=True, forward_interval=600)
    async with worker:
        await until(lambda: worker._roles.processor.all_empty, what="a look at all of them")
        for name in names:
            handle = await work.using(queue=name).enqueue(name)
            await look.of(name).ends(handle.id, "gone")
    assert ran == names


async def test_a_damaged_queue_among_many_in_strict_order_is_told_and_the_others_run(
    app: App, redis_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @app.task(queue="q0")
    async def work(queue: str) -> None:
        ran.append(queue)

    names = [f"q{n}" for n in range(6)]
    await redis_client.set(keys.pending("q3"), "no list")
    async with app.worker({name: n + 1 for n, name in enumerate(names)}, strict=True):
        await until(lambda: "cannot take tasks from queue q3" in caplog.text)
        for name in set(names) - {"q3"}:
            await work.using(queue=name).enqueue(name)
        await until(lambda: len(ran) == 5)


async def test_a_queue_at_its_rate_is_asked_again_when_there_is_room(app: App, look: Look) -> None:
    """Nobody says so: it is the time alone that makes room."""
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    app.limit("default", Limit(rate="1/200ms"))
    for n in range(4):
        await work.enqueue(n)
    async with app.worker(lease=600):
        await until(lambda: ran == [0, 1, 2, 3])


async def test_a_worker_without_a_server_asks_again_but_not_all_the_time(
    new_server: Callable[..., RealServer],
) -> None:
    server = new_server()
    app = App(server.url)
    app.task(name="x")(lambda: None)
    worker = app.worker(**FAST)
    async with worker:
        asked = 0
        ask = worker._execution.work.dequeue_each

        async def count(asks: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
            nonlocal asked
            asked += 1
            return await ask(asks)

        worker._execution.work.dequeue_each = count  # type: ignore[method-assign]
        server.kill()
        await until(lambda: asked > 1)
        before = asked
        await pause(0.5, proves="it does not ask as fast as it can")
        assert asked - before < 50
        server.start()
    await app.close()


async def test_a_heartbeat_that_failed_is_made_up_for_soon_and_ends_the_outage(
    new_server: Callable[..., RealServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "FORGET", 3600.0)
    monkeypatch.setattr(outage_log, "QUIET", 0.1)
    server = new_server()
    app = App(server.url)
    app.task(name="x")(lambda: None)
    worker = app.worker(**FAST)
    async with worker:
        outages = worker._heartbeater._outages
        server.kill()
        await until(lambda: "heartbeat" in outages._failed, what="a heartbeat that fails")
        server.start()
        back = time.monotonic()
        await until(lambda: worker._heartbeater.beaten_at > back)
        await until(lambda: not outages._failed, what="the end of the outage")
    await app.close()


async def test_a_heartbeat_that_did_not_reach_a_queue_counts_as_failed_and_the_others_are_renewed(
    store: Store, look: Look, redis_client: Any
) -> None:
    attempt = _attempt(await _active(store, "a", lease_ms=1000), timeout=1800, grace=3)
    elsewhere = _attempt(await _active(store, "b", lease_ms=1000), timeout=1800, grace=3)
    elsewhere.queue = "damaged"
    await redis_client.set(keys.lease("damaged"), "no set")
    with pytest.raises(CommandRefused):
        await _Heart(WorkerConfig(lease=600.0), elsewhere, attempt).beater.beat(store)
    assert (await look.scores("lease"))["a"] > time.time() + 500
    assert attempt.lease.is_valid(time.monotonic() + 500)
    await redis_client.delete(keys.lease("damaged"))


async def test_only_what_runs_is_shown_as_running(store: Store, look: Look, redis_client: Any) -> None:
    attempt = _attempt(await _active(store, "a"), timeout=1800, grace=3)
    ended = _attempt(await _active(store, "b"), timeout=1800, grace=3)
    ended.running = False
    await _Heart(WorkerConfig(lease=60.0), attempt, ended).beater.beat(store)
    assert await redis_client.hkeys(keys.workers("host", 1, "w")) == [b"a"]


async def test_a_heartbeat_corrects_the_workers_clock(store: Store, look: Look) -> None:
    heart = _Heart(WorkerConfig(lease=60.0))
    heart.beater._clock.ahead += 1000.0
    await heart.beater.beat(store)
    assert abs(heart.beater._clock.time() - time.time()) < 60


async def test_a_handler_that_hangs_takes_the_leases_of_its_loop_with_it_and_no_others(
    store: Store, look: Look
) -> None:
    hung = _attempt(await _active(store, "hung"), timeout=0, grace=0)
    neighbour = _attempt(await _active(store, "neighbour"), timeout=1800, grace=0)
    thread = _attempt(await _active(store, "thread"), timeout=1800, grace=0)
    thread.where = "thread"
    before = await look.scores("lease")
    heart = _Heart(WorkerConfig(lease=600.0, deadline_grace=0.0), hung, neighbour)
    heart.in_flight.take(thread)
    heart.beater._watch._asked_at = time.monotonic() - 1000  # the loop has not answered since
    await heart.beater.beat(store)
    after = await look.scores("lease")
    assert {name for name in after if after[name] > before[name]} == {"thread"}


async def test_a_handler_that_blocks_the_loop_within_its_time_takes_no_lease_away(
    store: Store, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one has overrun meanwhile, but only because the loop could not end it."""
    blocks = _attempt(await _active(store, "blocks"), timeout=1800, grace=0)
    blocks.task = asyncio.current_task()
    overrun = _attempt(await _active(store, "overrun"), timeout=0, grace=0)
    before = await look.scores("lease")
    heart = _Heart(WorkerConfig(lease=600.0, deadline_grace=0.0), overrun, blocks)
    asked = heart.beater._watch._asked_at = time.monotonic() - 1000  # the loop has not answered since
    await heart.beater.beat(store)
    after = await look.scores("lease")
    assert {name for name in after if after[name] > before[name]} == {"blocks", "overrun"}
    for _ in range(2):
        heart.beater.check_handlers(asked + 1000)
    assert heart.beater.hangs == ""
    assert caplog.text.count("the event loop has been blocked for 1000.0 s by task blocks (t), at /") == 1
    blocks.task = None


async def test_a_lease_is_recovered_when_it_ends_not_at_the_next_round(store: Store, look: Look) -> None:
    config = WorkerConfig(lease=600.0, sweep=100.0)
    await _active(store, "a", lease_ms=1000)
    recoverer = _recoverer(store, config)
    await recoverer.step()  # notes the time
    _be_calm(recoverer)
    running = asyncio.create_task(recoverer.run())
    await look.ends("a", "retry")
    recoverer.stop()
    await running


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_request_whose_client_could_not_be_told_is_not_settled(
    store: Store, look: Look, redis_client: Any, cancelled: bool
) -> None:
    """A claim that is not settled comes back; a client that was not told would wait for ever."""
    message = go_message("t", task_id="a")
    message.retry = 0
    message.headers = Origin("p000-x", 1, "ada", 0).headers()
    await store.intake.add_many("default", [NewTask("a", encode_task(message))])
    await Work(store.redis, "dead", lease_ms=60_000).dequeue("default", 1)
    if cancelled:
        await redis_client.hset(look.task("a"), "cancel", "archive")
    recoverer = _recoverer(store, WorkerConfig(lease=12.0))
    told: list[bool] = []

    async def lost(headers: Mapping[str, str], *, cancelled: bool) -> None:
        told.append(cancelled)
        raise ConnectionLost("away")

    recoverer._requests.lost = lost  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost):
        await recoverer.give_back("dead:")
    assert told == [cancelled]
    assert await look.state("a") == "active"


async def test_an_attempt_whose_loop_is_torn_down_is_given_back(app: App, look: Look) -> None:
    runs: list[int] = []
    events: list[Any] = []

    @app.task
    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            await forever()

    worker = app.worker(**FAST)
    worker.bus.subscribe(events.append)
    async with worker:
        handle = await work.enqueue()
        await until(lambda: runs)
        (attempt,) = worker._in_flight.held()
        assert attempt.task is not None
        attempt.task.cancel()  # as asyncio.run does with all tasks at its end
        await look.ends(handle.id, "gone")
    assert [event.action for event in events if isinstance(event, TaskEnded)] == ["requeue", "done"]
    assert await look.counters() == (1, 0)


async def test_of_several_reasons_to_end_an_attempt_the_first_counts_but_a_stop_comes_before_all(store: Store) -> None:
    attempt = _attempt(await _active(store, "a"), timeout=1800, grace=3)
    attempt.force(End.TIMED_OUT)
    attempt.cancel("archive")
    attempt.force(End.LEASE_LOST)
    assert (attempt.forced, attempt.then) == (End.TIMED_OUT, "")
    attempt.force(End.ABORTED)
    assert attempt.forced is End.ABORTED


async def test_how_a_cancelled_attempt_shall_end_is_not_forgotten_by_a_second_cancel(store: Store) -> None:
    attempt = _attempt(await _active(store, "a"), timeout=1800, grace=3)
    attempt.cancel("archive")
    attempt.cancel()
    assert (attempt.forced, attempt.then) == (End.CANCELLED, "archive")
    attempt.cancel("delete")
    assert attempt.then == "delete", "whoever says more counts"


async def test_a_settlement_whose_first_try_got_through_is_not_told_as_lost(
    store: Store, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    owner = (await _active(store, "a")).owner
    events: list[Any] = []
    bus = Bus()
    bus.subscribe(events.append)
    syncer = Syncer(1.0, OutageLog())
    work = Work(store.redis, "w", lease_ms=60_000)
    syncer.settler = Settler(work, InFlight(1, lambda: None), bus, syncer.keep)
    assert await work.settle("default", [Done("a", owner, "")]) == []  # its reply was lost
    syncer.keep("default", [(Done("a", owner, ""), None)])
    await syncer.step()
    assert syncer.idle
    assert events == []
    assert "has another owner" not in caplog.text


@asynccontextmanager
async def _running(role: Role) -> AsyncIterator[None]:
    running = asyncio.create_task(role.run())
    try:
        yield
    finally:
        role.stop()
        await asyncio.wait_for(running, PATIENCE)


async def test_a_forwarder_looks_at_least_once_in_its_interval_whatever_it_waits_for(
    store: Store, look: Look, redis_client: Any
) -> None:
    """A Go client tells nobody what it scheduled."""
    forwarder = Forwarder(store.delays, ["default"], 0.1, OutageLog(), Bus(), lambda queue: None)
    await store.intake.add("default", NewTask("far", encode_task(go_message("t")), due="+3600000"))
    async with _running(forwarder):
        await until(lambda: forwarder._next_at["default"] > 0, what="a first call")
        fields = {"msg": encode_task(go_message("t")), "state": "scheduled"}
        await redis_client.hset(look.task("go"), mapping=fields)
        await redis_client.zadd(keys.scheduled("default"), {"go": int(time.time()) - 1})
        await look.ends("go", "pending")


async def test_a_forwarder_looks_again_soon_after_a_look_that_failed(
    store: Store, look: Look, redis_client: Any
) -> None:
    outages = OutageLog()
    forwarder = Forwarder(store.delays, ["default"], 3600.0, outages, Bus(), lambda queue: None)
    await redis_client.set(keys.due("default"), "no set")
    async with _running(forwarder):
        await until(lambda: ("forward", "default") in outages._last, what="a look that fails")
        await redis_client.delete(keys.due("default"))
        await redis_client.sadd(keys.QUEUES, "default")
        await redis_client.hset(look.task("go"), mapping={"msg": encode_task(go_message("t")), "state": "scheduled"})
        await redis_client.zadd(keys.scheduled("default"), {"go": int(time.time()) - 1})
        await look.ends("go", "pending")


async def test_what_is_said_on_a_channel_goes_to_whom_it_concerns(store: Store) -> None:
    heard: list[Any] = []
    listening = Subscriber(
        store.redis,
        ["a", "b"],
        OutageLog(),
        on_cancel=lambda task_id: heard.append(("cancel", task_id)),
        on_delay=lambda queue: heard.append(("delay", queue)),
        on_room=lambda queue: heard.append(("room", queue)),
        on_follow=lambda queue: heard.append(("told", queue)),
    )
    for channel, data in (
        (keys.delay_wakeup("a"), b"1700000000000"),
        (keys.delay_wakeup("b"), b"room"),
        (keys.delay_wakeup("a"), b"told"),
        (keys.CANCEL_CHANNEL, b"room"),
        (keys.CANCEL_CHANNEL, b"\xff"),
    ):
        listening._receive(channel, data)
    assert heard == [("delay", "a"), ("room", "b"), ("told", "a"), ("cancel", "room"), ("cancel", "\ufffd")]


def _subscriber(store: Store, outages: OutageLog, delays: list[str | None]) -> Subscriber:
    return Subscriber(
        store.redis, ["default"], outages, on_cancel=print, on_delay=delays.append, on_room=print, on_follow=print
    )


async def test_whoever_listens_again_looks_at_everything_he_may_have_missed(store: Store, redis_client: Any) -> None:
    delays: list[str | None] = []
    async with _running(_subscriber(store, OutageLog(), delays)):
        await until(lambda: delays == [None])
        await redis_client.publish(keys.delay_wakeup("default"), "1")
        await until(lambda: delays == [None, "default"])
        await redis_client.client_kill_filter(_type="pubsub")
        await until(lambda: delays == [None, "default", None])


async def test_a_subscriber_that_is_called_off_ends_its_connection(store: Store, redis_client: Any) -> None:
    delays: list[str | None] = []
    listening = asyncio.create_task(_subscriber(store, OutageLog(), delays).run())
    await until(lambda: delays == [None])
    assert len(await redis_client.client_list(_type="pubsub")) == 1
    listening.cancel()

    async def nobody_listens() -> bool:
        return not await redis_client.client_list(_type="pubsub")

    await until(nobody_listens, what="the end of the subscription")


async def test_a_silent_connection_is_asked_whether_it_still_lives(
    new_server: Callable[..., RealServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "CHECK", 0.05)
    server = new_server()
    store = Store(connect(server.url, timeout=0.3))
    outages, delays = OutageLog(), list[str | None]()
    async with _running(_subscriber(store, outages, delays)):
        await until(lambda: delays)
        server.freeze()
        try:
            await until(lambda: outages.count, what="notice of a server that hangs")
        finally:
            server.thaw()
        await until(lambda: len(delays) == 2)
    await store.close()


async def test_a_cancel_whose_manner_cannot_be_asked_for_ends_the_attempt_all_the_same(store: Store) -> None:
    attempt = _attempt(await _active(store, "a"), timeout=1800, grace=3)
    in_flight = InFlight(1, lambda: None)
    in_flight.take(attempt)
    cancels = Cancels(connect("unix:///nowhere/x.sock"))
    Canceller(cancels, in_flight).cancel("a")
    await until(lambda: attempt.forced is End.CANCELLED)
    assert attempt.then == "", "whoever takes the task next ends it as asked"


async def test_leases_that_are_short_are_looked_at_more_often(store: Store) -> None:
    assert _recoverer(store, WorkerConfig(lease=12.0)).interval == 2.0
    assert _recoverer(store, WorkerConfig(lease=3.0)).interval == 0.5
