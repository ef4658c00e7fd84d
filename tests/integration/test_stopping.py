"""A graceful stop: running handlers finish, the rest goes back to the front, nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.loops import nothing_left
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, WorkerStopped
from veredus.errors import StoreError
from veredus.store.tasks.work import Batch, DequeueRequest
from veredus.wire import keys
from veredus.worker.config import WorkerConfig
from veredus.worker.roles.processor import LONG_CALL
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.worker import EXIT_RECYCLE, Worker


async def test_running_handlers_finish(app: App, look: Look) -> None:
    release, finished = threading.Event(), []

    @app.task
    async def on_loop() -> None:
        await until(release.is_set)
        finished.append("loop")

    @app.task
    def in_thread() -> None:
        release.wait(PATIENCE)
        finished.append("thread")

    worker = app.worker(**FAST)
    await worker.start()
    await on_loop.enqueue()
    await in_thread.enqueue()
    await until(lambda: worker._in_flight.busy == 2)
    stopping = asyncio.create_task(worker.stop())
    await until(lambda: worker._status == "stopped")
    assert finished == []
    release.set()
    await stopping
    assert sorted(finished) == ["loop", "thread"]
    assert await look.counters() == (2, 0)
    assert await look.active() == []


@VALKEY_ONLY
@pytest.mark.parametrize("kind", ["worker", "scheduler", "gateway"])
async def test_what_has_stopped_has_no_connection_and_no_timer_left(app: App, server: RealServer, kind: str) -> None:
    """Whoever holds it need not wait until it is collected."""

    @app.task
    async def task() -> None: ...

    app.schedule("@every 1h", task.call())
    await task.enqueue()  # so that the app has its own connection

    def others() -> set[str]:
        return {row.split(" ")[0] for row in server.connections()}

    before = others()
    made: Any
    if kind == "worker":
        made = app.worker(**FAST)
    elif kind == "scheduler":
        made = app.scheduler()
    else:
        made = app.gateway(ws="127.0.0.1:0", quic="off", http="off")
    async with made:
        await until(lambda: others() - before)
    await until(lambda: not others() - before, what=f"the connections of a {kind} closed")
    await nothing_left()
    assert made, "it is still held"


@VALKEY_ONLY
@pytest.mark.parametrize("by_node", [False, True], ids=["one server", "node by node"])
async def test_what_is_handed_out_while_it_stops_is_run_or_given_back(app: App, look: Look, by_node: bool) -> None:
    """A node of a cluster may answer long after the others: the worker ends only when it knows what it was given."""
    replied, go_on = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @app.task
    async def task() -> None:
        ran.append(1)

    worker = app.worker(**FAST)
    async with worker:
        if by_node:
            worker._roles.processor._by_node = lambda queues: [[queue] for queue in queues]
        dequeue_each = worker._execution.work.dequeue_each

        async def late(requests: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
            replies = await dequeue_each(requests)
            if any(isinstance(reply, Batch) and reply.rows for reply in replies):
                replied.set()
                await go_on.wait()
            return replies

        worker._roles.processor._work.dequeue_each = late  # type: ignore[assignment,method-assign]
        handle = await task.enqueue()
        await asyncio.wait_for(replied.wait(), PATIENCE)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker._roles.processor.stopping.is_set())
        await pause(LONG_CALL + 0.1, proves="the worker waits for the answer")
        assert not stopping.done()
        go_on.set()
        await stopping
    assert await look.scores("lease") == {}
    assert (await look.state(handle.id), ran) in (("pending", []), ("gone", [1]))


@pytest.mark.parametrize("count", [5, 450], ids=["few", "more than one batch"])
async def test_what_does_not_finish_goes_back_to_the_front_in_order(app: App, look: Look, count: int) -> None:
    @app.task
    async def hang(n: int) -> None:
        await asyncio.Event().wait()

    handles = await app.enqueue_many(hang.call(n) for n in range(count))
    settings = {**FAST, "shutdown_timeout": 0.1, "lease": 10}
    async with app.worker(**settings, concurrency=count):
        await until(lambda: _all_active(look, count))
        later = [await hang.enqueue(1000 + n) for n in range(3)]
    assert await look.pending() == [handle.id for handle in [*handles, *later]]
    assert await look.active() == []
    assert await look.scores("lease") == {}
    assert await look.counters() == (0, 0)
    message = await look.message(handles[0].id)
    assert (message.retried, message.error_msg) == (0, "")


async def _all_active(look: Look, count: int) -> bool:
    return bool(await look.client.llen(keys.active("default")) == count)


async def test_a_thread_that_cannot_be_stopped_is_given_back_and_its_late_end_is_void(app: App, look: Look) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def stubborn() -> str:
        began.set()
        release.wait(PATIENCE)
        ended.set()
        return "late"

    async with app.worker(**{**FAST, "shutdown_timeout": 0.1}):
        handle = await stubborn.enqueue()
        await until(began.is_set)  # one that has not begun does not run at all
    assert await look.pending() == [handle.id]
    release.set()
    await until(ended.is_set)
    await pause(0.05, proves="the late end writes nothing")
    assert await look.state(handle.id) == "pending"


async def test_an_async_handler_that_ignores_being_cancelled_is_given_back_and_its_late_end_is_void(
    app: App, look: Look
) -> None:
    release, cancels = asyncio.Event(), []

    @app.task
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                cancels.append(1)
        return "late"

    worker = app.worker(**{**FAST, "shutdown_timeout": 0.1})
    await worker.start()
    handle = await stubborn.enqueue()
    await until(lambda: worker._in_flight.busy == 1)
    (attempt,) = worker._in_flight.held()
    await worker.stop()
    pending, active = await look.pending(), await look.active()
    release.set()
    await until(lambda: not attempt.running)
    assert cancels
    assert (pending, active) == ([handle.id], [])
    assert await look.state(handle.id) == "pending"


async def test_a_stop_asked_for_twice_gives_back_at_once(app: App, look: Look) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    worker = app.worker(**{**FAST, "shutdown_timeout": 60})
    await worker.start()
    handle = await hang.enqueue()
    await until(look.active)
    worker.request_stop()
    stopping = asyncio.create_task(worker.stop())
    worker.request_stop()
    await asyncio.wait_for(stopping, PATIENCE)  # half of what its tasks would have had
    assert await look.pending() == [handle.id]


async def test_the_records_of_a_stopped_worker_are_gone(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    async with app.worker(**FAST):
        await until(lambda: look.client.exists(keys.SERVERS))
        assert await look.client.keys("asynq:servers:*")
    assert await look.client.keys("asynq:servers*") == []
    assert await look.client.keys("asynq:workers*") == []


async def test_a_worker_starts_once_and_another_can_follow(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    worker = app.worker(**FAST)
    async with worker:
        with pytest.raises(WorkerStopped, match="already been started"):
            await worker.start()
    with pytest.raises(WorkerStopped):
        await worker.start()
    await worker.stop()  # nothing left to do
    async with app.worker(**FAST):
        handle = await app.enqueue("x")
        await look.ends(handle.id, "gone")


async def test_a_worker_that_is_quiet_takes_nothing_new_but_finishes_its_work(app: App, look: Look) -> None:
    release = asyncio.Event()

    @app.task
    async def wait() -> None:
        await release.wait()

    worker = app.worker(**FAST)
    async with worker:
        running = await wait.enqueue()
        await until(look.active)
        worker.quiet()
        waiting = await wait.enqueue()
        release.set()
        await look.ends(running.id, "gone")
        await pause(0.3, proves="the free hand takes nothing new")
        assert await look.pending() == [waiting.id]


async def test_a_burst_ends_when_everything_is_done_also_what_was_due(app: App, look: Look) -> None:
    done: list[int] = []

    @app.task(queue="a", retry_delay=0)
    async def first(n: int) -> None:
        done.append(n)
        if n < 3:
            await second.enqueue(n)

    @app.task(queue="b")
    def second(n: int) -> None:
        done.append(100 + n)

    for n in range(5):
        await first.enqueue(n)
    delayed = await first.using(delay=0.01).enqueue(7)

    async def is_due() -> bool:
        return await look.now_ms() > (await look.of("a").scores("due"))[delayed.id]

    await until(is_due)
    worker = app.worker(**FAST, burst=True)
    async with worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert sorted(done) == [0, 1, 2, 3, 4, 7, 100, 101, 102]


async def test_a_burst_does_not_end_while_something_runs(app: App, look: Look) -> None:
    done: list[str] = []

    @app.task
    async def first() -> None:
        await until(lambda: worker._roles.processor.all_empty)
        await pause(0.3, proves="the worker does not stop, though its queues are empty")
        await second.enqueue()

    @app.task
    async def second() -> None:
        done.append("second")

    worker = app.worker(**FAST, burst=True)
    await first.enqueue()
    async with worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert done == ["second"]
    assert await look.pending() == []


async def test_a_process_ends_after_so_many_tasks_and_takes_no_more_than_those(app: App, look: Look) -> None:
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    handles = [await work.enqueue(n) for n in range(5)]
    worker = app.worker(**FAST, max_tasks=3, concurrency=100)
    async with worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert ran == [0, 1, 2]
    assert await look.pending() == [handle.id for handle in handles[3:]]
    assert worker.exit_code == EXIT_RECYCLE


async def test_a_process_that_has_grown_too_large_ends(app: App, look: Look) -> None:
    app.task(name="x")(lambda: None)
    worker = app.worker(**FAST, max_memory=1)
    async with worker:
        await asyncio.wait_for(worker.wait(), PATIENCE)
    assert worker.exit_code == EXIT_RECYCLE


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_stop_while_redis_is_away_does_not_hang(new_server: Callable[..., RealServer], how: str) -> None:
    server = new_server()
    app = App(server.url, timeout=1)
    hold = asyncio.Event()

    @app.task
    async def wait() -> None:
        await hold.wait()

    worker = app.worker(**{**FAST, "shutdown_timeout": 0.5})
    await worker.start()
    await wait.enqueue()
    await until(lambda: worker._in_flight.busy == 1)
    server.kill() if how == "killed" else server.freeze()
    try:
        await asyncio.wait_for(worker.stop(), 60)
        await app.close()
    finally:
        if how == "frozen":
            server.thaw()


async def test_an_error_in_the_lifespan_stops_the_start(app: App, look: Look) -> None:
    @asynccontextmanager
    async def broken(app: App) -> AsyncIterator[dict[str, str]]:
        yield database()

    def database() -> dict[str, str]:
        raise RuntimeError("no database")

    app.lifespan = broken
    app.task(name="x")(lambda: None)
    handle = await app.enqueue("x")
    with pytest.raises(RuntimeError, match="no database"):
        await app.worker(**FAST).start()
    assert await look.pending() == [handle.id]

    async def left() -> bool:
        return not [row for row in await look.client.client_list() if row["name"].startswith("veredus-worker")]

    await until(left, what="the end of its connection")


async def test_a_process_that_ends_because_of_a_stuck_thread_gives_back_what_waits_for_that_thread(
    app: App, look: Look
) -> None:
    release, ran = threading.Event(), []

    @app.task(timeout=1, retry_delay=1000)
    def stuck() -> None:
        release.wait(PATIENCE)

    @app.task
    def waiting() -> None:
        ran.append(1)

    shared = SharedBeat(10)
    worker = Worker(app, WorkerConfig.make(**FAST, threads=1, deadline_grace=0.2), shared=shared)
    try:
        async with worker:
            first = await stuck.enqueue()
            await until(lambda: look.scores("lease"))
            worker._roles.processor.stop()
            second = await waiting.enqueue()
            until_then = time.monotonic() + FAST["lease"]
            worker._execution.attempt_runner.start(
                "default", await worker._execution.work.dequeue("default", 1), until_then
            )
            await worker.wait()
            assert shared.read().is_draining
        assert await look.pending() == [second.id]
        message = await look.ends(first.id, "retry")
        assert message is not None
        assert message.error_msg == "context deadline exceeded"
    finally:
        release.set()
    assert worker.exit_code == EXIT_RECYCLE
    assert ran == []
