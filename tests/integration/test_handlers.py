"""What handlers and hooks may do: where they run, what they know of their attempt, and whatever they raise."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, forever, until
from veredus import App, Context, current
from veredus.model.job import Job
from veredus.worker import judge

pytestmark = VALKEY_ONLY

NASTY: list[tuple[BaseException, str]] = [
    (SystemExit("bye"), "bye"),
    (SystemExit(), "SystemExit"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (asyncio.CancelledError("own"), "own"),
    (asyncio.CancelledError(), "CancelledError"),
    (RecursionError("too deep"), "too deep"),
    (GeneratorExit(), "GeneratorExit"),
    (StopIteration(3), "StopIteration"),
    (StopAsyncIteration(), "StopAsyncIteration"),
    (TimeoutError(), "TimeoutError"),
    (KeyError("name"), "KeyError: 'name'"),
    (MemoryError(), "MemoryError"),
    (BaseExceptionGroup("many", [SystemExit(1), ValueError("x")]), "many (2 sub-exceptions)"),
]


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize(("error", "text"), NASTY, ids=[repr(error) for error, _ in NASTY])
async def test_whatever_a_handler_raises_fails_that_attempt_and_the_worker_goes_on(
    app: App, look: Look, error: BaseException, text: str, where: str
) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    bad = app.task(name="bad")(on_loop if where == "loop" else in_thread)
    good = app.task(name="good")(lambda: None)
    async with app.worker(**FAST, concurrency=1):
        first, second = await bad.enqueue(), await good.enqueue()
        message = await look.ends(first.id, "retry")
        await look.ends(second.id, "gone")
    assert message is not None
    assert text in message.error_msg
    assert await look.counters() == (2, 1)


HOOKS: list[str] = ["on_error", "async_on_error", "is_failure", "retry_delay", "task_retry_delay", "middleware"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, ValueError])
async def test_whatever_a_hook_raises_fails_that_attempt_and_the_worker_goes_on(
    app: App, look: Look, hook: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*args: Any) -> Any:
        raise error

    async def raises_later(*args: Any) -> Any:
        raise error

    settings: dict[str, Any] = {}
    task_settings: dict[str, Any] = {}
    if hook == "async_on_error":
        settings["on_error"] = raises_later
    elif hook == "task_retry_delay":
        task_settings["retry_delay"] = raises
    elif hook == "middleware":
        app.middleware(raises_later)
    else:
        settings[hook] = raises

    @app.task(**task_settings)
    async def fail() -> None:
        raise RuntimeError("boom")

    async with app.worker(**FAST, **settings, concurrency=1):
        first, second = await fail.enqueue(), await fail.enqueue()
        for handle in (first, second):
            message = await look.ends(handle.id, "retry")
            assert message is not None
            assert message.error_msg == ("RuntimeError: boom" if hook != "middleware" else error.__name__)
            assert message.retried == 1
    assert await look.counters() == (2, 2)
    if "delay" in hook:  # Asynq's default instead: 15 to 44 seconds
        assert all(14 < score - time.time() < 46 for score in (await look.scores("retry")).values())
    if hook != "middleware":
        assert hook.removeprefix("async_").removeprefix("task_") + " raised" in caplog.text


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_on_error_is_told_before_the_state_is_written(app: App, look: Look, is_async: bool) -> None:
    told: list[tuple[str, str, str]] = []

    async def tell(error: BaseException, job: Job) -> None:
        told.append((str(error), job.id, await look.state(job.id)))

    def tell_at_once(error: BaseException, job: Job) -> None:
        told.append((str(error), job.id, "active"))

    @app.task
    async def fail() -> None:
        raise ValueError("boom")

    async with app.worker(**FAST, on_error=tell if is_async else tell_at_once):
        handle = await fail.enqueue()
        await look.ends(handle.id, "retry")
    assert told == [("boom", handle.id, "active")]


async def test_an_on_error_that_hangs_is_given_up(
    app: App, look: Look, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "HOOK_TIMEOUT", judge.HOOK_TIMEOUT / 100)

    @app.task
    async def fail() -> None:
        raise ValueError("boom")

    async def hang(error: BaseException, job: Job) -> None:
        await forever()

    async with app.worker(**FAST, on_error=hang):
        handle = await fail.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "ValueError: boom"
    assert "on_error raised TimeoutError" in caplog.text


async def test_on_error_of_a_cancelled_attempt_is_not_itself_being_cancelled(app: App, look: Look) -> None:
    """Libraries of structured concurrency go by this number: theirs would take their own errors for a cancellation."""
    told: list[int] = []

    @app.task
    async def hang() -> None:
        await forever()

    async def tell(error: BaseException, job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        told.append(task.cancelling())

    async with app.worker(**FAST, on_error=tell):
        handle = await hang.enqueue()
        await until(look.active)
        await handle.cancel(then="retry")
        await look.ends(handle.id, "retry")
    assert told == [0]


async def test_an_attempt_knows_itself(app: App, look: Look) -> None:
    seen: list[tuple[str, Context, bool]] = []
    where: dict[str, threading.Thread] = {}

    @app.task(timeout=90, max_retry=7, headers={"trace": "t1"}, queue="mail")
    async def on_loop() -> None:
        seen.append(("loop", current(), current().cancelled))
        where["loop"] = threading.current_thread()

    @app.task(timeout=90, max_retry=7, headers={"trace": "t1"}, queue="mail")
    def in_thread() -> None:
        seen.append(("thread", current(), current().cancelled))
        where["thread"] = threading.current_thread()

    async with app.worker(**FAST):
        handles = {"loop": await on_loop.enqueue(), "thread": await in_thread.enqueue()}
        for handle in handles.values():
            await look.of("mail").ends(handle.id, "gone")
    assert sorted(name for name, _, _ in seen) == ["loop", "thread"]
    for name, context, cancelled in seen:
        handle = handles[name]
        assert (context.id, context.queue, context.type) == (handle.id, "mail", handle.type)
        assert (context.attempt, context.max_retry, dict(context.headers)) == (1, 7, {"trace": "t1"})
        assert timedelta(seconds=60) < context.deadline - datetime.now(UTC) <= timedelta(seconds=91)
        assert not cancelled
    assert where["loop"] is threading.current_thread()
    assert where["thread"] is not threading.current_thread()


async def test_the_attempt_number_grows(app: App, look: Look) -> None:
    attempts: list[int] = []

    @app.task(retry_delay=0)
    async def third_time_lucky() -> None:
        attempts.append(current().attempt)
        assert len(attempts) == 3

    async with app.worker(**FAST):
        handle = await third_time_lucky.enqueue()
        await look.ends(handle.id, "gone")
    assert attempts == [1, 2, 3]


async def test_each_attempt_has_a_context_of_its_own(app: App, look: Look) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    @app.task
    async def leave_a_mark() -> None:
        seen.append(variable.get())
        variable.set("set by another attempt")

    async with app.worker(**FAST, concurrency=1):
        for handle in [await leave_a_mark.enqueue() for _ in range(3)]:
            await look.ends(handle.id, "gone")
    assert seen == ["unset"] * 3


async def test_idle_threads_do_not_hold_up_new_ones(app: App, look: Look) -> None:
    """Two handlers that need each other: both must run at once although only one thread was there before."""
    meeting = threading.Barrier(2)

    @app.task
    def warm_up() -> None: ...

    @app.task(max_retry=0)
    def meet() -> None:
        meeting.wait(PATIENCE)

    async with app.worker(**FAST, threads=4):
        for _ in range(5):
            await look.ends((await warm_up.enqueue()).id, "gone")
            handles = await app.enqueue_many([meet.call(), meet.call()])
            for handle in handles:
                await look.ends(handle.id, "gone")


async def test_a_sync_handler_does_not_block_the_loop(app: App, look: Look) -> None:
    release, ran = threading.Event(), asyncio.Event()

    @app.task
    def slow() -> None:
        release.wait(PATIENCE)

    @app.task
    async def quick() -> None:
        ran.set()

    async with app.worker(**FAST):
        handle = await slow.enqueue()
        await until(look.active)
        await quick.enqueue()
        await until(ran.is_set)
        release.set()
        await look.ends(handle.id, "gone")


async def test_a_sync_handler_that_overruns_is_told_and_settled_as_timed_out(app: App, look: Look) -> None:
    told: list[float] = []

    @app.task(timeout=1)
    def overrun() -> None:
        began = time.monotonic()
        assert current().wait_cancelled(PATIENCE)
        assert current().cancelled
        told.append(time.monotonic() - began)

    async with app.worker(**FAST):
        handle = await overrun.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "context deadline exceeded"
    assert told[0] >= 0.9


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        ("схема 模式 ✓", "ValueError: схема 模式 ✓"),
        ("a\ud800b", "ValueError: a?b"),
        ("nul\0byte", "ValueError: nul\0byte"),
        ("x" * 8000, "ValueError: " + "x" * 8000),
        ("  \n ", "ValueError"),
    ],
    ids=["unicode", "surrogate", "nul", "long", "blank"],
)
async def test_an_error_text_is_kept_whatever_is_in_it(app: App, look: Look, error: str, stored: str) -> None:
    @app.task
    async def fail() -> None:
        raise ValueError(error)

    async with app.worker(**FAST):
        handle = await fail.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == stored


async def test_an_error_that_cannot_be_printed_is_named(app: App, look: Look) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.task
    async def fail() -> None:
        raise Mute

    async with app.worker(**FAST, on_error=lambda error, job: None):
        handle = await fail.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "Mute"


async def test_a_handler_that_refuses_to_be_cancelled_is_settled_as_timed_out_when_it_ends(
    app: App, look: Look
) -> None:
    @app.task(timeout=1)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        await asyncio.sleep(0.01)
        return "done after all"

    async with app.worker(**FAST):
        handle = await stubborn.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "context deadline exceeded"
    assert "result" not in await look.fields(handle.id)


@pytest.mark.parametrize("earlier", ["timeout", "deadline"])
async def test_of_timeout_and_deadline_the_earlier_counts(app: App, look: Look, earlier: str) -> None:
    took: list[float] = []

    @app.task
    async def hang() -> None:
        began = time.monotonic()
        try:
            await asyncio.Event().wait()
        finally:
            took.append(time.monotonic() - began)

    far = datetime.now(UTC) + timedelta(hours=1)
    near = datetime.now(UTC) + timedelta(seconds=2)  # whole seconds on the wire: one to two are left
    options: Any = {"timeout": 1, "deadline": far} if earlier == "timeout" else {"timeout": 600, "deadline": near}
    async with app.worker(**FAST):
        handle = await hang.using(**options).enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "context deadline exceeded"
    assert took[0] > 0.9


async def test_an_inner_timeout_is_an_ordinary_error(app: App, look: Look) -> None:
    @app.task
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async with app.worker(**FAST):
        handle = await impatient.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "TimeoutError"


async def test_a_callable_object_and_a_partial_can_be_tasks(app: App, look: Look) -> None:
    got: list[Any] = []

    class Adder:
        async def __call__(self, n: int) -> None:
            got.append(("object", n))

    def add(base: int, n: int) -> None:
        got.append(("partial", base + n))

    as_object = app.task(name="object")(Adder())
    as_partial = app.task(name="partial")(functools.partial(add, 10))
    async with app.worker(**FAST):
        handles = [await as_object.enqueue(1), await as_partial.enqueue(n=2)]
        for handle in handles:
            await look.ends(handle.id, "gone")
    assert sorted(got) == [("object", 1), ("partial", 12)]
