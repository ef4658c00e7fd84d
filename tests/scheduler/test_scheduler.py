"""A running scheduler: ticks become tasks, gaps are caught up, providers are followed, and others can see it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.keyspace import check_invariant
from tests.support.servers import RealServer
from tests.support.waiting import pause, until
from veredus import App, Entry, current
from veredus.scheduler.schedule_state import ScheduleState
from veredus.scheduler.scheduler import LEASE
from veredus.store.tasks.schedules import Position
from veredus.wire import keys
from veredus.wire.schedules import decode_entry, decode_event


async def ticks(client: Any, entry: Entry) -> list[int]:
    """The ticks whose tasks are pending, in their order."""
    ids = [item.decode() for item in reversed(await client.lrange(keys.pending(entry.queue), 0, -1))]
    return [int(task_id.rpartition(":")[2]) for task_id in ids if task_id.startswith(entry.id)]


async def stand(client: Any, entry: Entry, seconds_ago: int) -> int:
    """Make it look as if the last tick was so long ago; returns that second."""
    at = int((await client.time())[0]) - seconds_ago
    await client.hset(keys.cron(entry.queue, entry.id), mapping={"at": at, "fired": at})
    return at


async def test_each_tick_becomes_a_task_at_its_second(app: App, redis_client: Any) -> None:
    entry = app.schedule("@every 1s", app.call("go:tick", {"a": 1}, queue="low", retention=60, headers={"k": "v"}))
    async with app.scheduler():
        await until(lambda: redis_client.llen(keys.pending("low")))
        found = await until(lambda: _at_least(redis_client, entry, 2))
        await until(lambda: _in_time(redis_client, entry), what="a tick that no busy machine has made late")
    first = found[0]
    assert found[:2] == [first, first + 1]
    assert min(await _lateness(redis_client, entry)) >= 0
    assert await redis_client.smembers(keys.QUEUES) == {b"low"}
    assert await check_invariant(redis_client) == []


async def _lateness(client: Any, entry: Entry) -> list[float]:
    """Of the tasks that are pending, in seconds."""
    found = await ticks(client, entry)
    rows = [await client.hget(keys.task(entry.queue, entry.task_id(tick)), "pending_since") for tick in found]
    return [int(since) / 1e9 - tick for tick, since in zip(found, rows, strict=True)]


async def _in_time(client: Any, entry: Entry) -> bool:
    return min(await _lateness(client, entry)) < 0.5


async def _at_least(client: Any, entry: Entry, count: int) -> list[int]:
    found = await ticks(client, entry)
    return found if len(found) >= count else []


async def test_a_worker_fires_and_runs_its_schedules(app: App, redis_client: Any) -> None:
    ran: asyncio.Queue[str] = asyncio.Queue()

    @app.cron("@every 1s")
    async def beat() -> None:
        ran.put_nowait(current().id)

    async with app.worker():
        first, second = await ran.get(), await ran.get()
    (entry,) = app.schedules.entries.values()
    at = int(first.rpartition(":")[2])
    assert (first, second) == (entry.task_id(at), entry.task_id(at + 1))
    assert await redis_client.keys("asynq:veredus:*") == []
    assert await redis_client.keys("asynq:schedulers*") == []


@pytest.mark.parametrize("settings", [{"scheduler": False}, {"burst": True}])
async def test_a_worker_can_leave_the_schedules_to_others(
    app: App, redis_client: Any, settings: dict[str, Any]
) -> None:
    @app.cron("@every 1s")
    async def beat() -> None: ...

    async with app.worker(**settings) as worker:
        assert worker._roles.scheduler is None
    assert await redis_client.keys("asynq:veredus:*") == []


@pytest.mark.parametrize(("missed", "expected"), [("all", [100, 200, 300]), ("once", [300]), ("skip", [])])
async def test_after_a_gap(app: App, redis_client: Any, missed: Any, expected: list[int]) -> None:
    entry = app.schedule("@every 100s", app.call("t"), missed=missed)
    upcoming = app.schedule("@every 1s", app.call("t"))
    at = await stand(redis_client, entry, 350)
    async with app.scheduler(lease=1.0):
        await until(lambda: _at_least(redis_client, upcoming, 1))
    assert await ticks(redis_client, entry) == [at + seconds for seconds in expected]


async def test_a_gap_that_is_too_long_is_told(app: App, redis_client: Any, caplog: pytest.LogCaptureFixture) -> None:
    entry = app.schedule("@every 1m", app.call("t"))
    at = await stand(redis_client, entry, 60 * 1000 + 30)
    async with app.scheduler():
        found = await until(lambda: _at_least(redis_client, entry, 100))
    assert found == [at + 60 * n for n in range(901, 1001)]
    assert "missed too many ticks" in caplog.text


async def test_a_new_entry_starts_from_now(app: App, redis_client: Any) -> None:
    entry = app.schedule("@every 1s", app.call("t"))
    began = int((await redis_client.time())[0])
    async with app.scheduler():
        found = await until(lambda: _at_least(redis_client, entry, 1))
    assert began < found[0] <= (await redis_client.time())[0]


async def test_two_leaders_fire_nothing_twice(app: App, redis_client: Any) -> None:
    entry = app.schedule("@every 1s", app.call("t", queue="q"))
    at = await stand(redis_client, entry, 50)
    async with app.scheduler(lease=60), app.scheduler(lease=60) as other:
        scheduler = other.scheduler
        assert scheduler is not None
        scheduler._scope = "another"  # as if the lease did not hold
        scheduler._renew_at = 0.0
        scheduler.wake()
        await until(lambda: scheduler.leads)
        found = await until(lambda: _at_least(redis_client, entry, 52))
    assert found == list(range(at + 1, at + 1 + len(found)))


async def test_entries_and_history_are_shown_to_the_go_tools(app: App, redis_client: Any) -> None:
    every = app.schedule("@every 1s", app.call("report:daily", {"r": 1}, queue="reports", max_retry=7))
    never = app.schedule("0 0 30 2 *", app.call("never"), tz="Europe/Paris")
    service = app.scheduler(beat=0.2)
    async with service:
        await until(lambda: _at_least(redis_client, every, 2))
        assert service.scheduler is not None
        own = keys.scheduler_entries(*service.scheduler.identity)
        assert await redis_client.zscore(keys.SCHEDULERS, own) > time.time() - 5

        async def shown() -> Any:
            rows = [decode_entry(data) for data in await redis_client.lrange(own, 0, -1)]
            return rows if rows[-1].previous_at else None

        unmatched, shown_entry = await until(shown)
    assert (unmatched.id, unmatched.spec) == (never.id, "CRON_TZ=Europe/Paris 0 0 30 2 *")
    assert (unmatched.next_at, unmatched.previous_at) == (None, None)
    assert (shown_entry.id, shown_entry.spec, shown_entry.task_payload) == (every.id, "@every 1s", b'{"r":1}')
    assert shown_entry.enqueue_options == ("MaxRetry(7)", 'Queue("reports")')
    assert shown_entry.next_at == shown_entry.previous_at + 1
    events = [decode_event(data) for data in await redis_client.zrange(keys.scheduler_history(every.id), 0, -1)]
    assert [event.task_id for event in events] == [every.task_id(t) for t in await ticks(redis_client, every)]
    assert await redis_client.keys("asynq:schedulers*") == []


async def test_what_is_shown_follows_soon_after_a_tick(app: App, redis_client: Any) -> None:
    """Or the next tick would be shown in the past, until the next record after ten seconds."""
    every = app.schedule("@every 2s", app.call("report:daily", queue="reports"))
    service = app.scheduler(beat=3600)
    async with service:
        assert service.scheduler is not None
        own = keys.scheduler_entries(*service.scheduler.identity)
        found = await until(lambda: _at_least(redis_client, every, 2))

        async def shown() -> bool:
            (row,) = [decode_entry(data) for data in await redis_client.lrange(own, 0, -1)]
            last, following = row.previous_at or 0, row.next_at or 0
            return last >= found[-1] and following >= last + 2

        await until(shown, what="the record after the tick")


async def test_a_provider_is_followed(app: App, redis_client: Any, caplog: pytest.LogCaptureFixture) -> None:
    kept = Entry("@every 1s", app.call("kept"))
    removed = Entry("@every 1s", app.call("removed"))
    added = Entry("@every 1s", app.call("added"))
    answers: list[list[Entry] | Exception] = [
        [kept, removed],
        RuntimeError("no database"),
        RuntimeError("still none"),
        [kept, added],
    ]
    asked = 0

    async def provider() -> list[Entry]:
        nonlocal asked
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    app.schedule_provider(provider, interval=0.7)
    async with app.scheduler():
        await until(lambda: _at_least(redis_client, removed, 1))
        await until(lambda: asked >= 3)
        assert await redis_client.exists(keys.cron("default", removed.id))
        await until(lambda: _at_least(redis_client, added, 1))
        assert not await redis_client.exists(keys.cron("default", removed.id))
        before = await ticks(redis_client, removed)
        await until(lambda: _at_least(redis_client, added, 2))
        assert await ticks(redis_client, removed) == before
    found = await ticks(redis_client, kept)
    assert found == list(range(found[0], found[0] + len(found)))
    assert caplog.text.count("no database") + caplog.text.count("still none") == 1


async def test_a_plain_provider_runs_in_a_thread_and_may_be_a_generator(app: App, redis_client: Any) -> None:
    entry = Entry("@every 1s", app.call("t"))

    def provider() -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        yield entry
        yield entry

    app.schedule_provider(provider)
    async with app.scheduler():
        await until(lambda: _at_least(redis_client, entry, 1))


async def test_one_bad_entry_does_not_stop_the_others(
    app: App, redis_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad = app.schedule("@every 1s", app.call("bad", queue="bad"))
    damaged = app.schedule("@every 1s", app.call("damaged"))
    good = app.schedule("@every 1s", app.call("good"))
    await redis_client.set(keys.pending("bad"), "not a list")
    await redis_client.set(keys.cron("default", damaged.id), "not a hash")
    async with app.scheduler():
        found = await until(lambda: _at_least(redis_client, good, 3))
    assert found == list(range(found[0], found[0] + len(found)))
    assert caplog.text.count("of bad cannot be enqueued") == 1
    assert caplog.text.count("of damaged cannot be enqueued") == 1
    assert await redis_client.hget(keys.cron("bad", bad.id), "fired") is None


async def test_an_outage_is_waited_through_and_caught_up(
    new_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server("--appendonly", "yes", "--appendfsync", "always")
    app = App(server.url)
    entry = app.schedule("@every 1s", app.call("t", queue="q"))

    def found() -> list[int]:
        with server.client() as client:
            ids = [item.decode() for item in reversed(client.lrange(keys.pending("q"), 0, -1))]
        return [int(task_id.rpartition(":")[2]) for task_id in ids]

    caplog.set_level(logging.WARNING)
    async with app.scheduler(lease=1.0):
        await until(found)
        server.kill()
        await until(lambda: "schedules wait for Redis" in caplog.text)
        await pause(1.5, proves="the ticks of an outage are not lost")
        server.start()
        await until(lambda: "schedules go on after" in caplog.text)
        count = len(found())
        await until(lambda: len(found()) > count)
    ticks = found()
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    assert caplog.text.count("schedules wait for Redis") == 1
    assert entry.id


async def test_an_idle_scheduler_asks_for_little(app: App, redis_client: Any) -> None:
    """A follower sleeps until the leader's lease would end; a leader renews three times per lease."""
    app.schedule("@yearly", app.call("t"))
    async with app.scheduler() as leader, app.scheduler() as follower:
        await until(lambda: leader.scheduler.leads or follower.scheduler.leads)  # type: ignore[union-attr]
        await until(lambda: redis_client.exists(keys.SCHEDULERS))
        began = time.monotonic()
        before = (await redis_client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]
        await pause(3.0, proves="nobody asks again and again")
        after = (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - before <= 2 + (time.monotonic() - began)


async def test_a_clock_that_is_ahead_fires_nothing_early_and_is_put_right(app: App, redis_client: Any) -> None:
    entry = app.schedule("@every 1h", app.call("t"))
    scheduler = app.scheduler_on(app._client())
    await scheduler.step()
    scheduler._clock.ahead += 7200
    await scheduler.step()
    assert await ticks(redis_client, entry) == []
    assert abs(scheduler._clock.time() - time.time()) < 600
    await scheduler.leave()


def test_a_tick_that_another_leader_fired_is_not_shown_as_ours(app: App) -> None:
    line = ScheduleState(Entry("@every 1m", app.call("t")))
    line.begin(Position(600, 540), 610, 6)
    line.move(660, fired=False)
    assert (line.fired, line.next_tick) == (540, 720)
    line.move(720, fired=True)
    assert (line.fired, line.next_tick) == (720, 780)


async def test_a_leader_renews_its_lease_well_before_it_ends(app: App) -> None:
    app.schedule("@every 1h", app.call("t"))
    scheduler = app.scheduler_on(app._client())
    assert await scheduler.step() <= LEASE / 2
    await scheduler.leave()


def test_so_many_ticks_of_one_schedule_are_fired_at_once_and_the_rest_later(app: App) -> None:
    line = ScheduleState(Entry("@every 1m", app.call("t")))
    line.begin(Position(600, 600), 600 + 10 * 60, 6)
    assert line.due(1200, 3) == [660, 720, 780]
    assert line.due(1200, 100) == list(range(660, 1201, 60))


async def test_missed_ticks_are_fired_together_in_one_step(app: App, redis_client: Any) -> None:
    entry = app.schedule("@every 1m", app.call("t"))
    at = await stand(redis_client, entry, 330)
    scheduler = app.scheduler_on(app._client())
    await scheduler.step()
    assert await ticks(redis_client, entry) == [at + 60 * n for n in range(1, 6)]
    await scheduler.leave()


async def test_a_leader_whose_lease_went_to_another_leads_no_more_and_is_not_shown(app: App, redis_client: Any) -> None:
    app.schedule("@every 1h", app.call("t"))
    scheduler = app.scheduler_on(app._client())
    await scheduler.step()
    led = [scheduler.leads]
    assert await redis_client.exists(keys.scheduler_entries(*scheduler.identity))
    await redis_client.set(keys.scheduler_leader(app.schedule_scope()), "another", px=60_000)
    scheduler._renew_at = 0.0
    await scheduler.step()
    assert [*led, scheduler.leads] == [True, False]
    assert not await redis_client.exists(keys.scheduler_entries(*scheduler.identity))
    await scheduler.leave()
