"""Slots: who waits for one, how many there are by default, and what a worker says of them when it starts."""

from __future__ import annotations

import asyncio
import logging
import math

import pytest

from tests.integration.support import FAST
from tests.support.servers import VALKEY_ONLY
from veredus import App
from veredus.handlers.executors.slots import Slots
from veredus.model.lease import Lease
from veredus.model.message import TaskMessage
from veredus.worker import config
from veredus.worker.attempt import Attempt
from veredus.worker.config import WorkerConfig

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


def test_a_deadline_counts_from_the_begin_of_the_handler_not_from_when_the_task_was_taken() -> None:
    message = TaskMessage(type="t", id="i", queue="q", timeout=10)
    attempt = Attempt("q", "i", "w:1", b"", message, Lease(12.0), started_at=1000.0)
    assert (attempt.deadline, attempt.ends_at) == (0.0, math.inf)
    assert not attempt.lease.is_overrun(10_000.0)
    attempt.begin(1500.0, 600.0, 3.0)
    assert (attempt.started_at, attempt.deadline, attempt.ends_at) == (1500.0, 1510.0, 610.0)
    assert attempt.context.deadline.timestamp() == 1510.0
    assert not attempt.lease.is_overrun(612.9)
    assert attempt.lease.is_overrun(613.0)


async def test_slots_are_given_in_the_order_of_arrival() -> None:
    slots, got = Slots(2), list[int]()

    async def take(number: int) -> None:
        await slots.acquire()
        got.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert got == [0, 1]
    for _ in range(3):
        slots.release()
        await asyncio.sleep(0)
    assert got == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_loses_no_slot() -> None:
    slots = Slots(1)
    await slots.acquire()
    first, second = asyncio.create_task(slots.acquire()), asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    slots.release()
    await asyncio.wait_for(second, 5)
    third = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    slots.release()
    third.cancel()  # at the moment at which it gets the slot
    await asyncio.gather(third, return_exceptions=True)
    await asyncio.wait_for(slots.acquire(), 5)


async def test_what_goes_on_alone_keeps_its_slot() -> None:
    slots = Slots(1)
    await slots.acquire()
    slots.occupy()
    slots.release()
    waiting = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize(("cores", "processes", "expected"), [(8, 1, 8), (8, 2, 4), (2, 2, 1), (2, 4, 1), (3, 2, 1)])
def test_worker_processes_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, processes: int, expected: int
) -> None:
    monkeypatch.setattr(config, "cores", lambda: cores)
    assert WorkerConfig.make(processes=processes).process_pool == expected
    assert WorkerConfig.make(processes=processes, process_pool=7).process_pool == 7


async def test_a_worker_says_what_it_serves_and_runs(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.task(name="mail.send", queue="mail")(lambda: None)
    app.handler("sync:*", queue="mail")(lambda: None)

    @app.task(name="fetch")
    async def fetch() -> None: ...

    with caplog.at_level(logging.INFO, "veredus.worker"):
        async with app.worker("mail,default,extra", **FAST, concurrency=10, threads=20, process_pool=3):
            pass
    text = caplog.text
    assert "serves mail=1, default=1, extra=1 with 10 slots (10 for threads, 3 for processes)" in text
    assert "runs in the event loop: fetch" in text
    assert "runs in the thread pool: mail.send, sync:*" in text
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning.split(":")[0] for warning in warnings] == ["no task of this app names queue extra"]


async def test_a_worker_of_an_app_without_tasks_warns(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "veredus.worker"):
        async with app.worker(**FAST):
            pass
    assert "this app has no tasks" in caplog.text
