"""`app.test()`: behaves like a worker, by the test's clock."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, pause
from veredus import App, ConfigError, Job, Limit, TaskFailed, current
from veredus.client.call import Call

START = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture
def app() -> App:
    return App()


async def test_nothing_runs_by_itself_and_nothing_is_left(app: App) -> None:
    seen: list[int] = []

    @app.task
    async def work(number: int) -> None:
        seen.append(number)

    async with app.test() as q:
        await work.enqueue(1)
        await pause(0.05, proves="nothing runs by itself")
        assert seen == []
        assert await q.count("pending") == 1
        await q.drain()
        assert seen == [1]
        assert await q.count("pending") == 0
        await work.enqueue(2)
    async with app.test() as q:
        assert await q.drain() == []
        assert q.sent == []


async def test_arguments_go_through_the_wire(app: App) -> None:
    kinds: list[type] = []

    @app.task
    async def work(when: datetime, names: tuple[str, ...]) -> None:
        kinds.extend((type(when), type(names)))

    @app.task(name="strict")
    async def strict(number: int) -> None:
        raise AssertionError("never called")

    async with app.test() as q:
        await work.enqueue(START, ("a", "b"))
        await app.enqueue("strict", b'{"number":"seven"}')
        runs = await q.drain()
    assert kinds == [datetime, tuple]
    assert [run.action for run in runs] == ["done", "retry"]


async def test_delays_retries_and_their_order(app: App) -> None:
    order: list[tuple[str, timedelta]] = []

    @app.task(max_retry=2, retry_delay=lambda retried, error, job: 10 * (retried + 1))
    async def flaky() -> None:
        order.append(("flaky", q.now - START))
        raise OSError("no")

    @app.task
    def later(name: str) -> None:
        order.append((name, q.now - START))

    async with app.test(start=START) as q:
        await flaky.enqueue()
        await later.using(delay=10.25).enqueue("ten")
        await later.using(at=START + timedelta(seconds=5)).enqueue("five")
        await q.advance(60)
    seconds = [(name, passed.total_seconds()) for name, passed in order]
    assert seconds == [("flaky", 0), ("five", 5), ("flaky", 10), ("ten", 10.25), ("flaky", 30)]
    assert [run.attempt for run in q.runs if run.type.endswith("flaky")] == [1, 2, 3]


async def test_without_a_worker_time_passes_and_everything_waits(app: App) -> None:
    @app.task
    async def work() -> datetime:
        return q.now

    async with app.test(start=START) as q:
        handle = await work.using(delay=10).enqueue()
        assert await q.advance(100, work=False) == []
        await q.drain()
        assert await handle.result() == START + timedelta(seconds=100)


async def test_schedules_fire_on_the_way(app: App) -> None:
    @app.cron("*/15 * * * *")
    async def quarter() -> None: ...

    async with app.test(start=START) as q:
        runs = await q.advance(timedelta(hours=1))
        assert [run.at.minute for run in runs] == [15, 30, 45, 0]
        assert await q.run_all() == []


async def test_unique_locks_and_results_age(app: App) -> None:
    @app.task(unique_for=60)
    async def work() -> str:
        return "value"

    async with app.test() as q:
        first = await work.enqueue()
        assert not (await work.enqueue()).created
        assert [one.created for one in q.sent] == [True, False]
        await q.drain()
        assert await first.result() == "value"
        assert (await work.enqueue()).created
        await q.advance(timedelta(minutes=11))
        assert (await first.status()).state == "gone"


async def test_groups_ripen(app: App) -> None:
    @app.task
    async def note(text: str) -> None: ...

    @app.task
    async def digest(texts: list[str]) -> None: ...

    @app.aggregate("notes", grace=5)
    def make(group: str, jobs: list[Job]) -> Call[None]:
        return digest.call([job.payload.decode() for job in jobs])

    async with app.test(start=START) as q:
        for text in "ab":
            await note.using(group="notes").enqueue(text)
        assert await q.drain() == []
        [run] = await q.advance(10)
        assert len(run.arguments["texts"]) == 2
        assert 5 <= (run.at - START).total_seconds() <= 6


async def test_limits_and_order_keys_hold(app: App) -> None:
    order: list[tuple[int, float]] = []

    @app.task(limit=Limit(rate="1/10s"))
    async def slow(number: int) -> None:
        order.append((number, (q.now - START).total_seconds()))

    @app.task(name="lane", max_retry=1, retry_delay=3)
    async def lane(number: int) -> None:
        order.append((number, (q.now - START).total_seconds()))
        if number == 10 and current().attempt == 1:
            raise OSError("once")

    async with app.test(start=START) as q:
        for number in (10, 11):
            await lane.using(order_key="k").enqueue(number)
        await q.run_all()
        assert order == [(10, 0), (10, 3), (11, 3)]
        order.clear()
        for number in range(3):
            await slow.enqueue(number)
        await q.run_all()
    assert sorted(number for number, _ in order) == [0, 1, 2]
    assert order[2][1] - order[0][1] >= 20


async def test_lifespan_middleware_threads_and_waiting_for_each_other() -> None:
    @asynccontextmanager
    async def lifespan(app: App):  # type: ignore[no-untyped-def]
        yield "open"

    app = App(lifespan=lifespan)
    through: list[str] = []

    @app.middleware
    async def count(job, call_next):  # type: ignore[no-untyped-def]
        through.append(job.type)
        return await call_next(job)

    @app.task(name="inner")
    def inner() -> str:
        return str(app.state)

    @app.task(name="outer")
    async def outer() -> str:
        return "saw " + await (await inner.enqueue()).result(timeout=PATIENCE)

    async with app.test(concurrency=2) as q:
        handle = await outer.enqueue()
        await q.drain(raises=True)
        assert await handle.result() == "saw open"
    assert sorted(through) == ["inner", "outer"]
    assert app.state is None


async def test_errors_come_out_where_they_are_wanted(app: App) -> None:
    @app.task(max_retry=0)
    async def work() -> None:
        raise KeyError("gone")

    async with app.test() as q:
        handle = await work.enqueue()
        with pytest.raises(KeyError):
            await q.drain(raises=True)
        with pytest.raises(TaskFailed, match="gone"):
            await handle.result()


async def test_a_result_that_cannot_be_stored_is_a_failure(app: App) -> None:
    @app.task(name="t", max_retry=3)
    def broken() -> Any:
        return asyncio.sleep(0)

    async with app.test() as t:
        await broken.enqueue()
        await t.drain()
        [run] = t.runs
    assert run.action == "archive"
    assert str(run.error) == "the handler of t returned a coroutine: declare it with async def, or await the coroutine"


async def test_what_was_sent_is_told(app: App) -> None:
    @app.task(queue="mail", name="mail")
    async def mail(to: str, copy: bool = False) -> None: ...

    async with app.test() as q:
        await mail.enqueue("a")
        await app.enqueue_many(mail.using(delay=5).call("b", copy=True) for _ in range(2))
        mail_sent = q.assert_enqueued(mail.call(copy=True, to="b"), delay=5, times=2)
        assert mail_sent.arguments == {"to": "b", "copy": True}
        assert mail_sent.queue == "mail"
        q.assert_enqueued("mail", times=3, queue="mail")
        q.assert_not_enqueued(mail.call("c"))
        with pytest.raises(AssertionError, match=r"mail \{'to': 'c'\} was not enqueued\n  sent mail \{'to': 'a'\}"):
            q.assert_enqueued(mail.call("c"))
        with pytest.raises(AssertionError, match="was enqueued 1 times, not 2"):
            q.assert_enqueued(mail.call("a"), times=2)
        with pytest.raises(AssertionError, match="was enqueued 3 times"):
            q.assert_not_enqueued("mail")
        with pytest.raises(ConfigError, match="did you mean 'delay'"):
            q.assert_enqueued(mail, delai=5)  # type: ignore[call-arg]


async def test_on_a_given_server_that_must_be_empty(app: App, server: RealServer) -> None:
    @app.task
    async def work() -> None: ...

    async with app.test(url=server.url) as q:
        await work.using(delay=60).enqueue()
        assert server.client().dbsize() > 0
        assert len(await q.advance(60)) == 1
    assert server.client().dbsize() == 0
    server.client().set("mine", 1)
    with pytest.raises(ConfigError, match="an empty database"):
        await app.test(url=server.url).__aenter__()
    assert server.client().get("mine") == b"1"


async def test_the_app_is_as_before_afterwards(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    @app.task
    async def work() -> None: ...

    async with app.test() as q:
        await work.enqueue()
        with pytest.raises(ConfigError, match="one at a time"):
            await app.test().__aenter__()
        assert valkey_server.client().dbsize() == 0
    await work.enqueue()
    assert valkey_server.client().dbsize() > 0
    assert len(q.sent) == 1
    assert app.send_middlewares == []
    await app.close()
    with pytest.raises(ConfigError, match="aware datetime"):
        app.test(start=datetime(2030, 1, 1))  # noqa: DTZ001


def test_blocking(app: App) -> None:
    @app.task
    async def work(number: int) -> int:
        return number + 1

    with app.test() as q:
        handle = work.using(delay=30).enqueue_sync(1)
        assert q.drain() == []
        assert q.count("scheduled") == 1
        q.advance(30)
        assert handle.result_sync() == 2
        assert q.run_all() == []
        assert "ran" in str(q)
    app.close_sync()


far_away = App()


@far_away.task(name="square", run_in="process")
def square(number: int) -> int:
    return number * number


@far_away.task(name="slow")
async def slow() -> None:
    await current().progress(0.5, "half")


async def test_handlers_in_processes_and_progress() -> None:
    async with far_away.test() as q:
        handle, slowly = await square.enqueue(7), await slow.enqueue()
        await q.drain(raises=True)
        assert await handle.result() == 49
        assert [run.action for run in q.runs] == ["complete", "done"]
        assert (await slowly.status()).state == "gone"


async def test_a_paused_queue_does_not_hold_up_time(app: App) -> None:
    @app.task
    async def work() -> None: ...

    async with app.test() as q:
        await work.enqueue()
        await app.inspector().pause("default")
        assert await q.advance(3600) == []
        await app.inspector().resume("default")
        assert len(await q.drain()) == 1


def test_how_often_is_at_least_once(app: App) -> None:
    with app.test() as q, pytest.raises(ConfigError, match="assert_not_enqueued"):
        q.assert_enqueued("any", times=0)


async def test_time_passes_until_a_limit_of_the_queue_has_room(app: App) -> None:
    app.limit("default", Limit(rate="1/10s"))

    @app.task
    async def work() -> None: ...

    async with app.test(start=START) as q:
        for _ in range(3):
            await work.enqueue()
        runs = await q.advance(60)
    assert [(run.at - START).total_seconds() for run in runs] == [0, 10, 20]


async def test_run_all_says_when_tasks_wait_for_longer_than_anybody_would(app: App) -> None:
    @app.task
    async def work() -> None: ...

    async with app.test() as q:
        await work.using(delay=3600).enqueue()
        with pytest.raises(AssertionError, match="tasks still wait after 60"):
            await q.run_all(within=60)
        assert [run.action for run in await q.run_all(within=3600)] == ["done"]


async def test_a_call_is_recognized_however_its_payload_was_written(app: App) -> None:
    @app.task(name="work")
    async def work(number: int, name: str) -> None: ...

    async with app.test() as q:
        await app.enqueue("work", b'{"name": "x",\n "number": 1}')
        q.assert_enqueued(work.call(1, "x"))
        q.assert_not_enqueued(work.call(2, "x"))


async def test_what_expires_ages_in_small_steps_too(app: App) -> None:
    async with app.test() as q:
        redis = app.open_redis()
        await redis.command("SET", "asynq:{q}:unique:x", "1", "PX", 60_000, key="")
        for _ in range(3):
            await q.advance(15)
            assert await redis.command("EXISTS", "asynq:{q}:unique:x", key="") == 1
        await q.advance(15)
        assert await redis.command("EXISTS", "asynq:{q}:unique:x", key="") == 0
        await redis.close()
