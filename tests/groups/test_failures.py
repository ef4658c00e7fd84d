"""An aggregation goes wrong: functions that fail, members that cannot be read, a worker that stops: nothing is lost."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import time
from typing import Any

import pytest

from tests.groups.kitchen import Kitchen, nothing_is_left
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever, pause, until
from veredus import App, Call, Job
from veredus.errors import CommandRefused
from veredus.store.tasks.groups import Groups
from veredus.wire import keys
from veredus.wire.messages import decode_task
from veredus.worker.roles import aggregator

pytestmark = VALKEY_ONLY


@pytest.mark.parametrize("how", ["raises", "none", "nonsense", "coroutine", "same group", "exits", "cancels itself"])
async def test_a_function_that_fails_gives_its_members_back_and_is_tried_again(
    kitchen: Kitchen, look: Look, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    calls: list[float] = []
    coroutines: list[Any] = []

    @kitchen.app.aggregate("bad", grace=1, max_size=2)
    async def digest(group: str, jobs: list[Job]) -> Any:
        calls.append(time.monotonic())
        numbers = [job.json()["n"] for job in jobs]
        if len(calls) > 3:
            return kitchen.summary.call(group, numbers)
        if how == "raises":
            raise RuntimeError("told to fail")
        if how == "exits":
            raise SystemExit(3)
        if how == "cancels itself":
            raise asyncio.CancelledError
        if how == "same group":
            return kitchen.item.using(group="bad").call(1)
        if how == "coroutine":
            coroutines.append(asyncio.sleep(0))
            return coroutines[-1]
        return None if how == "none" else [kitchen.summary]

    kitchen.aggregate("good", max_size=1)
    ids = await kitchen.add("bad", 1, 2)
    async with kitchen.open():
        await until(lambda: len(calls) == 1)
        await until(lambda: look.scores("g:bad"))
        assert set(await look.scores("g:bad")) == set(ids)
        assert await look.client.sismember(keys.groups("default"), "bad")
        await kitchen.add("good", 7)
        await kitchen.has_served(3)
    assert sorted(kitchen.served) == [("bad", [1, 2]), ("good", [7])]
    gaps = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert len(calls) == 4
    assert min(gaps) > 0.25
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 3
    assert "group bad of queue default could not be aggregated" in errors[0]
    if how == "none":
        assert "digest() returned None" in errors[0]
    assert all(inspect.getcoroutinestate(one) == inspect.CORO_CLOSED for one in coroutines), "Python would warn of them"
    if how in ("nonsense", "coroutine"):
        assert "expected task.call(...) or several of them" in errors[0]


async def test_a_task_that_is_refused_keeps_the_members(
    kitchen: Kitchen, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    @kitchen.app.aggregate("*", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> Call[Any]:
        return kitchen.summary.using(task_id="taken").call(group, [1])

    await kitchen.app.enqueue("blocker", task_id="taken", delay=600)
    ids = await kitchen.add("g", 1)
    async with kitchen.open():
        await until(lambda: "its id is taken" in caplog.text)
        await look.client.zrem(keys.scheduled("default"), "taken")
        await look.client.zrem(keys.due("default"), "taken")
        await look.client.delete(keys.task("default", "taken"))
        await kitchen.has_served(1)
    assert await look.state(ids[0]) == "gone"


async def test_a_stale_set_of_another_group_does_not_bring_the_next_try_forward(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When members were given back, all groups of the queue are checked again; one that has failed waits on."""
    monkeypatch.setattr(aggregator, "backoff", lambda failures: 3600.0)
    kitchen, calls = Kitchen(app), []

    @app.aggregate("bad", grace=1, max_size=1)
    async def digest(group: str, jobs: list[Job]) -> Any:
        calls.append(group)
        raise RuntimeError("intentional failure")

    kitchen.aggregate("good", max_size=1)
    await kitchen.add("bad", 1)
    async with kitchen.open():
        await until(lambda: look.scores("g:bad") if calls else None, what="the members of the failed group")
        await kitchen.add("late", 2)
        name = keys.aggregation_set("default", "good", "75bf7014-b0cb-4bb1-aa40-608afbc41212")
        await look.client.rename(keys.group("default", "late"), name)
        await look.client.srem(keys.groups("default"), "late")
        await look.client.zadd(keys.aggregation_sets("default"), {name: 1})
        await kitchen.has_served(1)
        await pause(0.1, proves="the group that failed is not tried before its time")
    assert calls == ["bad"]


async def test_a_queue_that_cannot_be_checked_holds_up_no_other(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kitchen, refused = Kitchen(app), list[str]()
    kitchen.aggregate(max_size=1)
    for number, queue in enumerate(("one", "two"), 1):
        await kitchen.add("g", number, queue=queue)
    check = Groups.check

    async def check_but_one(self: Groups, rows: Any, **settings: Any) -> Any:
        results = await check(self, rows, **settings)
        if len(rows) == 2 and not refused:
            refused.append(rows[0][0])
            return [CommandRefused("not now"), *results[1:]]
        return results

    monkeypatch.setattr(Groups, "check", check_but_one)
    async with kitchen.open(queues=["one", "two", "default"]):
        await kitchen.has_served(2)
    assert f"cannot check the groups of queue {refused[0]}: not now" in caplog.text
    assert sorted(kitchen.served) == [("g", [1]), ("g", [2])]


async def test_bytes_that_are_no_message_are_archived(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate(max_size=3)
    bad, dangling, _ = await kitchen.add("g", 1, 2, 3)
    await look.client.hset(look.task(bad), "msg", b"\xff\xff")
    await look.client.delete(look.task(dangling))
    async with kitchen.open():
        await kitchen.has_served(1)
        await look.ends(bad, "archived")
    assert kitchen.served == [("g", [3])]
    fields = await look.fields(bad)
    assert fields["original"] == b"\xff\xff"
    assert decode_task(fields["msg"]).type == "undecodable"


async def test_a_set_of_unreadable_members_alone_calls_nobody(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate(max_size=1)
    (bad,) = await kitchen.add("g", 1)
    await look.client.hset(look.task(bad), "msg", b"\xff\xff")
    async with kitchen.open():
        await look.ends(bad, "archived")
        await pause(0.1, proves="nobody is called")
    assert kitchen.served == []
    assert await look.client.exists(keys.aggregation_sets("default")) == 0


async def test_expired_members_are_left_out(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate()
    (late,) = await kitchen.add("g", 1, expires=0.2)
    await kitchen.add("g", 2)
    expires_at = int((await look.fields(late))["expires_at"])

    async def is_over() -> bool:
        return await look.now_ms() > expires_at

    await until(is_over)
    async with kitchen.open():
        await kitchen.has_served(1)
        await until(lambda: nothing_is_left(look))
    assert kitchen.served == [("g", [2])]


async def test_a_worker_that_stops_gives_back_what_its_function_has_in_hand(
    kitchen: Kitchen, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veredus.worker.roles import aggregator

    monkeypatch.setattr(aggregator, "FINISH_SECONDS", 0.1)
    began = asyncio.Event()

    @kitchen.app.aggregate("*", grace=1, max_size=2)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        began.set()
        await forever()
        raise AssertionError

    ids = await kitchen.add("g", 1, 2)
    async with kitchen.open():
        await began.wait()
    assert set(await look.scores("g:g")) == set(ids)
    assert await look.client.exists(keys.aggregation_sets("default")) == 0


async def test_a_function_that_takes_too_long_loses_its_set(
    kitchen: Kitchen, look: Look, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from veredus.worker.roles import aggregator

    monkeypatch.setattr(aggregator, "SET_SECONDS", 3.0)
    monkeypatch.setattr(aggregator, "SPARE_SECONDS", 2.0)
    calls: list[int] = []

    @kitchen.app.aggregate("*", grace=1, max_size=1)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        calls.append(1)
        if len(calls) == 1:
            await forever()
        return kitchen.summary.call(group, [1])

    await kitchen.add("g", 1)
    async with kitchen.open():
        await kitchen.has_served(1)
    assert len(calls) == 2
    assert "TimeoutError" in caplog.text


async def test_an_app_without_aggregators_leaves_groups_and_sets_alone(app: App, look: Look) -> None:
    @app.task(name="t")
    def t() -> None: ...

    await t.using(group="g").enqueue()
    handle = await t.enqueue()
    async with app.worker():
        await look.ends(handle.id, "gone")
    assert await look.client.zcard(keys.group("default", "g")) == 1
