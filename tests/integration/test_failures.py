"""What is kept and told of a failure, wherever the handler runs: class, text, traceback, all of them bounded."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration import failing_tasks
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App, TaskFailed
from veredus.errors import ConfigError, PayloadError
from veredus.model.failure import MOST
from veredus.wire.payload import encode_value
from veredus.wire.results import encode_result

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]

EXECUTORS = pytest.mark.parametrize("where", ["loop", "thread", "process"])


@pytest.fixture
async def failing(url: str) -> AsyncIterator[App]:
    failing_tasks.app.use(url)
    yield failing_tasks.app
    await failing_tasks.app.close()


# What is kept.


UNWRITABLE = {
    "coroutine": "a coroutine: declare it with async def, or await the coroutine",
    "coroutines": "a value of the class dict that cannot be written as JSON: coroutine objects have no JSON form",
    "generator": "a generator: return a list",
    "async generator": "an async generator: return a list",
    "object": "a value of the class Unwritable that cannot be written as JSON: Unwritable objects have no JSON form",
    "key": "a value of the class dict that cannot be written as JSON: tuple objects have no JSON form",
    "nan": "a value of the class float that cannot be written as JSON: nan is no number in JSON; send None or a string",
    "inf": "a value of the class dict that cannot be written as JSON: -inf is no number in JSON; send None or a string",
    "deep": "a value of the class list that cannot be written as JSON: ",
    "surrogate": "a value of the class str that cannot be written as JSON: ",
}


@EXECUTORS
async def test_a_result_that_cannot_be_stored_is_a_failure_with_the_reason(
    failing: App, look: Look, where: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Archived at once: its work is done, and a retry would do it again."""
    async with failing.worker(**FAST, process_pool=1):
        handles = {deed: await failing_tasks.TASKS[where].enqueue(deed) for deed in UNWRITABLE}
        for deed, reason in UNWRITABLE.items():
            message = await look.ends(handles[deed].id, "archived")
            assert message is not None
            assert message.error_msg.startswith(f"ResultError: the handler of {where} returned {reason}"), deed
            assert (message.retried, message.retry) == (0, 25)
            assert "result" not in await look.fields(handles[deed].id)
    gc.collect()
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []
    assert await look.counters() == (len(UNWRITABLE), len(UNWRITABLE))


async def test_an_awaitable_that_is_no_coroutine_is_named(failing: App) -> None:
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(Exception, match="returned an awaitable of the class Future: await it"):
        encode_result(future, "t")


@pytest.mark.parametrize("value", [{"x": None}, [None, 1.5], "null", {"a": {"b": (None,)}}, {1: None}, {1.5, 2.5}])
def test_none_is_not_taken_for_a_number_that_json_does_not_have(value: Any) -> None:
    assert encode_value(value)


async def test_arguments_that_json_would_lose_are_refused_when_they_are_sent(app: App) -> None:
    @app.task
    async def measure(value: float) -> None: ...

    with pytest.raises(PayloadError, match="nan is no number in JSON"):
        await measure.enqueue(float("nan"))


class Yields:
    def __call__(self, n: int) -> Any:
        yield n


@pytest.mark.parametrize("function", [failing_tasks.generator, failing_tasks.async_generator, Yields()])
@pytest.mark.parametrize("declare", [App().task(name="t"), App().handler("mail:*")])
def test_a_generator_cannot_be_declared_as_a_task(declare: Any, function: Any) -> None:
    with pytest.raises(ConfigError, match=r"without `yield`.*return a list, or send a task for each item"):
        declare(function)


@EXECUTORS
async def test_a_failed_task_keeps_class_text_and_traceback(failing: App, look: Look, where: str) -> None:
    inspector = failing.inspector()
    async with failing.worker(**FAST, process_pool=1):
        task = failing_tasks.TASKS[where]
        retried, archived = await task.enqueue("chain"), await task.using(max_retry=0).enqueue("unhappy")
        message = await look.ends(retried.id, "retry")
        assert message is not None
        assert message.error_msg == "KeyError: 'outer'"
        with pytest.raises(TaskFailed) as caught:
            await archived.result(PATIENCE)
        assert caught.value.error == "Unhappy: order 6"
        for text, handle in ((caught.value.traceback, archived), ((await retried.status()).traceback, retried)):
            assert text == (await inspector.task("default", handle.id)).traceback
            assert text == (await handle.status()).traceback
            lines = text.split("\n")
            assert lines[0] == "Traceback (most recent call last):"
            assert "failing_tasks.py" in lines[1], "not the way that led to the handler"
            assert 'raise Unhappy(f"order {len(secret)}")' in text
            assert "s3cret" not in text
        assert text.endswith("KeyError: 'outer'")
    await inspector.close()


@EXECUTORS
async def test_ten_megabytes_of_text_are_cut_everywhere(
    failing: App, look: Look, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with failing.worker(**FAST, process_pool=1):
        handle = await failing_tasks.TASKS[where].using(max_retry=0).enqueue("much")
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert message.error_msg.startswith("Unhappy: üüü")
    assert message.error_msg.endswith("ü... (cut, 10,000,009 characters)")
    assert MOST - 2 <= len(message.error_msg.encode()) <= MOST
    fields = await look.fields(handle.id)
    assert len(fields["traceback"]) <= MOST + 50
    assert fields["traceback"].decode().split("\n")[-2].strip() == 'raise Unhappy("ü" * 10_000_000)'
    assert len(caplog.text) < 3 * MOST
    assert "archived" in caplog.text


async def test_a_traceback_is_gone_when_an_attempt_succeeds(app: App, look: Look) -> None:
    runs: list[int] = []

    @app.task(retry_delay=0, retention=60)
    async def second_time() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("first")

    handle = await second_time.enqueue()
    async with app.worker(**FAST):
        message = await look.ends(handle.id, "completed")
    assert len(runs) == 2
    assert message is not None
    assert message.error_msg == "ValueError: first", "as in Asynq"
    assert "traceback" not in await look.fields(handle.id)


async def test_a_timeout_shows_what_the_handler_was_at(app: App, look: Look) -> None:
    @app.task(timeout=1)
    async def hang() -> None:
        await asyncio.Event().wait()

    handle = await hang.enqueue()
    async with app.worker(**FAST):
        await look.ends(handle.id, "retry")
    status = await handle.status()
    assert status.error == "context deadline exceeded"
    assert "await asyncio.Event().wait()" in status.traceback
    assert status.traceback.endswith("TaskTimeout: ran over its timeout of 1 s")


async def test_tracebacks_can_be_left_out(app: App, look: Look) -> None:
    @app.task
    async def fail() -> None:
        raise ValueError("boom")

    handle = await fail.enqueue()
    async with app.worker(**FAST, tracebacks=False):
        await look.ends(handle.id, "retry")
    assert "traceback" not in await look.fields(handle.id)


# What is logged.


def _records(caplog: pytest.LogCaptureFixture, task_id: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if task_id in one.getMessage() and one.name == "veredus.worker"]


@pytest.mark.parametrize("hook", [False, True], ids=["", "on_error"])
async def test_the_last_failure_is_logged_with_its_traceback_and_what_became_of_it(
    app: App, look: Look, caplog: pytest.LogCaptureFixture, hook: bool
) -> None:
    @app.task(name="send", max_retry=1, retry_delay=0)
    async def send() -> None:
        raise ValueError("boom\nagain")

    settings: dict[str, Any] = {"on_error": lambda error, job: None} if hook else {}
    with caplog.at_level(logging.INFO):
        handle = await send.enqueue()
        async with app.worker(**FAST, **settings):
            await look.ends(handle.id, "archived")
    *first, last = _records(caplog, handle.id)
    line = f"task {handle.id} (send) of queue default failed and archived after attempt 2 of 2: ValueError: boom again"
    assert (last.levelname, last.getMessage()) == ("WARNING", line)
    assert last.exc_info is not None
    assert last.exc_info[0] is ValueError
    if hook:
        assert first == [], "whoever is told need not be told twice"
    else:
        line = f"task {handle.id} (send) of queue default failed in attempt 1 of 2: ValueError: boom again"
        assert [(one.levelname, one.getMessage(), one.exc_info) for one in first] == [("WARNING", line, None)]


@pytest.mark.parametrize(("level", "has_traceback"), [(logging.DEBUG, True), (logging.INFO, False)])
async def test_a_failure_that_is_tried_again_has_its_traceback_at_debug(
    app: App, look: Look, caplog: pytest.LogCaptureFixture, level: int, has_traceback: bool
) -> None:
    @app.task
    async def fail() -> None:
        raise ValueError("boom")

    with caplog.at_level(level, logger="veredus.worker"):
        handle = await fail.enqueue()
        async with app.worker(**FAST):
            await look.ends(handle.id, "retry")
    [record] = _records(caplog, handle.id)
    assert bool(record.exc_info) == has_traceback


async def test_the_log_of_a_process_has_the_traceback_of_the_child(
    failing: App, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    async with failing.worker(**FAST, process_pool=1):
        handle = await failing_tasks.in_process.using(max_retry=0).enqueue("unhappy")
        await look.ends(handle.id, "archived")
    [record] = _records(caplog, handle.id)
    assert "archived" in record.getMessage()
    assert 'raise Unhappy(f"order {len(secret)}")' in logging.Formatter().format(record)


@pytest.mark.parametrize("then", ["archive", "delete", "retry", ""])
async def test_a_cancelled_task_is_not_called_failed(
    app: App, look: Look, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    """Only what Asynq counts is counted: the attempt of a task that is tried again."""
    told: list[BaseException] = []
    began = asyncio.Event()

    @app.task(name="hang")
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    with caplog.at_level(logging.INFO):
        handle = await hang.enqueue()
        async with app.worker(**FAST, on_error=lambda error, job: told.append(error)):
            await until(began.is_set)
            if then:
                await handle.cancel(then)
            else:
                await look.client.publish("asynq:cancel", handle.id)
            await look.ends(handle.id, {"archive": "archived", "delete": "gone"}.get(then, "retry"))
    [record] = _records(caplog, handle.id)
    assert record.levelname == "INFO"
    assert "cancelled" in record.getMessage()
    assert "failed" not in caplog.text
    for_good = then in ("archive", "delete")
    assert await look.counters() == (1, 0 if for_good else 1)
    assert len(told) == (0 if for_good else 1)
    assert "traceback" not in await look.fields(handle.id)


# What stays as it was.


@pytest.mark.parametrize("deed", ["skip", "coroutine"])
async def test_a_task_that_is_archived_early_keeps_its_max_retry(failing: App, look: Look, deed: str) -> None:
    async with failing.worker(**FAST):
        handle = await failing_tasks.on_loop.using(max_retry=7).enqueue(deed)
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert (message.retry, message.retried) == (7, 0)
