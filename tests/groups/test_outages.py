"""Redis goes away in the middle of an aggregation: replies are lost, sets are taken away; nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import pause, until
from veredus import App, Call, ConnectionLost, Job
from veredus.store.tasks.groups import Groups
from veredus.wire import keys


def lose_replies(monkeypatch: pytest.MonkeyPatch, verb: str, times: int) -> list[int]:
    """The first so many calls get through, but their replies do not."""
    real, lost = getattr(Groups, verb), [0]

    async def lossy(self: Groups, *args: Any, **kwargs: Any) -> Any:
        reply = await real(self, *args, **kwargs)
        if lost[0] < times:
            lost[0] += 1
            error = ConnectionLost("the reply was lost")
            if verb == "check":
                return [error] * len(reply)
            raise error
        return reply

    monkeypatch.setattr(Groups, verb, lossy)
    return lost


def summing_app(app: App, runs: list[int]) -> App:
    @app.task(name="s")
    def s(n: int) -> None:
        runs.append(n)

    @app.aggregate("*", grace=1, max_size=2)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        return s.call(sum(job.json() for job in jobs))

    return app


@VALKEY_ONLY
@pytest.mark.parametrize(("verb", "times"), [("check", 1), ("check", 2), ("aggregate", 1), ("aggregate", 3)])
async def test_a_lost_reply_costs_nothing(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch, verb: str, times: int
) -> None:
    """Without the same set id the members would stay in the first set until its two minutes are over."""
    lost = lose_replies(monkeypatch, verb, times)
    runs: list[int] = []
    for n in (1, 2):
        await app.enqueue("item", n, group="g")
    async with summing_app(app, runs).worker():
        await until(lambda: runs)
        await pause(0.3, proves="nothing runs twice")
    assert lost == [times]
    assert runs == [3]
    assert await look.client.exists(keys.aggregation_sets("default"), keys.groups("default")) == 0


@VALKEY_ONLY
async def test_a_lost_reply_of_read_is_a_failure_like_any_other(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_replies(monkeypatch, "read", 1)
    runs: list[int] = []
    for n in (1, 2):
        await app.enqueue("item", n, group="g")
    async with summing_app(app, runs).worker():
        await until(lambda: runs)
    assert runs == [3]


@VALKEY_ONLY
async def test_a_set_that_was_reclaimed_under_the_function_is_aggregated_once(
    app: App, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """A Go server may do that when the function outlives the set's two minutes."""
    runs: list[int] = []
    calls: list[int] = []

    @app.task(name="s")
    def s(n: int) -> None:
        runs.append(n)

    @app.aggregate("*", grace=1, max_size=2)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        calls.append(1)
        if len(calls) == 1:
            ((set_key, _),) = await look.client.zrange(keys.aggregation_sets("default"), 0, -1, withscores=True)
            await look.client.zunionstore(keys.group("default", group), [set_key])
            await look.client.sadd(keys.groups("default"), group)
            await look.client.delete(set_key)
            await look.client.zrem(keys.aggregation_sets("default"), set_key)
        return s.call(sum(job.json() for job in jobs))

    for n in (1, 2):
        await app.enqueue("item", n, group="g")
    async with app.worker():
        await until(lambda: runs)
        await pause(0.3, proves="nothing runs twice")
    assert (runs, len(calls)) == ([3], 2)
    assert "given back before its task was stored" in caplog.text


async def test_the_server_is_killed_and_comes_back(new_server: Callable[..., RealServer]) -> None:
    server = new_server("--appendonly", "yes", "--appendfsync", "always")
    app = App(server.url)
    runs: list[int] = []
    summing_app(app, runs)
    for n in range(10):
        await app.enqueue("item", n, group=f"g{n // 2}")
    entered, killed = asyncio.Event(), asyncio.Event()
    real = app.aggregations[0].function

    async def slow(group: str, jobs: list[Job]) -> Any:
        entered.set()
        await killed.wait()
        return await real(group, jobs)

    object.__setattr__(app.aggregations[0], "function", slow)
    async with app.worker():
        await entered.wait()
        await asyncio.to_thread(server.kill)
        killed.set()
        await pause(1.0, proves="no member is given up while the server is away")
        await asyncio.to_thread(server.start)
        await until(lambda: sum(runs) >= sum(range(10)))
        await pause(0.3, proves="nothing runs twice")
    await app.close()
    assert sorted(runs) == [1, 5, 9, 13, 17]


@VALKEY_ONLY
async def test_many_stale_sets_are_given_back_in_portions(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veredus.store.tasks import groups

    monkeypatch.setattr(groups, "RECLAIM_LIMIT", 7)
    runs: list[int] = []
    for n in range(40):
        await app.enqueue("item", n, group=f"g{n % 5}")
    for n in range(5):
        name = keys.aggregation_set("default", f"g{n}", "75bf7014-b0cb-4bb1-aa40-608afbc41212")
        await look.client.rename(keys.group("default", f"g{n}"), name)
        await look.client.srem(keys.groups("default"), f"g{n}")
        await look.client.zadd(keys.aggregation_sets("default"), {name: 1})
    async with summing_app(app, runs).worker():
        await until(lambda: sum(runs) >= sum(range(40)))
    assert sum(runs) == sum(range(40))
    assert len(runs) == 20


@VALKEY_ONLY
async def test_what_could_not_be_given_back_goes_back_when_redis_is_there_again(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after the set's two minutes."""
    lose_replies(monkeypatch, "read", 1)
    real, away = Groups.give_back, [3]

    async def unreachable(self: Groups, *args: Any) -> int:
        if away[0]:
            away[0] -= 1
            raise ConnectionLost("away")
        return await real(self, *args)

    monkeypatch.setattr(Groups, "give_back", unreachable)
    runs: list[int] = []
    for n in (1, 2):
        await app.enqueue("item", n, group="g")
    async with summing_app(app, runs).worker():
        await until(lambda: runs)
    assert (runs, away) == ([3], [0])
