"""Delays to the millisecond, wake-ups without polling, and what an idle worker costs."""

from __future__ import annotations

import asyncio
import math
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
from veredus.worker.roles.pending_watcher import BLOCK

LATE = 0.5
"""Seconds. One in five tries must be quicker: a busy machine is late now and then, whole seconds every time."""
PATIENT: dict[str, Any] = {**FAST, "forward_interval": 60.0}
"""Nothing but a wake-up can be in time."""


@pytest.mark.parametrize("delay", [0.0, 0.25, 1.0])
async def test_a_retry_starts_when_its_delay_has_passed(app: App, look: Look, delay: float) -> None:
    at: list[float] = []
    late: list[float] = []

    @app.task(retry_delay=delay)
    async def once_more() -> None:
        if len(at) == 0:
            await until(lambda: 0.05 < time.time() % 1 < 0.2)  # a delay rounded up to a whole second is far off
        at.append(time.time())
        if len(at) == 1:
            raise ValueError

    async with app.worker(**PATIENT):
        while len(late) < 5 and (not late or min(late) >= LATE):
            at.clear()
            await once_more.enqueue()
            await until(lambda: len(at) == 2)
            late.append(at[1] - at[0] - delay)
    assert min(late) >= -0.002
    assert min(late) < LATE


@pytest.mark.parametrize("how", ["delay", "at", "timedelta"])
async def test_a_delayed_task_starts_when_it_is_due_and_never_before(app: App, look: Look, how: str) -> None:
    at: list[float] = []
    late: list[float] = []

    @app.task
    async def note() -> None:
        at.append(time.time())

    async with app.worker(**PATIENT):
        while len(late) < 5 and (not late or min(late) >= LATE):
            at.clear()
            due = math.ceil(time.time() + 0.1) + 0.15  # rounded up to a whole second it would be far off
            seconds = due - time.time()
            ways: dict[str, dict[str, Any]] = {
                "delay": {"delay": seconds},
                "timedelta": {"delay": timedelta(seconds=seconds)},
                "at": {"at": datetime.fromtimestamp(due, UTC)},
            }
            handle = await note.using(**ways[how]).enqueue()
            assert handle.state == "scheduled"
            assert all(score == int(score) for score in (await look.scores("scheduled")).values())
            await until(lambda: at)
            late.append(at[0] - due)
    assert min(late) >= -0.002
    assert min(late) < LATE


async def test_an_earlier_task_overtakes_a_later_one_that_is_waited_for(app: App, look: Look) -> None:
    order: list[tuple[str, int]] = []

    @app.task
    async def note(name: str) -> None:
        order.append((name, len(await look.scores("scheduled"))))

    worker = app.worker(**PATIENT)
    async with worker:
        await note.using(delay=3).enqueue("late")
        await until(lambda: worker._roles.forwarder._due["default"], what="a forwarder that waits for the late one")
        await note.using(delay=0.2).enqueue("early")
        await until(lambda: len(order) == 2)
    assert order == [("early", 1), ("late", 0)]  # and the late one waits on while the early one runs


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
        await until(ran.is_set)


@pytest.mark.parametrize("delay", [math.inf, math.nan])
async def test_a_retry_delay_that_is_no_time_becomes_the_default(app: App, look: Look, delay: float) -> None:
    @app.task(retry_delay=lambda retried, error, job: delay)
    async def fail() -> None:
        raise ValueError("boom")

    async with app.worker(**FAST):
        handle = await fail.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "ValueError: boom"
    assert (await look.scores("retry"))[handle.id] > time.time() + 5


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
            assert seconds - 0.01 <= due - before <= seconds + (time.time() - before) + 0.01


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
            seconds = time.monotonic() - began
    calls = [line for line in lines if line["client_type"] != "lua"]
    assert 0 < len(calls) <= 2 * seconds, [line["command"][:60] for line in calls]


async def test_a_new_task_is_picked_up_at_once(app: App, look: Look) -> None:
    took: list[float] = []

    @app.task
    async def note(sent: float) -> None:
        took.append(time.time() - sent)

    async with app.worker(**FAST):
        for _ in range(20):
            sent = len(took)
            await note.enqueue(time.time())
            await until(lambda: len(took) > sent)  # noqa: B023 - awaited at once
    assert sorted(took)[10] < BLOCK / 10, "asleep until a wait for work has ended"


async def test_scheduling_wakes_nobody_when_an_earlier_task_is_waited_for(app: App, look: Look) -> None:
    async with look.client.pubsub() as channel:
        await channel.subscribe(keys.delay_wakeup("default"))
        await app.enqueue("t", delay=50)
        await app.enqueue("t", delay=500)
        await app.enqueue("t", delay=5)
        await look.client.publish(keys.delay_wakeup("default"), "the end")
        heard: list[bytes] = []
        async for message in channel.listen():
            if message["type"] == "message":
                heard.append(message["data"])
            if heard[-1:] == [b"the end"]:
                break
    assert len(heard[:-1]) == 2
