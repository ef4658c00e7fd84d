"""Queues as a whole: numbers, latency, memory, history, pause, groups, leases, servers; deleting one leaves nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.support.queue import DAY, LEASE_END, NOW
from tests.support.timed import at
from veredus.errors import ConfigError, QueueNotEmpty, QueueNotFound
from veredus.inspector.inspector import Inspector
from veredus.model.lifecycle import State
from veredus.model.message import TaskMessage
from veredus.store.inspect.queues import MAX_GROUPS
from veredus.store.store import Store
from veredus.wire import keys
from veredus.wire.presence import ServerRecord, encode_worker


async def test_the_numbers_of_a_queue(q: Bench) -> None:
    for n, state in enumerate(("retry", "archived", "completed", "scheduled", "aggregating"), start=1):
        await q.fill(state, *[f"{state}{i}" for i in range(n)])
    await q.fill("active", "run")
    await q.pend("p1", "p2")
    info = Inspector(at(q.redis, NOW + 1500))
    shown = await info.queue("q")
    assert (shown.pending, shown.active, shown.scheduled, shown.retry) == (2, 1, 4, 1)
    assert (shown.archived, shown.completed, shown.aggregating, shown.groups) == (2, 3, 5, 1)
    assert shown.size == 18
    assert (shown.processed, shown.failed, shown.processed_total, shown.failed_total) == (6, 3, 6, 3)
    assert shown.latency == timedelta(seconds=1.5)
    assert not shown.paused
    assert shown.memory_usage == 0
    assert await info.stats() == [shown]
    assert shown.as_dict()["latency_ms"] == 1500.0


async def test_a_queue_is_paused_and_closed_once_and_since_when_is_noted_in_seconds(q: Bench) -> None:
    await q.pend("a")
    info = Inspector(at(q.redis, NOW))
    for begin, end, key in (
        (info.pause, info.resume, keys.paused("q")),
        (info.close_queue, info.open_queue, keys.closed("q")),
    ):
        assert [await begin("q"), await begin("q")] == [True, False]
        assert await q.redis.command("GET", key, key=key) == str(NOW // 1000).encode()
        assert [await end("q"), await end("q")] == [True, False]
        assert await q.redis.command("EXISTS", key, key=key) == 0


async def test_memory_is_asked_for_and_is_about_right(q: Bench, inspector: Inspector) -> None:
    await q.pend(*[f"p{n}" for n in range(100)])
    await q.join("g", *[f"g{n}" for n in range(50)])
    one = await q.client.memory_usage(q.task("p1"))
    found = (await inspector.queue("q", memory=True)).memory_usage
    assert 140 * one < found < 250 * one


async def test_a_queue_with_many_groups_is_counted_in_pages(q: Bench, inspector: Inspector) -> None:
    pipe = q.client.pipeline()
    for n in range(MAX_GROUPS + 10):
        pipe.zadd(q.key(f"g:{n}"), {f"a{n}": 1, f"b{n}": 1})
        pipe.sadd(q.key("groups"), str(n))
    pipe.sadd("asynq:queues", "q")
    await pipe.execute()
    shown = await inspector.queue("q")
    assert (shown.groups, shown.aggregating) == (MAX_GROUPS + 10, 2 * MAX_GROUPS + 20)
    assert len(await inspector.groups("q")) == MAX_GROUPS + 10


async def test_history_goes_back_day_by_day(q: Bench) -> None:
    await q.fill("retry", "a", "b")
    shown = await q.inspector.history("q", 3)
    assert [(one.date, one.processed, one.failed) for one in shown] == [
        (DAY, 2, 2),
        ("2096-10-01", 0, 0),
        ("2096-09-30", 0, 0),
    ]
    with pytest.raises(ConfigError, match="days"):
        await q.inspector.history("q", 0)


async def test_pause_and_resume_say_whether_they_changed_anything(q: Bench, inspector: Inspector) -> None:
    await q.pend("a")
    assert [await inspector.pause("q"), await inspector.pause("q")] == [True, False]
    assert (await inspector.queue("q")).paused
    assert (await q.dequeue())[0] == []
    assert abs(int(await q.client.get(q.key("paused"))) - datetime.now(UTC).timestamp()) < 5
    assert [await inspector.resume("q"), await inspector.resume("q")] == [True, False]
    assert (await q.dequeue())[0] == ["a"]


async def test_unknown_queues_are_refused_everywhere(q: Bench, inspector: Inspector) -> None:
    await q.pend("a")
    for call in (inspector.queue, inspector.history, inspector.pause, inspector.resume, inspector.groups):
        with pytest.raises(QueueNotFound, match="did you mean 'q'"):
            await call("q1")
    for state in State:
        with pytest.raises(QueueNotFound):
            await inspector.tasks("q1", state, group="g")
    with pytest.raises(QueueNotFound):
        await inspector.leases("q1")
    with pytest.raises(ConfigError, match="did you mean 'pending'"):
        await inspector.tasks("q", "pendin")


# Lists.


@pytest.mark.parametrize("state", ["pending", "active", "scheduled", "retry", "archived", "completed", "aggregating"])
async def test_pages_come_in_order(q: Bench, state: str) -> None:
    ids = [f"t{n:03d}" for n in range(70)]
    await q.fill(state, *ids)
    group = "g" if state == "aggregating" else None

    async def page(**given: Any) -> list[str]:
        return [task.id for task in await q.inspector.tasks("q", state, group=group, **given)]

    assert await page() == ids[:30]
    assert await page(page=3) == ids[60:]
    assert await page(page=2, size=7) == ids[7:14]
    assert await page(size=1000) == ids
    assert await page(page=99) == []
    for wrong in ({"page": 0}, {"size": 0}):
        with pytest.raises(ConfigError):
            await page(**wrong)


async def test_an_id_without_a_task_is_passed_over_and_an_unreadable_one_is_shown(q: Bench) -> None:
    await q.pend("a", "b", "c")
    await q.client.delete(q.task("a"))
    await q.client.hset(q.task("b"), "msg", b"\xff\xff")
    shown = await q.inspector.tasks("q", "pending")
    assert [(task.id, task.type, task.payload) for task in shown] == [
        ("b", "undecodable", b"\xff\xff"),
        ("c", "t", b'{"n":"c"}'),
    ]


async def test_an_active_task_without_a_valid_lease_is_an_orphan(q: Bench) -> None:
    await q.fill("active", "a", "b")
    await q.client.zrem(q.key("lease"), "b")
    assert [task.is_orphaned for task in await q.inspector.tasks("q", "active")] == [False, True]
    later = Inspector(at(q.redis, NOW + 12_750))
    assert [task.is_orphaned for task in await later.tasks("q", "active")] == [True, True]
    assert (await q.inspector.task("q", "a")).owner == "w:1"


# Leases, servers.


async def test_all_leases_of_all_queues_the_first_to_expire_first(q: Bench) -> None:
    other = Bench(q.redis, q.client, "other")
    await q.fill("active", "a", "b")
    await other.fill("active", "c")
    await other.client.zadd(other.key("lease"), {"c": NOW // 1000 - 5})
    shown = await q.inspector.leases()
    assert [(one.queue, one.task_id, one.owner, one.ours) for one in shown] == [
        ("other", "c", "", False),
        ("q", "a", "w:1", True),
        ("q", "b", "w:1", True),
    ]
    assert shown[0].expired
    assert shown[0].seconds_left == pytest.approx(-5.25)
    assert (shown[1].until, shown[1].task_type) == (LEASE_END, "t")
    assert shown[1].seconds_left == pytest.approx(LEASE_END - NOW / 1000)
    assert [one.task_id for one in await q.inspector.leases("q", limit=1)] == ["a"]


async def test_servers_with_what_they_work_on(q: Bench, store: Store, inspector: Inspector) -> None:
    record = ServerRecord(
        host="h",
        pid=1,
        server_id="s",
        concurrency=5,
        queues={"q": 1},
        strict_priority=False,
        status="active",
        started_at=1000.5,
        active_worker_count=1,
    )
    message = TaskMessage(type="t", id="a", queue="q", payload=b"1")
    await store.presence.beat(record, {"a": encode_worker("h", 1, "s", message, 2000.0, 2030.0)})
    await q.client.zadd("asynq:servers", {"asynq:servers:{gone}": 5})
    (server,) = await inspector.servers()
    assert (server.id, server.concurrency, server.started) == ("s", 5, datetime.fromtimestamp(1000.5, UTC))
    assert [(worker.task_id, worker.queue) for worker in server.active_workers] == [("a", "q")]
    assert await q.client.zcard("asynq:servers") == 1
    assert "redis_version" in await inspector.redis_info()


# Deleting.


async def _everything_in(q: Bench) -> None:
    for state in ("scheduled", "retry", "archived", "completed", "aggregating", "pending"):
        await q.fill(state, f"{state}1", f"{state}2")
    await q.pend("locked", lock=q.lock())
    await q.client.zadd(q.key("g:g:set"), {"x": 1})
    await q.client.zadd(q.key("aggregation_sets"), {q.key("g:g:set"): 1})
    await q.client.set(q.key("batch:w"), 1)
    await q.client.hset(q.task("x"), mapping={"msg": q.message("x"), "state": "aggregating", "group": "g"})


async def test_deleting_a_queue_by_force_leaves_nothing_of_it(q: Bench, inspector: Inspector) -> None:
    near = Bench(q.redis, q.client, "q*")
    await near.pend("stays")
    await _everything_in(q)
    before = await near.everything()
    with pytest.raises(QueueNotEmpty, match="still has 11 tasks"):
        await inspector.delete_queue("q")
    assert not await q.client.exists(q.key("paused"))
    await inspector.delete_queue("q", force=True)
    after = await q.everything()
    assert sorted(after) == sorted(name for name in before if not name.startswith("asynq:{q}:"))
    assert after["asynq:queues"].value == {"q*"}


async def test_a_queue_that_was_paused_is_still_so_when_its_removal_is_refused(q: Bench, inspector: Inspector) -> None:
    await q.pend("a")
    await inspector.pause("q")
    with pytest.raises(QueueNotEmpty):
        await inspector.delete_queue("q")
    assert (await inspector.queue("q")).paused


async def test_without_force_a_queue_may_have_completed_tasks_only(q: Bench, inspector: Inspector) -> None:
    await q.fill("completed", "a")
    await inspector.delete_queue("q")
    assert await q.everything() == {}


async def test_a_task_in_no_list_keeps_a_queue_from_being_deleted(q: Bench, inspector: Inspector) -> None:
    await q.pend("a")
    await q.client.delete(q.key("pending"))
    with pytest.raises(QueueNotEmpty, match="doctor"):
        await inspector.delete_queue("q")
    assert await q.client.exists(q.task("a"))


async def test_running_tasks_keep_a_queue_from_being_deleted(q: Bench, inspector: Inspector) -> None:
    await q.fill("active", "a")
    await q.pend("b")
    before = await q.everything()
    with pytest.raises(QueueNotEmpty, match="1 running"):
        await inspector.delete_queue("q", force=True)
    assert await q.everything() == before


async def test_what_is_enqueued_during_the_removal_goes_with_it_or_stays_whole(q: Bench, inspector: Inspector) -> None:
    await _everything_in(q)

    async def produce() -> None:
        for n in range(50):
            await q.pend(f"n{n}")

    await asyncio.gather(inspector.delete_queue("q", force=True), produce(), return_exceptions=True)
    state: Any = await q.everything()
    hashes = {name for name in state if name.startswith(q.task("n"))}
    assert hashes == {q.task(one) for one in await q.pending()}


async def test_a_closed_queue_that_go_deleted_can_be_opened(q: Bench) -> None:
    """It is listed nowhere any more, and clients are still told that it is closed."""
    await q.pend("a")
    await q.inspector.close_queue("q")
    await q.client.srem(keys.QUEUES, "q")
    assert await q.inspector.open_queue("q")
    assert not await q.inspector.is_closed("q")
    with pytest.raises(QueueNotFound):
        await q.inspector.open_queue("q")
