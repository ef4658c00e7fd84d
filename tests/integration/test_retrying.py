"""Which errors lead to another attempt, and when: `retry_on`, `no_retry_on`, `Retry`, and the hooks of the app."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration import retrying_tasks
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever
from veredus import App, ConfigError, Job, Retry, Router, TaskTimeout
from veredus.handlers.executors.processes import ProcessDied
from veredus.model.retry import RetryRule
from veredus.model.verdict import CANCELED

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]

ENDS = {
    "busy": ("retry", 7.0, 1),
    "declined": ("archived", 0.0, 0),
    "odd": ("retry", 7.0, 1),
    "other": ("archived", 0.0, 0),
    "skip": ("archived", 0.0, 0),
    "revoke": ("gone", 0.0, 0),
    "counted": ("retry", 30.0, 1),
    "free": ("retry", 40.0, 0),
    "usual": ("retry", 7.0, 1),
    "alone": ("retry", 40.0, 0),
    "cancelled": ("retry", 30.0, 1),
    "beside_busy": ("retry", 7.0, 1),
    "beside_other": ("archived", 0.0, 0),
    "beside_skip": ("archived", 0.0, 0),
    "twice": ("retry", 7.0, 1),
}
"""State, seconds until it is tried again, retries counted."""


@pytest.fixture
def app(url: str) -> App:
    retrying_tasks.app.use(url)
    return retrying_tasks.app


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_the_error_decides(app: App, url: str, where: str) -> None:
    async with app.test(process_pool=1) as q:
        task = retrying_tasks.TASKS[where]
        sent = {deed: await task.enqueue(deed) for deed in ENDS}
        await q.drain()
        for deed, (state, delay, retried) in ENDS.items():
            status = await sent[deed].status()
            assert (status.state, status.retried) == (state, retried), (deed, status)
            if delay:
                due = (await app.inspector().task("default", sent[deed].id)).next_process_at
                assert due is not None
                assert (due - q.now).total_seconds() == delay, deed
        texts = {deed: (await sent[deed].status()).error for deed in ("busy", "free", "alone")}
        assert texts == {"busy": "Busy: later", "free": "Retry: not ready", "alone": "Retry: not ready"}


async def test_a_retry_that_does_not_count_goes_on_when_retries_are_used_up_and_ends_at_max_deferrals(app: App) -> None:
    task = retrying_tasks.on_loop.using(max_retry=0)
    async with app.test(max_deferrals=3) as q:
        free, counted = await task.enqueue("free"), await task.enqueue("counted")
        await q.run_all()
        assert (await counted.status()).state == "archived"
        assert (await free.status()).state == "archived"
        assert [run.action for run in q.runs if run.id == free.id] == ["retry"] * 3 + ["archive"]


def test_what_befalls_an_attempt_from_outside_is_final_only_by_name() -> None:
    rule = RetryRule.make(ConnectionError, None)
    assert rule is not None
    for error in (TaskTimeout("late"), ProcessDied("by SIGSEGV")):
        assert not rule.is_final(error, raised=False)
    assert rule.is_final(ValueError(), raised=True)
    never = RetryRule.make(None, TaskTimeout)
    assert never is not None
    assert never.is_final(TaskTimeout("late"), raised=False)
    assert not never.is_final(ValueError(), raised=True)
    nothing = RetryRule.make((), None)
    assert nothing is not None
    assert nothing.is_final(ValueError(), raised=True)
    assert RetryRule.make(None, None) is None


def test_a_group_of_errors_is_final_if_one_of_them_is() -> None:
    rule = RetryRule.make(ConnectionError, None)
    never = RetryRule.make(None, KeyError)
    whole = RetryRule.make(ExceptionGroup, None)
    assert rule is not None
    assert never is not None
    assert whole is not None
    reset, key = ConnectionResetError(), KeyError("a")
    for errors, by_rule, by_never in (
        ([reset], False, False),
        ([reset, ExceptionGroup("inner", [ConnectionError()])], False, False),
        ([reset, ValueError()], True, False),
        ([reset, ExceptionGroup("inner", [key])], True, True),
    ):
        group = ExceptionGroup("of a TaskGroup", errors)
        assert (rule.is_final(group, raised=True), never.is_final(group, raised=True)) == (by_rule, by_never)
        assert not whole.is_final(group, raised=True), "named itself"


async def test_what_a_task_group_raises_is_judged_by_what_is_in_it() -> None:
    app = App()

    async def fail() -> None:
        raise ConnectionResetError

    @app.task(name="fan-out", retry_on=ConnectionError)
    async def fan_out() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async with app.test() as q:
        await fan_out.enqueue()
        assert [run.action for run in await q.drain()] == ["retry"]


async def test_middlewares_see_the_retry_of_a_task_group() -> None:
    app, seen = App(), list[BaseException]()

    @app.middleware
    async def look(job: Job, call_next: Any) -> Any:
        try:
            return await call_next(job)
        except Exception as exc:
            seen.append(exc)
            raise

    async def fail(error: Exception) -> None:
        raise error

    @app.task(name="fan-out")
    async def fan_out() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(Retry("not ready", after=30)))
            group.create_task(forever())

    async with app.test() as q:
        await fan_out.enqueue()
        assert [run.action for run in await q.drain()] == ["retry"]
    assert [str(one) for one in seen] == ["not ready"]


async def test_a_timeout_is_tried_again_unless_it_is_named() -> None:
    app = App()

    @app.task(name="patient", retry_on=ConnectionError, timeout=1)
    async def patient() -> None:
        await asyncio.Event().wait()

    @app.task(name="strict", no_retry_on=TaskTimeout, timeout=1)
    async def strict() -> None:
        await asyncio.Event().wait()

    async with app.test() as q:
        await patient.enqueue()
        await strict.enqueue()
        runs = {run.type: run.action for run in await q.drain()}
        assert runs == {"patient": "retry", "strict": "archive"}
        assert CANCELED not in str(q)


@pytest.mark.parametrize("value", [5, "ValueError", [ValueError, 5], [int], ValueError("x")])
@pytest.mark.parametrize("name", ["retry_on", "no_retry_on"])
def test_only_classes_of_errors_are_taken(name: str, value: Any) -> None:
    for declare in (App().task, Router, lambda **given: App(defaults=given)):
        made: Any = declare
        with pytest.raises(ConfigError, match=name):
            made(**{name: value})(lambda: None)


@pytest.mark.parametrize("after", [-1, "30", float("nan"), float("inf"), True])
def test_a_retry_is_after_a_duration(after: Any) -> None:
    with pytest.raises(ConfigError, match="after"):
        Retry(after=after)


async def test_the_hooks_of_an_app_are_those_of_its_workers() -> None:
    app, told = App(defaults={"retry_on": OSError}), list[str]()

    @app.on_error
    async def told_of(error: BaseException, job: Job) -> None:
        told.append(f"{job.type} {error}")

    @app.is_failure
    def is_failure(error: BaseException) -> bool:
        return not isinstance(error, BlockingIOError)

    @app.task(name="t", max_retry=0)
    async def work(deed: str) -> None:
        raise BlockingIOError(deed) if deed == "busy" else OSError(deed)

    assert app.worker().config.on_error is told_of
    assert app.worker().config.is_failure is is_failure
    assert app.worker(is_failure=bool).config.is_failure is bool
    with pytest.raises(ConfigError, match="one function for the app"):
        app.on_error(told_of)
    with pytest.raises(ConfigError, match="without parentheses"):
        app.is_failure(5)  # type: ignore[type-var]
    async with app.test() as q:
        busy = await work.using(max_retry=1).enqueue("busy")
        await work.enqueue("broken")
        await q.drain()
        assert sorted(told) == ["t broken", "t busy"]
        assert ((await busy.status()).state, (await busy.status()).retried) == ("retry", 0)
