"""Every way an attempt can end: the task's new state, its message and the counters."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import FAST, Look, go_message
from tests.support.waiting import until
from veredus import App, RevokeTask, SkipRetry
from veredus.model.verdict import End
from veredus.wire import keys


class Temporary(Exception):
    """Counts as no failure."""


async def _succeed() -> None: ...
async def _return() -> dict[str, int]:
    return {"n": 1}


async def _fail() -> None:
    raise ValueError("boom")


async def _skip() -> None:
    raise SkipRetry("never again")


async def _skip_silently() -> None:
    raise SkipRetry


async def _skip_wrapped() -> None:
    raise ValueError("wrapped") from SkipRetry()


async def _revoke() -> None:
    raise RevokeTask


async def _revoke_wrapped() -> None:
    try:
        raise RevokeTask("no longer wanted")
    except RevokeTask as exc:
        raise KeyError("x") from exc


async def _temporary() -> None:
    raise Temporary("try later")


async def _hang() -> None:
    await asyncio.Event().wait()


# handler, options, state, processed, failed, retried, error text
OUTCOMES: list[tuple[Any, dict[str, Any], str, int, int, int, str]] = [
    (_succeed, {}, "gone", 1, 0, 0, ""),
    (_succeed, {"retention": 60}, "completed", 1, 0, 0, ""),
    (_return, {}, "completed", 1, 0, 0, ""),
    (_fail, {}, "retry", 1, 1, 1, "ValueError: boom"),
    (_fail, {"max_retry": 0}, "archived", 1, 1, 0, "ValueError: boom"),
    (_skip, {}, "archived", 1, 1, 0, "SkipRetry: never again"),
    (_skip_silently, {}, "archived", 1, 1, 0, "skip retry for the task"),
    (_skip_wrapped, {}, "archived", 1, 1, 0, "ValueError: wrapped"),
    (_revoke, {}, "gone", 1, 0, 0, ""),
    (_revoke, {"retention": 60}, "gone", 1, 0, 0, ""),
    (_revoke_wrapped, {}, "gone", 1, 0, 0, ""),
    (_temporary, {}, "retry", 0, 0, 0, "Temporary: try later"),
    (_temporary, {"max_retry": 0}, "archived", 1, 1, 0, "Temporary: try later"),
    (_hang, {"timeout": 1}, "retry", 1, 1, 1, "context deadline exceeded"),
    (_hang, {"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, "retry", 1, 1, 1, "context deadline exceeded"),
    (_succeed, {"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, "retry", 1, 1, 1, "context deadline exceeded"),
    (_hang, {"timeout": 1, "max_retry": 0}, "archived", 1, 1, 0, "context deadline exceeded"),
]


@pytest.mark.parametrize(
    ("handler", "options", "state", "processed", "failed", "retried", "error"),
    OUTCOMES,
    ids=[f"{row[0].__name__.strip('_')}-{'-'.join(row[1])}-{row[2]}" for row in OUTCOMES],
)
async def test_an_outcome_has_its_state_its_counters_and_its_text(
    app: App,
    look: Look,
    handler: Any,
    options: dict[str, Any],
    state: str,
    processed: int,
    failed: int,
    retried: int,
    error: str,
) -> None:
    task = app.task(name="t", **options)(handler)
    async with app.worker(**FAST, is_failure=lambda exc: not isinstance(exc, Temporary)):
        handle = await task.enqueue()
        message = await look.ends(handle.id, state)
        if message is not None:
            assert (message.retried, message.error_msg) == (retried, error)
            assert bool(message.last_failed_at) == bool(error)
            assert bool(message.completed_at) == (state == "completed")
        assert await look.counters() == (processed, failed)
    assert await look.active() == []
    assert await look.scores("lease") == {}
    fields = await look.fields(handle.id)
    assert not {"held", "pending_since"} & fields.keys()


async def test_a_cancel_command_ends_the_attempt_and_it_is_retried(app: App, look: Look) -> None:
    began = asyncio.Event()

    @app.task
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app.worker(**FAST):
        handle = await hang.enqueue()
        await until(began.is_set)
        await until(lambda: look.client.publish("asynq:cancel", "somebody-else"), what="somebody who listens")
        await look.client.publish("asynq:cancel", handle.id)
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert (message.error_msg, message.retried) == ("context canceled", 1)
    assert await look.counters() == (1, 1)


async def test_a_cancel_that_comes_before_the_first_step_of_an_attempt_is_not_lost(app: App, look: Look) -> None:
    @app.task
    async def never() -> None:
        await asyncio.Event().wait()

    worker = app.worker(**FAST, concurrency=1)
    async with worker:
        start = worker._execution.attempt_runner.start

        def start_and_cancel(*args: Any, **kwargs: Any) -> None:
            start(*args, **kwargs)
            for attempt in worker._in_flight.running():
                attempt.force(End.CANCELLED)

        worker._execution.attempt_runner.start = start_and_cancel  # type: ignore[method-assign]
        first, second = await never.enqueue(), await never.enqueue()
        for handle in (first, second):  # the second needs the hand of the first
            message = await look.ends(handle.id, "retry")
            assert message is not None
            assert message.error_msg == "context canceled"


async def test_a_task_that_expired_is_dropped_unrun(app: App, look: Look, caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    @app.task
    async def late() -> None:
        ran.append(1)

    handle = await late.using(expires=0.05, unique_for=60).enqueue()
    expires_at = int((await look.fields(handle.id))["expires_at"])

    async def is_over() -> bool:
        return await look.now_ms() > expires_at

    await until(is_over)
    async with app.worker(**FAST):
        await look.ends(handle.id, "gone")
    assert ran == []
    assert await look.counters() == (0, 0)
    assert await look.client.keys("*unique*") == []
    assert "expired" in caplog.text


async def test_a_task_that_has_not_expired_runs(app: App, look: Look) -> None:
    ran = asyncio.Event()

    @app.task
    async def soon() -> None:
        ran.set()

    async with app.worker(**FAST):
        await soon.using(expires=timedelta(minutes=1), delay=0.05).enqueue()
        await until(ran.is_set)


async def test_the_last_retry_archives_and_keeps_the_original_error(app: App, look: Look) -> None:
    """max_retry counts retries, not attempts."""
    attempts = []

    @app.task(max_retry=2, retry_delay=0)
    async def poison() -> None:
        attempts.append(1)
        raise ValueError(f"attempt {len(attempts)}")

    async with app.worker(**FAST):
        handle = await poison.enqueue()
        message = await look.ends(handle.id, "archived")
    assert len(attempts) == 3
    assert message is not None
    assert (message.retried, message.error_msg) == (2, "ValueError: attempt 3")
    assert await look.counters() == (3, 3)


async def test_a_temporary_error_never_exhausts(app: App, look: Look) -> None:
    attempts = []

    @app.task(max_retry=1, retry_delay=0)
    async def busy() -> None:
        attempts.append(1)
        if len(attempts) < 6:
            raise Temporary
        raise SkipRetry("enough")

    async with app.worker(**FAST, is_failure=lambda exc: not isinstance(exc, Temporary)):
        handle = await busy.enqueue()
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert (len(attempts), message.retried) == (6, 0)


async def test_a_task_that_go_pushed_without_a_word_is_picked_up(app: App, look: Look) -> None:
    got: list[Any] = []

    @app.task(name="email:welcome")
    async def welcome(user_id: int, lang: str = "en") -> None:
        got.append((user_id, lang))

    async with app.worker(**FAST):
        await until(lambda: look.client.exists("asynq:servers"))
        for number in range(3):  # one at a time: each finds an idle worker
            await look.push_like_go(go_message("email:welcome", b'{"user_id": %d}' % number, task_id=f"go-{number}"))
            await look.ends(f"go-{number}", "gone")
    assert got == [(0, "en"), (1, "en"), (2, "en")]
    assert await look.client.smembers(keys.QUEUES) == {b"default"}
