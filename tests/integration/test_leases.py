"""Leases: kept while work goes on, given up when lost, and recovered from workers that have gone."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import redis

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, forever, until, until_sync
from veredus import App
from veredus.events import LeaseWasLost, TaskOverran, TaskRecovered
from veredus.model.verdict import Verdict
from veredus.store.store import Store, connect
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.worker.judge import Judge


async def _take_and_vanish(
    url: str, queue: str = "default", *, lease_ms: int = 100, worker: str = "ghost"
) -> list[str]:
    """What a worker leaves behind that took everything and was killed."""
    store = Store(connect(url))
    batch = await Work(store.redis, worker, lease_ms=lease_ms).dequeue(queue, 100)
    await store.close()
    return [task_id for task_id, _ in batch.rows]


async def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_its_record(
    app: App, look: Look, server: RealServer
) -> None:
    runs: list[int] = []
    scores: list[float] = []
    records: list[int] = []
    seen = threading.Event()

    @app.task(timeout=60)
    async def block() -> None:
        runs.append(1)
        assert seen.wait(PATIENCE)

    def watch() -> None:
        """Until the lease has been prolonged for longer than it lasts, twice; the loop is blocked for as long."""
        with redis.Redis(unix_socket_path=server.socket) as client:

            def prolonged() -> bool:
                lease = client.zrange(keys.lease("default"), 0, -1, withscores=True)
                if lease:
                    scores.append(lease[0][1])
                    records.append(client.zcard(keys.SERVERS))
                return bool(scores) and scores[-1] - scores[0] > 2 * FAST["lease"]

            until_sync(lambda: runs)
            until_sync(prolonged)
            seen.set()

    other = App(app.url)
    other.task(name="unrelated")(block.function)
    async with app.worker(**FAST):
        await until(lambda: look.client.exists(keys.SERVERS))
        handle = await block.enqueue()
        thread = threading.Thread(target=watch)
        thread.start()
        await look.ends(handle.id, "gone")
        await asyncio.to_thread(thread.join)
    assert runs == [1]
    assert scores[-1] - scores[0] > 2 * FAST["lease"]
    assert set(records) == {1}
    assert await look.counters() == (1, 0)


@VALKEY_ONLY
async def test_two_workers_and_a_blocked_loop_do_not_run_a_task_twice(app: App, url: str, look: Look) -> None:
    runs: list[str] = []
    release = threading.Event()

    @app.task(name="block")
    def block() -> None:
        runs.append("thread")
        release.wait(PATIENCE)

    twin = App(url)
    twin.task(name="block")(block.function)
    async with app.worker(**FAST), twin.worker(**FAST):
        handle = await block.enqueue()
        [first] = (await until(lambda: look.scores("lease"))).values()

        async def prolonged() -> bool:
            return bool((await look.scores("lease"))[handle.id] - first > 2 * FAST["lease"])

        await until(prolonged)
        release.set()
        await look.ends(handle.id, "gone")
    assert runs == ["thread"]


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_lost_lease_cancels_the_handler_and_nothing_is_written(app: App, look: Look, where: str) -> None:
    began, ended = threading.Event(), threading.Event()
    cancelled: list[bool] = []

    @app.task(name="loop")
    async def on_loop() -> None:
        began.set()
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            ended.set()
            raise

    @app.task(name="thread")
    def in_thread() -> str:
        from veredus import current

        began.set()
        cancelled.append(current().wait_cancelled(PATIENCE))
        ended.set()
        return "a result nobody may see"

    events: list[Any] = []
    worker = app.worker(**FAST)
    worker.bus.subscribe(events.append)
    async with worker:
        handle = await (on_loop if where == "loop" else in_thread).enqueue()
        await until(began.is_set)
        there = await look.client.hgetall(look.task(handle.id))
        other_score = int(time.time()) + 3600
        await look.client.zadd(keys.lease("default"), {handle.id: other_score})  # as a Go worker would
        await until(ended.is_set)
        await until(lambda: not worker._in_flight.held())
        assert cancelled == [True]
        assert await look.active() == [handle.id]
        assert await look.scores("lease") == {handle.id: other_score}
        after = await look.client.hgetall(look.task(handle.id))
        owners = [fields.pop(b"held").rpartition(b":")[0] for fields in (there, after)]
        assert (after, owners[1]) == (there, owners[0])
        assert await look.counters() == (0, 0)
    assert [event for event in events if isinstance(event, LeaseWasLost)] == [LeaseWasLost("default", handle.id)]


async def test_a_late_result_of_a_lost_task_is_void_and_told(
    app: App, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    @app.task
    async def slow() -> str:
        await release.wait()
        return "late"

    events: list[Any] = []
    worker = app.worker(lease=60)  # no heartbeat notices it before the settlement does
    worker.bus.subscribe(events.append)
    async with worker:
        handle = await slow.enqueue()
        await until(look.active)
        await look.client.zadd(keys.lease("default"), {handle.id: int(time.time()) + 3600})
        release.set()
        await until(lambda: [event for event in events if isinstance(event, LeaseWasLost)])
    assert await look.state(handle.id) == "active"
    assert "result" not in await look.fields(handle.id)
    assert await look.counters() == (0, 0)
    assert "has another owner" in caplog.text


async def test_a_thread_that_lost_its_lease_gives_its_place_back_when_it_ends(app: App, look: Look) -> None:
    began, release = threading.Event(), threading.Event()

    @app.task(name="stuck")
    def stuck() -> None:
        began.set()
        release.wait(PATIENCE)

    @app.task(name="next")
    def following() -> None: ...

    worker = app.worker(**FAST, threads=1)
    async with worker:
        first = await stuck.enqueue()
        await until(began.is_set)
        second = await following.enqueue()
        await look.client.zadd(keys.lease("default"), {first.id: int(time.time()) + 3600})
        await until(lambda: not worker._in_flight.held())
        assert await look.pending() == [second.id]  # the only thread is still busy
        release.set()
        await look.ends(second.id, "gone")
    await look.client.delete(keys.active("default"), keys.lease("default"), look.task(first.id))


async def test_tasks_of_a_worker_that_has_gone_are_recovered_at_once(app: App, url: str, look: Look) -> None:
    done: list[int] = []

    @app.task
    async def work(n: int) -> None:
        done.append(n)

    for n in range(5):
        await work.enqueue(n)
    taken = await _take_and_vanish(url)
    assert len(taken) == 5
    events: list[Any] = []
    worker = app.worker(**FAST)
    worker.bus.subscribe(events.append)
    async with worker:
        for task_id in taken:
            await look.ends(task_id, "gone")
    assert sorted(done) == list(range(5))
    recovered = [event for event in events if isinstance(event, TaskRecovered)]
    assert sorted(event.message.id for event in recovered) == sorted(taken)
    assert {(event.losses, event.action, event.message.error_msg) for event in recovered} == {
        (1, "retry", "asynq: task lease expired")
    }
    assert await look.counters() == (10, 5)  # a lost lease counts as a failed attempt


@VALKEY_ONLY
async def test_a_task_that_a_defect_left_unsettled_is_recovered_when_its_lease_ends(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker no longer renews the lease, and has its slot free again."""
    runs: list[int] = []
    succeeded = Judge.succeeded

    @app.task
    async def task() -> None:
        runs.append(1)

    def fails_once(self: Judge, *args: Any) -> Verdict:
        if len(runs) == 1:
            raise RuntimeError("a defect")
        return succeeded(self, *args)

    monkeypatch.setattr(Judge, "succeeded", fails_once)
    async with app.worker(**FAST, concurrency=1) as worker:
        handle = await task.enqueue()
        await until(lambda: len(runs) == 1 and worker._in_flight.busy == 0)
        await look.ends(handle.id, "gone")
    assert runs == [1, 1]


async def test_tasks_of_a_queue_that_nobody_serves_are_recovered(app: App, url: str, look: Look) -> None:
    app.task(name="elsewhere", queue="other")(lambda: None)
    handle = await app.enqueue("orphan", queue="orphaned")
    assert await _take_and_vanish(url, "orphaned") == [handle.id]
    async with app.worker(["other"], **FAST):
        message = await look.of("orphaned").ends(handle.id, "retry")
    assert message is not None
    assert (message.retried, message.error_msg) == (1, "asynq: task lease expired")
    assert await look.of("orphaned").counters() == (1, 1)


async def test_a_second_lost_lease_waits_for_the_retry_delay(app: App, url: str, look: Look) -> None:
    handle = await app.enqueue("orphan", queue="orphaned")
    orphaned = look.of("orphaned")
    app.task(name="elsewhere", queue="other")(lambda: None)
    async with app.worker(["other"], **FAST, retry_delay=[5, 1000]):
        await _take_and_vanish(url, "orphaned")
        await orphaned.ends(handle.id, "retry")
        assert (await orphaned.scores("retry"))[handle.id] <= time.time() + 1.5  # the first: due now
        # what forward and a second worker that dies would do
        store = Store(connect(url))
        await until(lambda: store.delays.forward(["orphaned"]))
        await store.close()
        await orphaned.ends(handle.id, "pending")
        await _take_and_vanish(url, "orphaned", worker="second")
        await orphaned.ends(handle.id, "retry")
        assert 900 < (await orphaned.scores("retry"))[handle.id] - time.time() < 1100


@VALKEY_ONLY
async def test_a_task_that_kills_its_worker_every_time_ends_archived(app: App, url: str, look: Look) -> None:
    handle = await app.enqueue("poison", queue="orphaned", max_retry=0)
    app.task(name="elsewhere", queue="other")(lambda: None)
    await _take_and_vanish(url, "orphaned")
    async with app.worker(["other"], **FAST):
        message = await look.of("orphaned").ends(handle.id, "archived")
    assert message is not None
    assert message.error_msg == "asynq: task lease expired"


@VALKEY_ONLY
@pytest.mark.parametrize(
    ("most", "before", "state", "text"),
    [
        (3, 1, "retry", "asynq: task lease expired"),
        (3, 2, "archived", "killed its worker 3 times"),
        (1, 0, "archived", "killed its worker once"),
        (0, 99, "retry", "asynq: task lease expired"),
    ],
)
async def test_a_task_that_killed_its_worker_too_often_is_archived_whatever_its_retries(
    app: App, url: str, look: Look, most: int, before: int, state: str, text: str
) -> None:
    handle = await app.enqueue("poison", queue="orphaned", max_retry=100)
    orphaned = look.of("orphaned")
    if before:
        await look.client.hset(orphaned.task(handle.id), "losses", before)
    app.task(name="elsewhere", queue="other")(lambda: None)
    await _take_and_vanish(url, "orphaned")
    async with app.worker(["other"], **FAST, max_crashes=most, retry_delay=1000):
        message = await orphaned.ends(handle.id, state)
    assert message is not None
    assert (message.retry, message.error_msg) == (100, text)


@VALKEY_ONLY
async def test_an_undecodable_message_of_a_dead_worker_is_archived(app: App, url: str, look: Look) -> None:
    handle = await app.enqueue("orphan", queue="orphaned")
    await _take_and_vanish(url, "orphaned")
    await look.client.hset(keys.task("orphaned", handle.id), "msg", b"\xff\xff")
    app.task(name="elsewhere", queue="other")(lambda: None)
    async with app.worker(["other"], **FAST):
        message = await look.of("orphaned").ends(handle.id, "archived")
    assert message is not None
    assert message.payload == b"\xff\xff"


@VALKEY_ONLY
async def test_a_hung_thread_is_given_up_after_its_deadline_if_it_may_be_retried_while_it_runs(
    app: App, url: str, look: Look
) -> None:
    """Its lease is not renewed past the deadline and its grace; another worker takes over, the late end is void."""
    release, returned = threading.Event(), threading.Event()

    @app.task(name="hang", timeout=1, queue="hung", max_retry=5)
    def hang() -> str:
        release.wait(PATIENCE)
        returned.set()
        return "late"

    twin = App(url)
    twin.task(name="elsewhere", queue="other")(lambda: None)
    hung = look.of("hung")
    settings = FAST | {"deadline_grace": 0.5, "retry_delay": 1000, "retry_while_running": True}
    async with app.worker(["hung"], **settings), twin.worker(["other"], **FAST):
        handle = await hang.enqueue()
        # Not its first loss, or it would be due at once and might run again before anybody looks.
        await look.client.hset(hung.task(handle.id), "losses", 1)
        message = await hung.ends(handle.id, "retry")
        assert message is not None
        assert message.error_msg == "asynq: task lease expired"
        release.set()
        await until(returned.is_set)
    assert await hung.state(handle.id) == "retry"
    assert "result" not in await hung.fields(handle.id)


@VALKEY_ONLY
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_handler_that_does_not_end_at_its_deadline_has_no_second_attempt_beside_it(
    app: App, url: str, look: Look, where: str
) -> None:
    """Its lease is renewed as long as it runs; when it ends, the attempt has timed out."""
    runs: list[str] = []
    release = threading.Event()
    overran: list[TaskOverran] = []

    @app.task(name="thread", timeout=1, retry_delay=1000)
    def in_thread() -> str:
        runs.append("thread")
        release.wait(PATIENCE)
        return "late"

    @app.task(name="loop", timeout=1, retry_delay=1000)
    async def on_loop() -> str:
        runs.append("loop")
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return "late"

    def listen(event: Any) -> None:
        if isinstance(event, TaskOverran):
            overran.append(event)

    twin = App(url)
    twin.task(name="elsewhere", queue="other")(lambda: None)
    worker = app.worker(**FAST, deadline_grace=0.2)
    worker.bus.subscribe(listen)
    async with worker, twin.worker(["other"], **FAST):
        handle = await (on_loop if where == "loop" else in_thread).enqueue()
        await until(lambda: overran)
        assert worker.signs.overrun == 1
        [first] = (await look.scores("lease")).values()

        async def prolonged() -> bool:
            return bool((await look.scores("lease"))[handle.id] - first > 2 * FAST["lease"])

        await until(prolonged)
        assert worker._in_flight.busy == 1
        release.set()
        message = await look.ends(handle.id, "retry")
        assert message is not None
        assert (message.retried, message.error_msg) == (1, "context deadline exceeded")
        assert "losses" not in await look.fields(handle.id)
        assert worker.signs.overrun == 0
    assert runs == [where]
    assert [(event.message.id, event.where) for event in overran] == [(handle.id, where)]
