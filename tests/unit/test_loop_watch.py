"""Whether an event loop answers, asked from outside."""

from __future__ import annotations

import asyncio
import time

from tests.support.waiting import until
from veredus.model.lease import Lease
from veredus.model.message import TaskMessage
from veredus.worker import loop_watch
from veredus.worker.attempt import Attempt
from veredus.worker.loop_watch import LEAST_PATIENCE, LoopWatch


async def test_a_question_stays_open_from_when_it_was_first_asked_until_it_is_answered() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 5.0)
    watch.ask(100.0)
    watch.ask(103.0)
    assert (watch.silence(104.0), watch.is_blocked(104.9), watch.is_blocked(105.0)) == (4.0, False, True)
    await until(lambda: watch.silence(200.0) == 0.0)
    assert not watch.is_blocked(200.0)


async def test_however_short_the_grace_a_busy_loop_has_some_time_to_answer() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 0.0)
    watch.ask(100.0)
    assert not watch.is_blocked(100.0 + LEAST_PATIENCE - 0.1)
    assert watch.is_blocked(100.0 + LEAST_PATIENCE)


def test_a_loop_that_has_ended_is_not_blocked() -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, 1.0)
    loop.close()
    watch.ask(100.0)
    assert watch.silence(1000.0) == 0.0


async def test_an_attempt_whose_handler_has_ended_blocks_nothing() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 1.0)
    message = TaskMessage(type="t", id="1", queue="q")
    attempt = Attempt("q", "1", "o", b"", message, Lease(time.monotonic() + 60), started_at=time.time())
    attempt.task = asyncio.current_task()
    assert watch.blocker([attempt]) is attempt
    attempt.running = False
    assert watch.blocker([attempt]) is None
    attempt.task = None


async def test_the_place_is_the_line_that_the_loops_thread_executes() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 5.0)
    assert watch.place().startswith(f"{loop_watch.__file__}:"), "asked from the loop itself, it is that very line"
    watch._thread = -1
    assert watch.place() == "an unknown place"
