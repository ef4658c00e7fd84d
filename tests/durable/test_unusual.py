"""What a durable handler may do besides the usual: groups of errors, cleanup, names of all kinds, changed fan-outs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from tests.durable.test_waits import parked
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever, until
from veredus import App, current
from veredus.errors import StepFailed, TaskCancelled, TaskFailed
from veredus.store.tasks.runs import JoinRow
from veredus.worker.roles.child_relayer import MOST_BYTES, portions

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


def declare(app: App) -> tuple[Any, list[int]]:
    """A child, and the numbers that it was run with."""
    ran: list[int] = []

    @app.task(name="double")
    async def double(n: int) -> int:
        ran.append(n)
        return 2 * n

    return double, ran


async def test_children_that_are_durable_themselves(app: App, look: Look) -> None:
    """With one slot, and nothing is left of three generations."""

    @app.task
    async def factorial(n: int) -> int:
        await current().sleep("nap", 0.01)
        return 1 if n <= 1 else n * await current().run(factorial.call(n - 1))

    @app.task
    async def top() -> list[int]:
        return await current().gather("all", [factorial.call(n) for n in (3, 5, 8)])

    async with app.worker(**{**SETTINGS, "concurrency": 1}):
        handle = await top.enqueue()
        assert await handle.result(timeout=30) == [math.factorial(n) for n in (3, 5, 8)]

        async def clean() -> bool:
            return not await look.client.keys("*kids*") and set(await look.scores("completed")) <= {handle.id}

        await until(clean)


@pytest.mark.parametrize("sizes", [(2, 0), (0, 2)])
async def test_ruling_13_a_fan_out_that_had_children_and_has_none_is_refused_and_the_other_way_round(
    app: App, sizes: tuple[int, int]
) -> None:
    double, _ = declare(app)

    @app.task(max_retry=1)
    async def parent() -> None:
        is_first = not done
        await current().gather("pages", [double.call(n) for n in range(sizes[0 if is_first else 1])])
        done.append(1)
        raise RuntimeError("again")

    done: list[int] = []
    async with app.worker(**SETTINGS):
        with pytest.raises(
            TaskFailed, match=rf"StepChanged: gather 'pages' has {sizes[1]} children .* the {sizes[0]} of"
        ):
            await (await parent.enqueue()).result(timeout=20)


async def test_ruling_13_unique_children_that_are_enqueued_again_are_not_refused(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler fails after they were enqueued and before that was noted; they hold their locks themselves."""
    double, ran = declare(app)
    unique = double.using(unique_for=600, delay=0.2)
    fails = [True]

    @app.task
    async def parent() -> list[int]:
        durable = current()._durable()
        write = durable.write

        async def failing(fields: dict[str, bytes]) -> None:
            if "n:pages" in fields and fails:
                fails.pop()
                raise RuntimeError("here")
            await write(fields)

        monkeypatch.setattr(durable, "write", failing)
        return await current().gather("pages", [unique.call(n) for n in range(5)])

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == [0, 2, 4, 6, 8]
    assert sorted(ran) == list(range(5))


async def test_ruling_15_a_child_that_failed_inside_a_task_group_archives_the_parent_at_once(app: App) -> None:
    begun: list[int] = []

    @app.task(max_retry=0)
    async def broken() -> None:
        raise ValueError("no paper")

    @app.task(max_retry=5)
    async def parent() -> None:
        begun.append(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(current().run(broken.call()))

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        with pytest.raises(TaskFailed, match="ExceptionGroup"):
            await handle.result(timeout=20)
        assert (await handle.status()).retried == 0
    assert len(begun) == 2


async def test_ruling_07_a_task_group_finally_and_except_around_a_wait(app: App, look: Look) -> None:
    seen: list[str] = []

    @app.task(max_retry=0)
    async def order() -> str:
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                answer = group.create_task(current().wait_for("go"))
        except BaseException as exc:
            seen.append(type(exc).__name__)
            raise
        finally:
            seen.append("finally")
        return str(answer.result())

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await parked(look, handle.id)
        await app.emit("go", "yes")
        assert await handle.result(timeout=20) == "yes"
    assert seen == ["CancelledError", "finally", "finally"]


async def test_ruling_03_a_caught_failure_is_kept_before_a_wait_that_had_begun_before(app: App) -> None:
    """Run again, the parent forgets the failure; the step fails once more, and the fan-out writes nothing itself."""
    tries: list[int] = []
    is_fixed: list[bool] = []

    async def broken() -> None:
        tries.append(1)
        raise ValueError("always")

    @app.task(max_retry=0)
    async def child() -> int:
        if not is_fixed:
            raise ValueError("not yet")
        return 1

    @app.task
    async def parent() -> int:
        try:
            await current().step(broken)
        except StepFailed:
            pass
        return await current().run(child.call())

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        handle = await parent.enqueue()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=20)
        assert len(tries) == 1
        is_fixed.append(True)
        await inspector.run("default", handle.id)
        assert await handle.result(timeout=20) == 1
    assert len(tries) == 2


async def _wait_often() -> None:
    for _ in range(50):
        await current().wait_for("go")


async def _sleep_often() -> None:
    for _ in range(50):
        await current().sleep("nap", 0)


async def _fan_out_often() -> None:
    for _ in range(50):
        await current().gather("none", [])


@pytest.mark.parametrize("often", [_wait_often, _sleep_often, _fan_out_often])
async def test_too_many_waits(app: App, monkeypatch: pytest.MonkeyPatch, often: Callable[[], Any]) -> None:
    monkeypatch.setattr("veredus.handlers.durable_run.MOST_FIELDS", 5)
    order = app.task(name="order", max_retry=0)(often)
    await app.emit("go")
    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match=r"#\d': a task keeps 5 steps and waits; end a long loop by enqueueing"):
            await (await order.enqueue()).result(timeout=20)


async def test_children_that_alternate_between_queues(app: App, look: Look) -> None:
    double, ran = declare(app)

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [double.using(queue=f"q{n % 3}").call(n) for n in range(700)])

    async with app.worker(["default", "q0", "q1", "q2"], **SETTINGS):
        assert await (await parent.enqueue()).result(timeout=30) == [2 * n for n in range(700)]

        async def released() -> bool:
            return all([not await look.of(f"q{n}").scores("completed") for n in range(3)])

        await until(released)
    assert sorted(ran) == list(range(700))


def test_large_outcomes_are_stored_in_several_calls(server: object) -> None:
    rows = [
        JoinRow("a", "m", "g", at, b"+" + bytes(size))
        for at, size in enumerate([MOST_BYTES, 10, 10, MOST_BYTES, *[1] * 1100])
    ]
    assert [len(portion) for portion in portions(rows)] == [1, 2, 1, 500, 500, 100]
    assert [row for portion in portions(rows) for row in portion] == rows


async def test_children_that_tools_end(app: App, look: Look) -> None:
    double, _ = declare(app)

    @app.task
    async def parent() -> list[str]:
        calls = [double.using(queue="other").call(n) for n in range(3)]
        return [str(one) for one in await current().gather("all", calls, return_errors=True)]

    async with app.worker("default", **SETTINGS), app.inspector() as inspector:
        handle = await parent.enqueue()
        await parked(look, handle.id)
        children = await look.of("other").pending()
        await inspector.delete("other", children[0])
        await inspector.archive("other", children[1])
        await app.handle(children[2], queue="other").cancel()
        errors = await handle.result(timeout=20)
    for error, text in zip(
        errors, ["deleted before it had ended", "it was archived before it had ended", "context canceled"], strict=True
    ):
        assert error.endswith(text)


async def test_children_that_run_are_cancelled_with_a_parent_that_waits(app: App, look: Look) -> None:
    begun, cancelled = list[int](), list[int]()

    @app.task
    async def child(n: int) -> None:
        begun.append(n)
        try:
            await forever()
        finally:
            cancelled.append(n)

    @app.task
    async def parent() -> None:
        await current().gather("all", [child.call(n) for n in range(3)])

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        await parked(look, handle.id)
        await until(lambda: len(begun) == 3)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=20)
        await until(lambda: sorted(cancelled) == [0, 1, 2])


async def test_ruling_11_from_the_start_children_that_still_run_tell_the_new_run_nothing(app: App, look: Look) -> None:
    go, begun = asyncio.Event(), list[int]()

    @app.task
    async def child(n: int) -> int:
        begun.append(n)
        place = len(begun)
        await go.wait()
        return place

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [child.call(n) for n in range(2)])

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        handle = await parent.enqueue()
        await until(lambda: len(begun) == 2)
        await parked(look, handle.id)
        await inspector.run("default", handle.id, from_start=True)
        await until(lambda: len(begun) == 4)
        go.set()
        assert sorted(await handle.result(timeout=20)) == [3, 4]


async def test_a_thousand_tasks_wait_for_one_event(app: App, look: Look) -> None:
    @app.task
    async def order() -> Any:
        return await current().wait_for("go")

    async with app.worker(**{**SETTINGS, "concurrency": 50}):
        handles = await app.enqueue_many([order.call() for _ in range(1000)])

        async def all_wait() -> bool:
            return len(await look.scores("waits")) == 1000

        await until(all_wait)
        assert await app.emit("go", 7)
        assert [await handle.result(timeout=30) for handle in handles] == [7] * 1000
        assert await look.client.keys("*waiters*") == []


@pytest.mark.parametrize("name", ["a b|c", "ü{x}y", "a\nb", "%3A^", "x" * 200, "日本 #2", "{", "a:b:c"])
async def test_names_of_all_kinds(app: App, look: Look, name: str) -> None:
    double, _ = declare(app)

    async def one() -> int:
        return 1

    @app.task
    async def order() -> Any:
        job = current()
        found = [await job.step(one, name=name), await job.gather(name, [double.call(n) for n in (1, 2)])]
        await job.sleep(name, 0.01)
        return [*found, await job.wait_for(name), await job.gather(name, [double.call(3)])]

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        handle = await order.enqueue()

        async def waits_for_the_event() -> bool:
            return b" e:" in (await look.fields(handle.id)).get("waiting", b"")

        await until(waits_for_the_event)
        run = await handle.durable_run()
        assert run is not None
        kinds = [(step.kind, step.name, step.outcome) for step in run.steps]
        assert kinds == [(kind, name, "done") for kind in ("step", "children", "sleep")] + [("event", name, "waiting")]
        assert [one.count for one in await inspector.waiting("default")] == [1]
        await app.emit(name, "go")
        assert await handle.result(timeout=20) == [1, [2, 4], "go", [6]]


@dataclass
class Receipt:
    number: int
    at: datetime


class Address(BaseModel):
    lines: list[str]
    since: datetime


AT = datetime(2030, 1, 1, tzinfo=UTC)


async def test_ruling_04_results_of_all_kinds_are_the_same_at_each_replay(app: App) -> None:
    async def receipt() -> Receipt:
        return Receipt(1, AT)

    def address() -> Address:
        return Address(lines=["a"], since=AT)

    async def nothing() -> None:
        return None

    async def raw() -> bytes:
        return b"\0\xff"

    def pair() -> tuple[int, str]:
        return 1, "a"

    async def many() -> list[Receipt]:
        return [Receipt(2, AT)]

    async def a_set() -> set[int]:
        return {1}

    async def pause() -> timedelta:
        return timedelta(seconds=3)

    seen: list[list[Any]] = []

    @app.task(max_retry=1)
    async def order() -> None:
        steps: list[Callable[[], Any]] = [receipt, address, nothing, raw, pair, many, a_set, pause]
        seen.append([await current().step(one) for one in steps])
        if len(seen) == 1:
            raise RuntimeError("again")

    async with app.worker(**SETTINGS):
        await (await order.enqueue()).result(timeout=20)
    expected = [
        Receipt(1, AT), Address(lines=["a"], since=AT), None, b"\0\xff", (1, "a"), [Receipt(2, AT)], {1},
        timedelta(seconds=3),
    ]  # fmt: skip
    assert seen == [expected, expected]


async def test_functions_of_all_kinds_are_steps(app: App) -> None:
    double, _ = declare(app)

    class Service:
        async def bound(self, n: int) -> int:
            return n

        @staticmethod
        def fixed(n: int) -> int:
            return n

        @classmethod
        async def made(cls, n: int) -> int:
            return n

        async def __call__(self, n: int) -> int:
            return n

    service = Service()

    @app.task
    async def order() -> list[int]:
        job = current()
        steps: list[Any] = [double, partial(service.bound, 3), partial(service.bound, n=4), Service.fixed, Service.made]
        found = [await job.step(one, *([5] if not isinstance(one, partial) else [])) for one in steps]
        return [*found, await job.step(service, 6, name="service")]

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == [10, 3, 4, 5, 5, 6]


async def test_ruling_14_parents_of_one_order_key_run_one_after_the_other(app: App) -> None:
    double, _ = declare(app)
    begun: list[int] = []

    @app.task
    async def parent(n: int) -> int:
        begun.append(n)
        return await current().run(double.call(n))

    async with app.worker(**SETTINGS):
        handles = [await parent.using(order_key="k").enqueue(n) for n in range(4)]
        assert [await handle.result(timeout=20) for handle in handles] == [0, 2, 4, 6]
    assert begun == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_worker_that_stops_in_a_step_gives_the_task_back(app: App) -> None:
    begun: list[int] = []
    running = asyncio.Event()

    async def slow() -> str:
        begun.append(1)
        running.set()
        if len(begun) == 1:
            await forever()
        return "done"

    @app.task(max_retry=0)
    async def order() -> str:
        return await current().step(slow)

    async with app.worker(**{**SETTINGS, "shutdown_timeout": 0.1}):
        handle = await order.enqueue()
        await running.wait()
    async with app.worker(**SETTINGS):
        assert await handle.result(timeout=20) == "done"
    assert len(begun) == 2
