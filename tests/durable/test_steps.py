"""Steps: run until they have succeeded once; what a handler gets at each replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.test_waits import parked
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from veredus import App, current
from veredus.errors import ConfigError, StepFailed, TaskFailed

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


class Effects:
    """What steps did, outside of Redis."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def note(self, what: str) -> str:
        self.done.append(what)
        return what.upper()


@pytest.fixture
def effects() -> Effects:
    return Effects()


async def test_ruling_01_a_finished_step_is_not_run_again_when_the_handler_is(app: App, effects: Effects) -> None:
    attempts = []

    @app.task
    async def order() -> str:
        attempts.append(current().attempt)
        first = await current().step(effects.note, "charge")
        if len(attempts) == 1:
            raise RuntimeError("after the step")
        return first + await current().step(effects.note, "ship")

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == "CHARGESHIP"
    assert attempts == [1, 2]
    assert effects.done == ["charge", "ship"]


@pytest.mark.parametrize(
    ("before", "after", "ran"),
    [
        pytest.param(["a", "b"], ["b", "c"], ["a", "b", "c"], id="removed"),
        pytest.param(["a", "b"], ["a", "new b"], ["a", "b", "new b"], id="renamed"),
        pytest.param(["a", "b"], ["a", "between", "b"], ["a", "b", "between"], id="inserted"),
        pytest.param(["a", "b"], ["b", "a"], ["a", "b"], id="in another order"),
    ],
)
async def test_ruling_02_a_deployment_while_a_run_is_in_flight(
    app: App, effects: Effects, look: Look, before: list[str], after: list[str], ran: list[str]
) -> None:
    """The run waits while the handler is replaced; it continues with the new code."""
    names = [before]

    @app.task
    async def order() -> list[str]:
        results = [await current().step(effects.note, name, name=name) for name in names[-1]]
        await current().wait_for("deployed")
        return results

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await parked(look, handle.id)
        names.append(after)
        await app.emit("deployed")
        assert await handle.result(timeout=20) == [name.upper() for name in after]
    assert effects.done == ran


async def test_ruling_03_a_caught_failure_is_the_same_at_each_replay(app: App) -> None:
    seen: list[tuple[str, str]] = []
    tries = []

    async def broken() -> None:
        tries.append(1)
        raise ValueError("no such card")

    async def fine() -> None:
        pass

    @app.task
    async def order() -> None:
        try:
            await current().step(broken)
        except StepFailed as exc:
            seen.append((exc.kind, exc.text))
        await current().step(fine)
        if len(seen) == 1:
            raise RuntimeError("again")

    async with app.worker(**SETTINGS):
        await (await order.enqueue()).result(timeout=20)
    assert seen == [("ValueError", "no such card")] * 2
    assert len(tries) == 1


async def test_ruling_03_a_failure_that_the_handler_lets_out_is_not_kept(app: App) -> None:
    tries = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("busy")
        return "ok"

    @app.task
    async def order() -> str:
        return await current().step(flaky)

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == "ok"
    assert len(tries) == 3


async def test_a_step_is_tried_again_as_often_as_it_says(app: App) -> None:
    tries = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("busy")
        return len(tries)

    @app.task
    async def order() -> int:
        return await current().step(flaky, retries=2, delay=0.001)

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        assert await handle.result(timeout=20) == 3
        assert (await handle.status()).retried == 0


async def test_ruling_04_the_first_call_returns_what_was_stored(app: App) -> None:
    seen: list[Any] = []

    async def pair() -> tuple[int, ...]:
        return (1, 2)

    async def loose():  # type: ignore[no-untyped-def]
        return {"at": (1, 2)}

    async def raw() -> bytes:
        return b"\x00\xff"

    @app.task
    async def order() -> None:
        seen.append([await current().step(pair), await current().step(loose), await current().step(raw)])
        if len(seen) == 1:
            raise RuntimeError("again")

    async with app.worker(**SETTINGS):
        await (await order.enqueue()).result(timeout=20)
    assert seen == [[(1, 2), {"at": [1, 2]}, b"\x00\xff"]] * 2


async def test_ruling_04_results_that_cannot_be_kept_archive_the_task_and_it_can_go_on_from_there(
    app: App, effects: Effects, look: Look
) -> None:
    too_large = [True]

    async def report() -> str:
        return "x" * (2_000_000 if too_large else 5)

    @app.task
    async def order() -> str:
        await current().step(effects.note, "charge")
        return await current().step(report)

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        with pytest.raises(TaskFailed, match=r"step 'report' returned 2,000,00\d bytes, 1,048,576 can be kept"):
            await handle.result(timeout=20)
        too_large.clear()
        async with app.inspector() as inspector:
            await inspector.run("default", handle.id)
        assert await handle.result(timeout=20) == "xxxxx"
    assert effects.done == ["charge"]


async def test_ruling_04_what_no_longer_fits_the_annotation_archives_the_task(app: App) -> None:
    async def old() -> str:
        return "text"

    async def new() -> int:
        return 7

    @app.task
    async def order() -> None:
        first = current().attempt == 1
        if first:
            await current().step(old, name="count")
            raise RuntimeError("deploy")
        await current().step(new, name="count")

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="the kept result no longer fits its return annotation"):
            await (await order.enqueue()).result(timeout=20)


async def test_a_value_that_cannot_be_encoded_says_which_step(app: App) -> None:
    async def odd() -> object:
        return object()

    @app.task
    async def order() -> None:
        await current().step(odd)

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match=r"StepResultError: step 'odd': .*object"):
            await (await order.enqueue()).result(timeout=20)


async def test_ruling_05_concurrent_steps_need_explicit_names(app: App, effects: Effects) -> None:
    @app.task(max_retry=0)
    async def named() -> list[str]:
        job = current()
        return list(await asyncio.gather(*[job.step(effects.note, one, name=one) for one in "abc"]))

    @app.task(max_retry=0)
    async def unnamed() -> None:
        await asyncio.gather(*[current().step(effects.note, one) for one in "abc"])

    async with app.worker(**SETTINGS):
        assert await (await named.enqueue()).result(timeout=20) == ["A", "B", "C"]
        with pytest.raises(TaskFailed, match="concurrent steps need names of their own"):
            await (await unnamed.enqueue()).result(timeout=20)


async def test_one_name_for_two_functions_is_refused(app: App, effects: Effects) -> None:
    async def other() -> None:
        pass

    @app.task(max_retry=0)
    async def order() -> None:
        await current().step(effects.note, "a", name="same")
        await current().step(other, name="same")

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="got 'same', expected a name that no other step of this run uses"):
            await (await order.enqueue()).result(timeout=20)


async def test_a_name_used_again_gets_a_number(app: App, effects: Effects) -> None:
    runs = []

    @app.task
    async def order() -> list[str]:
        runs.append(1)
        results = [await current().step(effects.note, one) for one in "abc"]
        if len(runs) == 1:
            raise RuntimeError("again")
        return results

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == ["A", "B", "C"]
    assert effects.done == ["a", "b", "c"]


async def test_ruling_01_the_step_key_is_the_same_when_a_step_is_repeated(app: App) -> None:
    keys: list[str] = []

    async def charge() -> None:
        keys.append(current().step_key)
        if len(keys) < 2:
            raise ValueError("the reply was lost")

    @app.task
    async def order() -> None:
        await current().step(charge)

    async with app.worker(**SETTINGS):
        first = await order.enqueue()
        await first.result(timeout=20)
        await (await order.enqueue()).result(timeout=20)
    assert keys[0] == keys[1]
    assert keys[0].startswith(f"{first.id}:")
    assert keys[0].endswith(":charge")
    assert keys[2] != keys[0]


async def test_steps_in_threads(app: App, effects: Effects) -> None:
    def charge(amount: int) -> int:
        effects.done.append(f"charge {amount}")
        return amount

    @app.task
    def order() -> int:
        job = current()
        amount = job.step_sync(charge, 7)
        if job.attempt == 1:
            raise RuntimeError("again")
        return amount

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == 7
    assert effects.done == ["charge 7"]


async def test_too_many_steps(app: App, effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.handlers.durable_run.MOST_FIELDS", 5)

    @app.task
    async def order() -> None:
        for number in range(7):
            await current().step(effects.note, str(number))

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="a task keeps 5 steps and waits; end a long loop by enqueueing"):
            await (await order.enqueue()).result(timeout=20)
    assert len(effects.done) == 5


async def test_more_steps_than_one_call_reads(app: App, effects: Effects) -> None:
    @app.task
    async def order() -> int:
        for number in range(1200):
            await current().step(effects.note, str(number))
        if current().attempt == 1:
            raise RuntimeError("again")
        return len(effects.done)

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=60) == 1200


async def test_a_lambda_needs_a_name(app: App) -> None:
    raised: list[BaseException] = []

    @app.task(retention=60)
    async def order() -> None:
        for call in (lambda: current().step(lambda: 1), lambda: current().step(asyncio.sleep, 0, name=" ")):
            with pytest.raises(ConfigError) as info:
                await call()
            raised.append(info.value)
        with pytest.raises(LookupError):
            _ = current().step_key

    async with app.worker(**SETTINGS):
        await (await order.enqueue()).result(timeout=20)
    assert "a name for the step" in str(raised[0])
    assert "a text of 1 to 200 characters" in str(raised[1])
