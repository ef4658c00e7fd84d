"""A worker with aggregators: groups become tasks by grace, age and size, through functions of every kind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.groups.kitchen import Kitchen, nothing_is_left
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Call, Depends, Job
from veredus.events import Aggregated
from veredus.store.tasks.groups import Groups
from veredus.wire import keys
from veredus.worker.roles.aggregator import IN_FLIGHT

pytestmark = VALKEY_ONLY


async def test_by_grace(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate()
    events: list[Any] = []
    async with kitchen.open() as worker:
        worker.bus.subscribe(events.append)
        await kitchen.add("g", 1, 2)
        await kitchen.add("g", 3)
        await kitchen.has_served(3)
        await until(lambda: nothing_is_left(look))
    assert kitchen.served == [("g", [1, 2, 3])]
    aggregated = [event for event in events if isinstance(event, Aggregated)]
    assert [(event.queue, event.group, event.members) for event in aggregated] == [("default", "g", 3)]


async def test_a_group_that_keeps_growing_waits_until_its_oldest_is_too_old(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate(grace=5, max_delay=2)
    began = time.monotonic()
    async with kitchen.open():
        n = 0
        while not kitchen.served:
            await kitchen.add("g", n)
            n += 1
            await asyncio.sleep(0.04)  # far below the grace
            assert time.monotonic() - began < PATIENCE
    assert time.monotonic() - began > 0.9
    assert kitchen.served[0][1] == list(range(len(kitchen.served[0][1])))


async def test_by_size_in_the_order_of_arrival(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate(grace=60, max_size=10)
    async with kitchen.open():
        await kitchen.add("g", *range(95))
        await kitchen.has_served(90)
        await pause(0.3, proves="the last five wait on")
    assert sorted(kitchen.served) == [("g", list(range(n, n + 10))) for n in range(0, 90, 10)]
    assert len(await look.scores("g:g")) == 5


async def test_many_ripe_groups_at_once(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate(grace=1)
    for n in range(40):
        await kitchen.add(f"g{n}", n, n + 1000)
    async with kitchen.open():
        await kitchen.has_served(80)
        await until(lambda: nothing_is_left(look))
    assert sorted(kitchen.served) == sorted((f"g{n}", [n, n + 1000]) for n in range(40))


async def test_ripe_groups_of_more_queues_than_are_asked_at_once(kitchen: Kitchen) -> None:
    queues = {f"q{n}": 1 for n in range(IN_FLIGHT + 1)}
    kitchen.aggregate(grace=60, max_size=1)
    for queue in queues:
        await kitchen.add("g", 1, queue=queue)
    async with kitchen.open(queues={**queues, "default": 1}):  # all of them are due at the first look
        await kitchen.has_served(len(queues))
    assert kitchen.served == [("g", [1])] * len(queues)


async def test_a_group_that_waits_is_not_asked_about_again_and_again(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for which no set was free is: at the next chance."""
    check, calls = Groups.check, []

    async def counted(self: Groups, *args: Any, **settings: Any) -> Any:
        calls.append(args)
        return await check(self, *args, **settings)

    monkeypatch.setattr(Groups, "check", counted)
    kitchen.aggregate("a slow one", grace=60)
    kitchen.aggregate("ripe*", grace=60, max_size=1)
    for group in ("a slow one", *(f"ripe{n}" for n in range(3 * IN_FLIGHT))):
        await kitchen.add(group, 1)
    async with kitchen.open():
        await kitchen.has_served(3 * IN_FLIGHT)
        done = len(calls)
        await pause(0.2, proves="nobody asks before a time that was given")
    assert len(calls) <= done + 1
    assert done <= 3 * IN_FLIGHT + 5


async def test_each_group_has_its_own_settings(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate("fast:*", grace=1)
    kitchen.aggregate("slow:*", grace=60)
    kitchen.aggregate("slow:1", grace=60, max_size=1)
    async with kitchen.open():
        for name in ("fast:1", "slow:1", "slow:2", "nobody's"):
            await kitchen.add(name, 1)
        await kitchen.has_served(2)
        await pause(0.2, proves="the others wait on")
    assert sorted(kitchen.served) == [("fast:1", [1]), ("slow:1", [1])]
    assert await look.client.smembers(keys.groups("default")) == {b"slow:2", b"nobody's"}


async def test_at_most_three_at_once_and_of_one_group_only_one(app: App, look: Look) -> None:
    running: list[str] = []
    most: list[int] = []

    @app.task(name="s")
    def s() -> None: ...

    @app.aggregate("*", grace=1, max_size=1)
    async def digest(group: str, jobs: list[Job]) -> Call[Any]:
        assert group not in running
        running.append(group)
        most.append(len(running))
        await asyncio.sleep(0.04)
        running.remove(group)
        return s.call()

    for n in range(30):
        await app.enqueue("item", n, group=f"g{n % 5}")
    async with app.worker():
        await until(lambda: nothing_is_left(look))
    assert (len(most), max(most)) == (30, 3)


# What a function may be and return.


async def test_threads_coroutines_generators_and_dependencies(app: App, look: Look) -> None:
    ran: list[str] = []
    threads: list[str] = []

    @app.task(name="s")
    def s(text: str) -> None:
        ran.append(text)

    def prefix() -> str:
        return ">"

    @app.aggregate("thread", grace=1, max_size=1)
    def in_thread(group: str, jobs: list[Job], mark: str = Depends(prefix)) -> Call[Any]:
        threads.append(threading.current_thread().name)
        return s.call(mark + group)

    @app.aggregate("loop", grace=1, max_size=1)
    async def on_loop(group: str, jobs: list[Job]) -> list[Call[Any]]:
        threads.append(threading.current_thread().name)
        return [s.call("loop1"), s.call("loop2")]

    @app.aggregate("generator", grace=1, max_size=1)
    def yielding(group: str, jobs: list[Job]) -> Iterator[Call[Any]]:
        threads.append(threading.current_thread().name)
        yield s.call("yield1")
        yield s.call("yield2")

    @app.aggregate("async generator", grace=1, max_size=1)
    async def yielding_too(group: str, jobs: list[Job]) -> AsyncIterator[Call[Any]]:
        yield s.call("ayield")

    @app.aggregate("dropped", grace=1, max_size=1)
    def dropping(group: str, jobs: list[Job]) -> list[Call[Any]]:
        return []

    for name in ("thread", "loop", "generator", "async generator", "dropped"):
        await app.enqueue("item", 1, group=name)
    async with app.worker():
        await until(lambda: len(ran) == 6)
        await until(lambda: nothing_is_left(look))
    assert sorted(ran) == [">thread", "ayield", "loop1", "loop2", "yield1", "yield2"]
    assert threads.count("MainThread") == 1


@dataclass
class Line:
    user: int
    text: str


async def test_typed_members_and_those_that_do_not_fit(app: App, look: Look) -> None:
    got: list[Line] = []

    @app.task(name="line")
    def line(user: int, text: str) -> None: ...

    @app.task(name="s")
    def s() -> None: ...

    @app.aggregate("*", grace=1, max_size=4)
    def digest(group: str, lines: list[Line]) -> Call[Any]:
        got.extend(lines)
        return s.call()

    grouped = line.using(group="g")
    await grouped.enqueue(1, "one")
    bad = await app.enqueue("line", b'{"user":"x"}', group="g", unique_for=60, max_retry=0)
    await app.enqueue("line", b'{"user":2.0,"text":"two","added":null}', group="g")
    junk = await app.enqueue("line", b"not json", group="g", max_retry=0)
    async with app.worker():
        await until(lambda: len(got) == 2)
        message = await look.ends(bad.id, "archived")
        await look.ends(junk.id, "archived")
    assert got == [Line(1, "one"), Line(2, "two")]
    assert message is not None
    assert message.error_msg.startswith("PayloadError: payload does not fit: ")
    assert await look.client.keys("asynq:{default}:unique:*") == []
    assert set(await look.scores("archived")) == {bad.id, junk.id}


async def test_a_member_that_does_not_fit_is_retried_and_joins_its_group_again(url: str, app: App, look: Look) -> None:
    """As during a deployment: a worker whose aggregator can read it takes it into its next set."""
    newer = App(url)
    got: list[dict[str, Any]] = []

    def old(group: str, lines: list[Line]) -> list[Any]:
        return []

    def new(group: str, lines: list[dict[str, Any]]) -> list[Any]:
        got.extend(lines)
        return []

    @app.handler("line", retry_delay=1.2)
    async def line(job: Job) -> None: ...

    app.aggregate("*", grace=1, max_size=2)(old)
    newer.aggregate("*", grace=1, max_size=1)(new)
    misfit = await app.enqueue("line", b'{"user":"x"}', group="g", unique_for=60)
    await app.enqueue("line", b'{"user":1,"text":"one"}', group="g")
    async with app.worker():
        message = await look.ends(misfit.id, "retry")
    assert message is not None
    assert message.error_msg.startswith("PayloadError: payload does not fit: ")
    assert (message.retried, message.retry) == (1, 25)
    assert len(await look.client.keys("asynq:{default}:unique:*")) == 1
    assert await look.client.exists(keys.aggregation_sets("default")) == 0
    async with newer.worker():
        await until(lambda: got == [{"user": "x"}])
        await until(lambda: nothing_is_left(look))
    await newer.close()


async def test_the_task_goes_into_the_queue_of_its_group_with_its_options(app: App, look: Look) -> None:
    @app.task(name="s", queue="elsewhere", retention=60, max_retry=7, unique_for=60)
    def s(n: int) -> None: ...

    @app.aggregate("*", queue="mail", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> list[Call[Any]]:
        return [s.call(1), s.using(delay=60, unique_for=None).call(2), s.using(task_id="own", unique_for=None).call(3)]

    mail = look.of("mail")
    await app.enqueue("item", 1, group="g", queue="mail")
    async with app.worker({"mail": 1}):
        await mail.ends("own", "completed")
        await until(lambda: mail.scores("scheduled"))
        late = next(iter(await mail.scores("scheduled")))
    assert (await mail.message("own")).queue == "mail"
    assert (await mail.message(late)).retry == 7
    assert await look.client.keys("asynq:{elsewhere}:*") == []


async def test_an_aggregated_task_may_join_another_group(kitchen: Kitchen, look: Look) -> None:
    kitchen.aggregate("all", grace=1, max_size=2)

    @kitchen.app.aggregate("part:*", grace=1, max_size=2)
    def part(group: str, jobs: list[Job]) -> Call[Any]:
        return kitchen.item.using(group="all").call(sum(job.json()["n"] for job in jobs))

    await kitchen.add("part:1", 1, 2)
    await kitchen.add("part:2", 3, 4)
    async with kitchen.open():
        await kitchen.has_served(2)
    assert [(group, sorted(members)) for group, members in kitchen.served] == [("all", [3, 7])]
