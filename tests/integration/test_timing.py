"""Delays to the millisecond, wake-ups without polling, and what an idle worker costs."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import FAST, Look, go_message
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import until
from veredus import App, exponential
from veredus.wire import keys
from veredus.wire.messages import encode_task

LATE = 0.5
"""Seconds of lateness that a loaded test machine is forgiven; the polling fallback is ten times slower."""
PATIENT: dict[str, Any] = {**FAST, "forward_interval": 60.0}
"""Nothing but a wake-up can be in time."""


@pytest.mark.parametrize("delay", [0.0, 0.25, 1.0])
async def test_a_retry_starts_when_its_delay_has_passed(app: App, look: Look, delay: float) -> None:
    at: list[float] = []

    @app.task(retry_delay=delay)
    async def once_more() -> None:
        at.append(time.time())
        if len(at) == 1:
            raise ValueError

    async with app.worker(**PATIENT):
        await once_more.enqueue()
        await until(lambda: len(at) == 2)
    assert delay <= at[1] - at[0] + 0.002 < delay + LATE


@pytest.mark.parametrize("how", ["delay", "at", "timedelta"])
async def test_a_delayed_task_starts_when_it_is_due_and_never_before(app: App, look: Look, how: str) -> None:
    at: list[float] = []

    @app.task
    async def note() -> None:
        at.append(time.time())

    async with app.worker(**PATIENT):
        due = time.time() + 0.4
        options: dict[str, Any] = {
            "delay": {"delay": 0.4},
            "timedelta": {"delay": timedelta(milliseconds=400)},
            "at": {"at": datetime.fromtimestamp(due, UTC)},
        }[how]
        handle = await note.using(**options).enqueue()
        assert handle.state == "scheduled"
        assert all(score == int(score) for score in (await look.scores("scheduled")).values())
        await until(lambda: at)
    assert due - 0.002 <= at[0] < due + LATE


async def test_an_earlier_task_overtakes_a_later_one_that_is_waited_for(app: App, look: Look) -> None:
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    async with app.worker(**PATIENT):
        await note.using(delay=1.2).enqueue("late")
        await asyncio.sleep(0.1)
        await note.using(delay=0.2).enqueue("early")
        await until(lambda: order == ["early"])
        await until(lambda: order == ["early", "late"])


async def test_what_a_go_client_scheduled_runs_too(app: App, look: Look) -> None:
    """Whole seconds, no notification, no index of ours."""
    ran = asyncio.Event()

    @app.task(name="go")
    async def note() -> None:
        ran.set()

    async with app.worker(**{**FAST, "forward_interval": 0.3}):
        await look.client.sadd(keys.QUEUES, "default")
        await look.client.hset(
            look.task("g"), mapping={"msg": encode_task(go_message("go", task_id="g")), "state": "scheduled"}
        )
        await look.client.zadd(keys.scheduled("default"), {"g": int(time.time()) + 1})
        await asyncio.wait_for(ran.wait(), 10)


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (7, [7, 7, 7]),
        (timedelta(seconds=9), [9, 9, 9]),
        ([5, 50], [5, 50, 50]),
        (exponential(10, factor=3, jitter=0), [10, 30, 90]),
        (lambda retried, error, job: 100 * (retried + 1) + len(str(error)) + len(job.type), [104, 204, 304]),
        (lambda retried, error, job: timedelta(minutes=retried + 1), [60, 120, 180]),
    ],
    ids=["seconds", "timedelta", "list", "exponential", "function", "function of timedelta"],
)
@pytest.mark.parametrize("level", ["task", "worker"])
async def test_retry_delays_of_every_form(app: App, look: Look, delay: Any, expected: list[float], level: str) -> None:
    @app.task(name="t", **({"retry_delay": delay} if level == "task" else {}))
    async def fail() -> None:
        raise ValueError("abc")

    async with app.worker(**PATIENT, retry_delay=delay if level == "worker" else 1_000_000):
        for retried, seconds in enumerate(expected):
            message = go_message("t", task_id=f"t{retried}")
            message.retried = retried
            before = time.time()
            await look.push_like_go(message)
            await look.ends(message.id, "retry")
            due = (await look.scores("due"))[message.id] / 1000
            assert seconds - 0.01 <= due - before < seconds + 5


@VALKEY_ONLY
async def test_an_idle_worker_makes_at_most_two_calls_a_second(app: App, look: Look, server: RealServer) -> None:
    app.task(name="x")(lambda: None)
    lines: list[dict[str, Any]] = []
    async with app.worker():
        await until(lambda: look.client.exists(keys.SERVERS))
        handle = await app.enqueue("x")
        await look.ends(handle.id, "gone")
        async with look.client.monitor() as monitor:
            began = time.monotonic()
            while (left := 6.0 - (time.monotonic() - began)) > 0:
                try:
                    lines.append(await asyncio.wait_for(monitor.next_command(), left))
                except TimeoutError:
                    break
    calls = [line for line in lines if line["client_type"] != "lua"]
    assert 0 < len(calls) <= 12, [line["command"][:60] for line in calls]


async def test_a_new_task_is_picked_up_at_once(app: App, look: Look) -> None:
    took: list[float] = []

    @app.task
    async def note(sent: float) -> None:
        took.append(time.time() - sent)

    async with app.worker(**FAST):
        for n in range(20):
            await note.enqueue(time.time())
            await until(lambda n=n: len(took) == n + 1)
    assert sorted(took)[10] < 0.1


async def test_scheduling_wakes_nobody_when_an_earlier_task_is_waited_for(app: App, look: Look) -> None:
    async with look.client.pubsub() as channel:
        await channel.subscribe(keys.delay_wakeup("default"))
        await app.enqueue("t", delay=50)
        await app.enqueue("t", delay=500)
        await app.enqueue("t", delay=5)
        heard: list[Any] = []
        while (message := await channel.get_message(timeout=0.5)) is not None:
            if message["type"] == "message":
                heard.append(message["data"])
    assert len(heard) == 2
