"""Clocks that are wrong or are changed: the server's, and a worker's own."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.shifted import Shift
from tests.support.waiting import pause, until
from veredus import App, clock
from veredus.events import TaskEnded
from veredus.store.store import Store, connect
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.worker.roles.heartbeater import Heartbeater
from veredus.worker.roles.recoverer import Recoverer

LEASE: float = FAST["lease"]


class Hall:
    """Workers on one server whose clock the test may set, and handlers that wait until they are let go."""

    def __init__(self, url: str) -> None:
        self.shift = Shift()
        self.runs: list[str] = []
        self.gate = asyncio.Event()
        self._url = url
        self.app = self._app()

    def _app(self) -> App:
        app = self.shift.app(self._url)

        @app.task(name="wait")
        async def wait(name: str) -> None:
            self.runs.append(name)
            await self.gate.wait()

        return app

    @asynccontextmanager
    async def workers(self, number: int, **settings: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for _ in range(number):
                await stack.enter_async_context(self._app().worker(**{**FAST, **settings}))
            yield

    async def enqueue(self, number: int) -> list[str]:
        names = [f"t{one}" for one in range(number)]
        await self.app.enqueue_many([self.app.call("wait", {"name": name}) for name in names])
        return names

    async def vanish(self, number: int, lease: float) -> None:
        """Take so many tasks, as a worker that is killed then."""
        store = Store(self.shift.over(connect(self._url)))
        assert len((await Work(store.redis, "ghost", lease_ms=round(lease * 1000)).dequeue("default", number)).rows)
        await store.close()


@pytest.fixture
async def hall(url: str, look: Look) -> AsyncIterator[Hall]:
    hall = Hall(url)
    yield hall
    hall.gate.set()
    await hall.app.close()


@VALKEY_ONLY
@pytest.mark.parametrize("seconds", [30.0, 3600.0])
async def test_a_server_clock_that_is_set_forward_takes_nobody_living_for_dead(
    hall: Hall, look: Look, seconds: float
) -> None:
    async with hall.workers(3, concurrency=10):
        names = await hall.enqueue(30)
        await until(lambda: len(hall.runs) == 30)
        await pause(2 * LEASE, proves="the recoverers trust what they see")
        hall.shift.seconds = seconds
        await pause(3 * LEASE, proves="no sweep takes the living for dead")
        hall.gate.set()

        async def done() -> bool:
            return not await look.active()

        await until(done)
    assert sorted(hall.runs) == sorted(names), "a handler ran twice"
    processed, failed = await look.client.mget(keys.processed("default"), keys.failed("default"))
    assert (int(processed), failed) == (30, None)


@VALKEY_ONLY
@pytest.mark.parametrize("seconds", [3600.0, -3600.0], ids=["forward", "back"])
async def test_a_dead_workers_tasks_are_recovered_soon_after_the_server_clock_was_set(
    hall: Hall, look: Look, seconds: float
) -> None:
    """Set back, the clock would have to come to the end of the lease first; the leases are brought back instead."""
    async with hall.workers(1, queues={"other": 1}, lease=1.0):
        await hall.enqueue(2)
        await hall.vanish(2, lease=1.0)
        hall.shift.seconds = seconds
        [ahead, _] = (await look.scores("lease")).values()
        assert seconds > 0 or ahead > hall.shift.now_ms / 1000 + 3000

        async def recovered() -> bool:
            return len(await look.scores("retry")) == 2

        await until(recovered)


@VALKEY_ONLY
async def test_a_living_worker_keeps_its_tasks_when_the_server_clock_is_set_back(hall: Hall, look: Look) -> None:
    async with hall.workers(2):
        await hall.enqueue(5)
        await until(lambda: len(hall.runs) == 5)
        hall.shift.seconds = -600.0

        async def renewed() -> bool:
            return max((await look.scores("lease")).values()) < hall.shift.now_ms / 1000 + 2 * LEASE + 1

        await until(renewed)
        await pause(2 * LEASE, proves="nobody claims them")
        hall.gate.set()
    assert len(hall.runs) == 5
    assert await look.client.get(keys.failed("default")) is None


class LocalClock:
    """This machine's date, as the worker sees it."""

    def __init__(self) -> None:
        self.wrong_by = 0.0

    def time(self) -> float:
        return time.time() + self.wrong_by


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> LocalClock:
    local = LocalClock()
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(time=local.time, monotonic=time.monotonic))
    return local


@VALKEY_ONLY
@pytest.mark.parametrize("wrong_by", [3600.0, -3600.0], ids=["ahead", "behind"])
@pytest.mark.parametrize("when", ["from the start", "while it runs"])
async def test_a_worker_goes_by_the_server_clock_from_its_first_task_on(
    app: App, look: Look, local: LocalClock, wrong_by: float, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute is left when the task begins, whatever the date of the worker's machine is or becomes. No beat comes
    before the first task here."""
    monkeypatch.setattr(Heartbeater, "start", lambda self: None)
    left: list[float] = []

    @app.task(name="due", max_retry=0)
    async def due() -> None:
        from veredus import current

        left.append((current().deadline - datetime.now(UTC)).total_seconds())

    call = app.call("due", deadline=datetime.now(UTC) + timedelta(seconds=60))
    if when == "from the start":
        await app.enqueue_many([call] * 10)
        local.wrong_by = wrong_by
        async with app.worker(**FAST):
            await until(lambda: len(left) == 10)
    else:
        async with app.worker(**FAST):
            local.wrong_by = wrong_by
            await app.enqueue_many([call] * 10)
            await until(lambda: len(left) == 10)
    assert all(0 < seconds <= 60.5 for seconds in left), left
    assert await look.client.get(keys.failed("default")) is None


@VALKEY_ONLY
async def test_the_length_of_a_run_is_not_measured_by_a_clock_that_may_be_set(app: App, local: LocalClock) -> None:
    ended: list[float] = []

    @app.task(name="quick")
    async def quick() -> None:
        worker._clock.ahead += 5000.0

    worker = app.worker(**FAST)
    worker.bus.subscribe(lambda event: ended.append(event.seconds) if isinstance(event, TaskEnded) else None)
    async with worker:
        await quick.enqueue()
        await until(lambda: ended)
    assert 0 <= ended[0] < 60


@VALKEY_ONLY
async def test_a_worker_registers_its_queues_before_it_looks_for_anything(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recoverer, which would register them as well, has not begun here."""
    monkeypatch.setattr(Recoverer, "run", lambda self: self.stopping.wait())
    async with app.worker(**FAST, queues={"default": 2, "low": 1}):
        assert await look.client.smembers(keys.QUEUES) == {b"default", b"low"}


@VALKEY_ONLY
async def test_a_worker_registers_the_queues_it_serves_and_again_after_the_database_was_emptied(
    app: App, look: Look
) -> None:
    """Go's clients remember which queues they have registered: after FLUSHALL nobody else would, and recoverers would
    not look there."""

    async def registered() -> bool:
        return bool(await look.client.smembers(keys.QUEUES) == {b"default", b"low"})

    @app.task(name="t")
    async def t() -> None: ...

    async with app.worker(**FAST, queues={"default": 2, "low": 1}):
        assert await registered()
        await look.client.flushall()
        await until(registered)
