"""Children: tasks on any worker and queue, for which a durable handler waits without a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.test_waits import parked
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever, until
from veredus import App, current
from veredus.errors import ChildFailed, ConfigError, ConnectionLost, TaskFailed
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.orphans import Orphans
from veredus.store.tasks.runs import DurableRuns
from veredus.wire import keys
from veredus.worker.roles import child_relayer

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


async def test_results_come_in_the_order_of_the_calls(app: App, look: Look) -> None:
    double, ran = declare(app)
    begun = []

    @app.task
    async def parent(n: int) -> list[int]:
        begun.append(1)
        return await current().gather("pages", [double.call(i) for i in range(n)])

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue(1203)).result(timeout=60) == [2 * i for i in range(1203)]
        assert await (await parent.enqueue(0)).result(timeout=20) == []
    assert sorted(ran) == list(range(1203))
    assert len(begun) == 3


async def test_ruling_16_many_results_are_read_in_pages(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    double, _ = declare(app)
    read: list[int] = []
    outcomes = DurableRuns.outcomes

    async def counted(self: DurableRuns, *args: Any) -> tuple[dict[int, bytes], int]:
        found = await outcomes(self, *args)
        read.append(len(found[0]))
        return found

    monkeypatch.setattr(DurableRuns, "outcomes", counted)

    @app.task
    async def parent() -> int:
        total = 0
        async for result in current().gather_each("pages", [double.call(n) for n in range(1203)]):
            total += result
        return total

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue()).result(timeout=60) == 1202 * 1203
    assert read == [1000, 203]


async def test_ruling_16_too_many_bytes_for_a_list_say_how_to_read_them(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veredus.handlers.fan_out.LARGEST_RESULTS", 1000)

    @app.task
    async def page(n: int) -> str:
        return "x" * 300

    @app.task
    async def parent(in_pages: bool) -> int:
        calls = [page.call(n) for n in range(5)]
        if in_pages:
            return sum([len(one) async for one in current().gather_each("pages", calls)])
        return len(await current().gather("pages", calls))

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match=r"more than 1,000 bytes: read them one after the other, with `async for"):
            await (await parent.enqueue(False)).result(timeout=20)
        assert await (await parent.enqueue(True)).result(timeout=20) == 1500


async def test_one_slot_is_enough_for_parents_and_children(app: App) -> None:
    double, _ = declare(app)

    @app.task
    async def parent(n: int) -> int:
        first = await current().run(double.call(n))
        return await current().run(double.call(first))

    async with app.worker(**{**SETTINGS, "concurrency": 1}):
        handles = [await parent.enqueue(n) for n in range(10)]
        assert [await one.result(timeout=20) for one in handles] == [4 * n for n in range(10)]


async def test_children_on_other_queues_and_their_traces(app: App, look: Look) -> None:
    double, ran = declare(app)

    @app.task
    async def parent() -> list[int]:
        return await current().gather("pages", [double.using(queue=f"q{n % 2}").call(n) for n in range(4)])

    async with app.worker(["default", "q0", "q1"], **SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == [0, 2, 4, 6]
    assert sorted(ran) == [0, 1, 2, 3]


async def test_ruling_12_kept_children_are_released_when_the_parent_ends(app: App, look: Look) -> None:
    double, _ = declare(app)

    @app.task
    async def parent() -> list[int]:
        calls = [double.call(1), double.using(retention=60).call(2)]
        return await current().gather("pages", calls)

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        assert await handle.result(timeout=20) == [2, 4]

        async def released() -> bool:
            return len(await look.scores("completed")) == 2

        await until(released)
    (kept,) = [name for name in await look.scores("completed") if name != handle.id]
    assert kept.endswith(":pages:1")
    assert await look.client.keys("*:kids:*") == []


async def test_a_failed_child_raises_with_its_error_and_archives_a_parent_that_lets_it_out(
    app: App, look: Look
) -> None:
    tries: list[int] = []

    @app.task(max_retry=1)
    async def broken() -> None:
        tries.append(1)
        raise ValueError("no paper")

    @app.task
    async def catches() -> str:
        try:
            await current().run(broken.call())
        except ChildFailed as exc:
            return exc.error
        return "never"

    @app.task(max_retry=9)
    async def lets_out() -> None:
        await current().run(broken.call())

    async with app.worker(**SETTINGS):
        assert await (await catches.enqueue()).result(timeout=20) == "ValueError: no paper"
        handle = await lets_out.enqueue()
        with pytest.raises(TaskFailed, match=r"ChildFailed: child .* failed: ValueError: no paper"):
            await handle.result(timeout=20)
        assert (await handle.status()).retried == 0
    assert len(tries) == 4


async def test_errors_can_be_part_of_the_results(app: App) -> None:
    @app.task(max_retry=0)
    async def picky(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @app.task
    async def parent() -> list[str]:
        found = await current().gather("all", [picky.call(n) for n in range(3)], return_errors=True)
        return [type(one).__name__ for one in found]

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == ["int", "ChildFailed", "int"]


async def test_ruling_15_an_archived_parent_that_is_run_again_runs_its_archived_children_again(
    app: App, look: Look
) -> None:
    ran: list[int] = []
    is_fixed: list[bool] = []

    @app.task(max_retry=0)
    async def picky(n: int) -> int:
        ran.append(n)
        if n == 1 and not is_fixed:
            raise ValueError("one")
        return n

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [picky.call(n) for n in range(3)])

    async with app.worker(**SETTINGS):
        handle = await parent.enqueue()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=20)
        is_fixed.append(True)
        async with app.inspector() as inspector:
            await inspector.run("default", handle.id)
        assert await handle.result(timeout=20) == [0, 1, 2]
    assert sorted(ran) == [0, 1, 1, 2]


async def test_ruling_10_a_wake_up_that_was_lost_is_found_by_a_look(app: App, look: Look) -> None:
    """As when Go runs a child: nobody tells the parent."""
    double, _ = declare(app)

    @app.task
    async def parent() -> int:
        return await current().run(double.using(queue="other").call(4))

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()
        await parked(look, handle.id)
        (child,) = await look.of("other").pending()
        await look.client.hdel(keys.task("other", child), "waited")
        async with app.worker("other", **SETTINGS):
            assert await handle.result(timeout=20) == 8


async def test_ruling_12_a_child_that_was_seen_and_is_gone_is_unknown(app: App, look: Look) -> None:
    double, _ = declare(app)

    @app.task
    async def parent() -> None:
        await current().run(double.using(queue="other").call(4))

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()
        await parked(look, handle.id)
        (child,) = await look.of("other").pending()
        await look.client.delete(keys.task("other", child), keys.pending("other"))
        with pytest.raises(TaskFailed, match=r"ChildUnknown: child .* it is gone, and may or may not have run"):
            await handle.result(timeout=20)


async def test_ruling_13_a_repeated_fan_out_enqueues_no_child_twice(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler fails in the middle of a fan-out, and begins again."""
    monkeypatch.setattr("veredus.handlers.fan_out.PORTION", 2)
    double, ran = declare(app)
    fails = [True, True]

    @app.task
    async def parent() -> list[int]:
        durable = current()._durable()
        write = durable.write

        async def failing(fields: dict[str, bytes]) -> None:
            if fields.get("n:pages") == b"4" and fails:
                fails.pop()
                raise RuntimeError("here")
            await write(fields)

        monkeypatch.setattr(durable, "write", failing)
        return await current().gather("pages", [double.call(i) for i in range(7)])

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == [2 * i for i in range(7)]
    assert sorted(ran) == list(range(7))


async def test_ruling_13_other_children_than_before_are_refused(app: App) -> None:
    double, _ = declare(app)

    @app.task(max_retry=1)
    async def parent() -> None:
        await current().gather("pages", [double.using(delay=60).call(current().attempt)])

    @app.task(max_retry=0)
    async def changes() -> None:
        numbers.append(1)
        await current().gather("pages", [double.call(len(numbers))])

    numbers: list[int] = []
    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="StepChanged: gather 'pages' has 1 children that differ from the 1 of"):
            await (await changes.enqueue()).result(timeout=20)


async def test_ruling_14_a_refused_unique_child_fails_its_position(app: App) -> None:
    double, _ = declare(app)
    unique = double.using(unique_for=60, queue="other")

    @app.task
    async def parent() -> None:
        await current().run(unique.call(1))

    await unique.enqueue(1)
    async with app.worker("default", **SETTINGS):
        with pytest.raises(TaskFailed, match=r"refused: an equal task already exists"):
            await (await parent.enqueue()).result(timeout=20)


async def test_ruling_14_what_children_cannot_have(app: App) -> None:
    double, _ = declare(app)

    @app.task(max_retry=0)
    async def grouped() -> None:
        await current().run(double.using(group="g").call(1))

    @app.task(max_retry=0)
    async def own_order_key() -> None:
        await current().run(double.using(order_key="k").call(1))

    @app.task(max_retry=0)
    async def grandparent() -> None:
        await current().run(own_order_key.call())

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="group: got 'g', expected no group: a child"):
            await (await grouped.enqueue()).result(timeout=20)
        with pytest.raises(TaskFailed, match="WouldWaitForItself"):
            await (await own_order_key.using(order_key="k").enqueue()).result(timeout=20)
        with pytest.raises(TaskFailed, match="WouldWaitForItself"):
            await (await grandparent.using(order_key="k").enqueue()).result(timeout=20)


async def test_ruling_14_a_closed_queue_raises_before_anything_is_enqueued(app: App, look: Look) -> None:
    double, _ = declare(app)

    @app.task(max_retry=0)
    async def parent() -> None:
        await current().gather("pages", [double.using(queue=queue).call(1) for queue in ("open", "closed")])

    await double.using(queue="closed").enqueue(0)
    async with app.inspector() as inspector:
        await inspector.close_queue("closed")
    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="QueueClosed"):
            await (await parent.enqueue()).result(timeout=20)
    assert await look.of("open").pending() == []


async def test_ruling_11_yesterdays_children_of_an_id_are_not_todays(app: App, look: Look) -> None:
    double, ran = declare(app)

    @app.task
    async def nightly() -> int:
        return await current().run(double.call(3))

    async with app.worker(**SETTINGS):
        for _ in range(2):
            handle = await nightly.using(task_id="nightly", replace=True).enqueue()
            assert await handle.result(timeout=20) == 6
    assert ran == [3, 3]


async def test_children_for_handlers_in_threads(app: App) -> None:
    double, _ = declare(app)

    @app.task
    def parent() -> list[int]:
        return [current().run_sync(double.call(1)), *current().gather_sync("more", [double.call(2)])]

    async with app.worker(**SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == [2, 4]


def declare_family(app: App) -> tuple[Any, list[int]]:
    """A parent whose child has a child of its own, in queue `other`, and what those in `other` were run with."""
    double, ran = declare(app)

    @app.task
    async def middle() -> int:
        return await current().run(double.using(queue="other").call(1))

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [middle.call(), double.using(queue="other").call(2)])

    return parent, ran


async def until_all_wait(look: Look, families: int) -> None:
    async def all_wait() -> bool:
        scheduled, pending = await look.scores("scheduled"), await look.of("other").pending()
        return (len(scheduled), len(pending)) == (2 * families, 2 * families)

    await until(all_wait)


async def test_ruling_15_children_are_cancelled_with_their_parent_unless_they_are_to_be_kept(
    app: App, look: Look
) -> None:
    parent, ran = declare_family(app)
    other = look.of("other")
    async with app.worker("default", **SETTINGS):
        kept, handle = await parent.enqueue(), await parent.enqueue()
        await until_all_wait(look, 2)
        assert (await kept.cancel(then="delete", children="keep")).value == "cancelled"
        assert len(await other.pending()) == 4
        assert (await handle.cancel()).value == "cancelled"
        assert len(await other.pending()) == 2
        assert len(await other.scores("archived")) == 2
        archived = sorted(await look.scores("archived"))
        assert archived == sorted([handle.id, *[name for name in archived if name.startswith(f"{handle.id}:")]])
        assert len(archived) == 2
        assert await look.client.keys("*:orphans") == []
        with pytest.raises(ConfigError, match="children: got 'all', expected one of cancel, keep"):
            await handle.cancel(children="all")
    assert ran == []


async def test_ruling_15_a_worker_cancels_the_children_if_whoever_cancelled_the_parent_died(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the parent was deleted: the record of its children is all that is left of it in its queue."""
    double, ran = declare(app)

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [double.using(queue="other").call(n) for n in range(3)])

    async def dies(*args: Any) -> None:
        raise ConnectionLost("the process has died")

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()
        await parked(look, handle.id)
        with monkeypatch.context() as patched:
            patched.setattr(Orphans, "cancel", dies)
            with pytest.raises(ConnectionLost):
                await handle.cancel(then="delete")
        assert await look.state(handle.id) == "gone"

        async def gone() -> bool:
            keys_left = await look.client.keys("*:orphans")
            return not keys_left and await look.of("other").pending() == [] and await look.scores("scheduled") == {}

        await until(gone)
    assert ran == []


async def test_a_parent_that_runs_is_cancelled_with_the_children_that_it_still_begins(app: App, look: Look) -> None:
    double, ran = declare(app)
    go, cleaning = asyncio.Event(), asyncio.Event()

    @app.task
    async def parent() -> None:
        job = current()
        await job.step(asyncio.sleep, 0)
        try:
            await forever()
        except asyncio.CancelledError:
            cleaning.set()
            await go.wait()
            await job.gather("late", [double.using(queue="other").call(n) for n in range(3)])

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()

        async def begun() -> bool:
            return "run" in await look.fields(handle.id)

        await until(begun)
        assert (await handle.cancel()).value == "cancelling"
        await cleaning.wait()
        go.set()
        await look.ends(handle.id, "archived")

        async def all_cancelled() -> bool:
            return len(await look.of("other").scores("archived")) == 3

        await until(all_cancelled)
    assert ran == []


@pytest.mark.parametrize("away", [False, True])
async def test_children_that_end_while_a_worker_stops_are_reported_before_it_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    relayed = []

    async def relay(store: Store, queue: str) -> bool:
        relayed.append(queue)
        if away:
            raise ConnectionLost("away")
        return True

    monkeypatch.setattr(child_relayer, "relay", relay)
    role = child_relayer.ChildRelayer(store, 60.0, OutageLog())
    role.stop()
    role.wake("q")
    await role.run()
    assert relayed == ["q"]
    assert ("Redis is not available: away" in caplog.text) == away


async def test_those_that_follow_a_parent_see_how_many_children_have_ended(app: App, look: Look) -> None:
    double, _ = declare(app)
    seen: list[tuple[float, str]] = []

    @app.task
    async def parent() -> list[int]:
        return await current().gather("pages", [double.using(queue="other").call(n) for n in range(4)])

    async with app.worker("default", **SETTINGS):
        handle = await parent.enqueue()

        async def follow() -> None:
            async for step in handle.progress():
                seen.append((step.share, step.note))

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            await parked(look, handle.id)

            async def is_followed() -> bool:
                return "waited" in await look.fields(handle.id)

            await until(is_followed)
            async with app.worker("other", **{**SETTINGS, "concurrency": 1}):
                assert await handle.result(timeout=20) == [0, 2, 4, 6]
    assert seen[-1] == (1.0, "pages: 4 of 4")
    assert [note.startswith("pages: ") for _, note in seen] == [True] * len(seen)
