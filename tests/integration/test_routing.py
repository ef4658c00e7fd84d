"""Which handler gets a task, and what stands around it: patterns, middleware, dependencies, lifespan."""

# ruff: noqa: B008 - Depends(...) as a default is how dependencies are declared

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, Depends, Job

pytestmark = VALKEY_ONLY


async def test_exact_names_win_over_patterns_and_long_patterns_over_short_ones(app: App, look: Look) -> None:
    got: dict[str, str] = {}

    def declare(pattern: str) -> None:
        @app.handler(pattern)
        async def handle(job: Job) -> None:
            got[job.type] = pattern

    for pattern in ("*", "email:*", "email:welcome:*", "email:welcome"):
        declare(pattern)
    types = {
        "email:welcome": "email:welcome",
        "email:welcome:vip": "email:welcome:*",
        "email:other": "email:*",
        "email": "*",
        "sms": "*",
    }
    async with app.worker(**FAST):
        for task_type in types:
            await app.enqueue(task_type, b"raw")
        await until(lambda: got == types)


async def test_a_pattern_handler_gets_the_job_as_it_arrived(app: App, look: Look) -> None:
    got: list[Any] = []

    @app.handler("go:*")
    async def handle(job: Job) -> None:
        got.append((job.id, job.type, job.payload, dict(job.headers), job.retried, job.max_retry, job.queue))

    async with app.worker(**FAST):
        handle_ = await app.enqueue("go:x", b"\x00\xff", headers={"a": "1"}, max_retry=3)
        await until(lambda: got)
    assert got == [(handle_.id, "go:x", b"\x00\xff", {"a": "1"}, 0, 3, "default")]


async def test_middleware_wraps_in_order_and_sees_errors(app: App, look: Look) -> None:
    trail: list[str] = []

    def declare(name: str) -> None:
        @app.middleware
        async def note(job: Job, call_next: Any) -> Any:
            trail.append(f"{name} in")
            try:
                return await call_next(job)
            except Exception as exc:
                trail.append(f"{name} saw {exc}")
                raise
            finally:
                trail.append(f"{name} out")

    declare("outer")
    declare("inner")

    @app.task(name="fine")
    def fine() -> None:
        trail.append("handler")

    @app.task(name="fails")
    def fails() -> None:
        raise ValueError("on purpose")

    async with app.worker(**FAST):
        handle = await app.enqueue("fine")
        await look.ends(handle.id, "gone")
        assert trail == ["outer in", "inner in", "handler", "inner out", "outer out"]
        trail.clear()
        handle = await app.enqueue("fails")
        await look.ends(handle.id, "retry")
    text = "on purpose"
    assert trail == ["outer in", "inner in", f"inner saw {text}", "inner out", f"outer saw {text}", "outer out"]


async def test_middleware_may_answer_by_itself_and_change_the_result(app: App, look: Look) -> None:
    ran: list[str] = []

    @app.middleware
    async def cache(job: Job, call_next: Any) -> Any:
        if job.type == "cached":
            return "from the cache"
        return (await call_next(job)) + 1

    @app.task(name="cached")
    async def cached() -> str:
        ran.append("cached")
        return "fresh"

    @app.task(name="number")
    async def number() -> int:
        return 41

    async with app.worker(**FAST):
        first, second = await cached.enqueue(), await number.enqueue()
        await look.ends(first.id, "completed")
        await look.ends(second.id, "completed")
    assert ran == []
    assert (await look.fields(first.id))["result"] == b'"from the cache"'
    assert (await look.fields(second.id))["result"] == b"42"


@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_dependencies_of_every_kind_are_made_once_and_cleaned_up(
    app: App, look: Look, fails: bool, where: str
) -> None:
    trail: list[str] = []

    def settings() -> dict[str, int]:
        trail.append("settings")
        return {"n": 1}

    async def pool(config: dict[str, int] = Depends(settings)) -> list[int]:
        trail.append("pool")
        return [config["n"]]

    async def session(pool: list[int] = Depends(pool)) -> AsyncIterator[list[int]]:
        trail.append("session opened")
        try:
            yield pool
        finally:
            trail.append("session closed")

    def lock(config: dict[str, int] = Depends(settings)) -> Iterator[str]:
        trail.append("lock taken")
        try:
            yield "lock"
        finally:
            trail.append("lock freed")

    async def on_loop(n: int, session: Any = Depends(session), lock: str = Depends(lock)) -> None:
        trail.append(f"handler {n} {session} {lock}")
        if fails:
            raise ValueError("boom")

    def in_thread(n: int, session: Any = Depends(session), lock: str = Depends(lock)) -> None:
        trail.append(f"handler {n} {session} {lock}")
        if fails:
            raise ValueError("boom")

    task: Any = app.task(name="t")(on_loop if where == "loop" else in_thread)
    async with app.worker(**FAST):
        handle = await task.enqueue(5)
        assert b'{"n":5}' in (await look.fields(handle.id)).get("msg", b'{"n":5}')
        message = await look.ends(handle.id, "retry" if fails else "gone")
    assert trail == [
        "settings",
        "pool",
        "session opened",
        "lock taken",
        "handler 5 [1] lock",
        "lock freed",
        "session closed",
    ]
    assert message is None or message.error_msg == "ValueError: boom"


async def test_dependencies_never_travel(app: App, look: Look) -> None:
    @app.task
    async def handler(n: int, db: Any = Depends(object)) -> None: ...

    handle = await handler.enqueue(1)
    assert (await look.message(handle.id)).payload == b'{"n":1}'
    with pytest.raises(ValueError, match="db"):
        await handler.enqueue(1, db="mine")


async def test_a_dependency_that_fails_fails_the_attempt_and_cleans_up_the_others(app: App, look: Look) -> None:
    trail: list[str] = []

    async def opened() -> AsyncIterator[str]:
        yield "x"
        trail.append("closed")

    def broken() -> str:
        raise RuntimeError("no connection")

    @app.task
    async def handler(a: str = Depends(opened), b: str = Depends(broken)) -> None:
        trail.append("ran")

    async with app.worker(**FAST):
        handle = await handler.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "RuntimeError: no connection"
    assert "ran" not in trail


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_dependency_that_swallows_an_error_does_not_make_a_success_of_it(
    app: App, look: Look, where: str
) -> None:
    async def transaction() -> AsyncIterator[str]:
        try:
            yield "transaction"
        except ValueError:
            pass  # rolled back, and forgot to raise

    async def on_loop(t: str = Depends(transaction)) -> None:
        raise ValueError("boom")

    def in_thread(t: str = Depends(transaction)) -> None:
        raise ValueError("boom")

    task: Any = app.task(name="t")(on_loop if where == "loop" else in_thread)
    async with app.worker(**FAST):
        handle = await task.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert message.error_msg == "ValueError: boom"


async def test_the_lifespan_opens_before_the_first_task_and_closes_after_the_last(url: str, look: Look) -> None:
    trail: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
        trail.append("open")
        yield {"db": "connected"}
        trail.append("close")

    app = App(url, lifespan=lifespan)

    @app.task
    async def handler() -> None:
        await pause(0.1, proves="the lifespan does not close while a task runs")
        trail.append(app.state["db"])

    await handler.enqueue()
    async with app.worker(**FAST):
        await until(look.active)
    assert trail == ["open", "connected", "close"]
    await app.close()
