"""A task that somebody made due on the very day that marks parked tasks is due on that day, and waits for nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import PARKED
from veredus import App, ConfigError
from veredus.store.store import Store
from veredus.wire import keys


@pytest.fixture
def q(store: Store, redis_client: Any) -> Bench:
    return Bench(store.redis, redis_client)


async def go_schedules(q: Bench, task_id: str) -> None:
    """As Asynq's ProcessAt does: it knows no bound."""
    await q.client.sadd(keys.QUEUES, q.name)
    await q.client.hset(q.task(task_id), mapping={"msg": q.message(task_id), "state": "scheduled"})
    await q.client.zadd(q.key("scheduled"), {task_id: PARKED})


async def test_the_doctor_leaves_it_where_it_is(q: Bench) -> None:
    await go_schedules(q, "a")
    before = await q.everything()
    assert await q.inspector.doctor.diagnose(server=False) == []
    assert await q.inspector.doctor.repair_all() == []
    assert await q.everything() == before


async def test_it_can_be_run_by_hand_and_moved(q: Bench) -> None:
    await go_schedules(q, "a")
    await q.inspector.move("q", "a", "other")
    assert await q.client.zrange("asynq:{other}:scheduled", 0, -1, withscores=True) == [(b"a", float(PARKED))]
    await q.inspector.run("other", "a")
    assert await q.client.lrange("asynq:{other}:pending", 0, -1) == [b"a"]


async def test_one_with_an_order_key_that_an_older_version_scheduled_then_is_not_parked(q: Bench) -> None:
    await go_schedules(q, "a")
    await q.client.hset(q.task("a"), "order_key", "k")
    await q.client.zadd(q.key("due"), {"a": int(PARKED) * 1000})
    before = await q.everything()
    assert await q.inspector.doctor.diagnose(server=False) == []
    assert await q.everything() == before
    await q.inspector.run("q", "a")
    assert await q.pending() == ["a"]


async def test_nobody_gets_such_a_time_from_us(q: Bench) -> None:
    mark = datetime.fromtimestamp(int(PARKED), UTC)
    with pytest.raises(ConfigError, match=r"^at: got .*, expected an instant from 1970 to 2199$"):
        App().call("t", at=mark)
    await q.fill("scheduled", "a")
    with pytest.raises(ConfigError, match=r"^at: got .*, expected an instant from 1970 to 2199$"):
        await q.inspector.reschedule("q", "a", at=mark)
    with pytest.raises(ConfigError, match=r"^delay: got .*, expected at most 3,000,000,000 seconds$"):
        await q.inspector.reschedule("q", "a", delay=9e9)
