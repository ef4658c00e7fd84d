"""The scripts of the schedules, called at given times on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.keyspace import check_invariant, snapshot
from veredus import App
from veredus.client.client import Client
from veredus.errors import CommandRefused
from veredus.store.connection.redis import ScriptCall
from veredus.store.store import Store
from veredus.store.tasks.intake import no_record
from veredus.store.tasks.schedules import BEGIN, LEAD, RESIGN, SHOW, Schedules, Tick
from veredus.wire import keys
from veredus.wire.schedules import EnqueueRecord

NOW = 4_000_000_000_250
AT = 4_000_000_000
DAY_MS = 86_400_000


class Bench:
    """One schedule `s` in queue `q`."""

    def __init__(self, store: Store, client: Any) -> None:
        self.store, self.client = store, client
        self.schedules = Schedules(store.redis, store.intake)
        self.state = keys.cron("q", "s")

    async def begin(self, *ids: str, now: int = NOW) -> list[Any]:
        names = [keys.cron("q", one) for one in ids or ("s",)]
        reply: list[Any] = await self.store.redis.run(BEGIN, names, [len(names), *[DAY_MS] * len(names), now])
        return reply

    def tick_call(self, at: int, tick: int, now: int = NOW, **options: Any) -> ScriptCall:
        app = App("redis://nowhere.invalid")
        entry = Client(self.store, max_payload=1000).entry(
            app.call("t", {"n": 1}, queue="q", task_id=f"s:{tick}", **options)
        )
        call = self.schedules._tick_call(Tick("q", "s", at, tick, DAY_MS, entry))
        return ScriptCall(call.script, call.keys, [*call.args, now])

    async def tick(self, at: int, tick: int, now: int = NOW, **options: Any) -> list[Any]:
        call = self.tick_call(at, tick, now, **options)
        reply: list[Any] = await self.store.redis.run(call.script, call.keys, call.args)
        return reply

    async def where(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in (await self.client.hgetall(self.state)).items()}


@pytest.fixture
def bench(store: Store, redis_client: Any) -> Bench:
    return Bench(store, redis_client)


async def test_begin_puts_a_new_schedule_at_the_present_second_of_the_server(bench: Bench) -> None:
    assert await bench.begin() == [NOW, b"4000000000", b""]
    assert await bench.begin(now=NOW + 60_000) == [NOW + 60_000, b"4000000000", b""]
    assert await bench.begin("s", "new", now=NOW + 5000) == [NOW + 5000, b"4000000000", b"", b"4000000005", b""]
    assert 0 < await bench.client.pttl(bench.state) <= DAY_MS


async def test_a_tick_enqueues_as_any_client_does_and_moves_on(bench: Bench) -> None:
    await bench.begin()
    assert await bench.tick(AT, AT) == [1, b"4000000000", NOW]
    await bench.client.sadd(keys.QUEUES, "q")
    ours = await snapshot(bench.client)
    assert ours.pop(bench.state).value == {"at": "4000000000", "fired": "4000000000"}
    await bench.client.flushall()
    app = App("redis://nowhere.invalid")
    entry = Client(bench.store, max_payload=1000).entry(app.call("t", {"n": 1}, queue="q", task_id=f"s:{AT}"))
    call = bench.store.intake.insertion("q", [entry], no_record("q"))
    await bench.store.redis.run(call.script, call.keys, [*call.args, NOW])
    await bench.client.sadd(keys.QUEUES, "q")
    assert await snapshot(bench.client) == ours


async def test_a_repeated_tick_enqueues_nothing_even_after_the_task_has_gone(bench: Bench) -> None:
    await bench.begin(now=NOW - 1000)
    assert (await bench.tick(AT - 1, AT))[0] == 1
    await bench.client.delete(keys.pending("q"), keys.task("q", f"s:{AT}"))
    assert await bench.tick(AT - 1, AT) == [-2, b"4000000000", NOW]
    assert await bench.client.exists(keys.pending("q"), keys.task("q", f"s:{AT}")) == 0


async def test_a_tick_before_its_time_does_nothing(bench: Bench) -> None:
    await bench.begin(now=NOW - 5000)
    before = await snapshot(bench.client)
    assert await bench.tick(AT - 5, AT + 1) == [-3, b"3999999995", NOW]
    assert await snapshot(bench.client) == before
    assert (await bench.tick(AT - 5, AT + 1, now=(AT + 1) * 1000))[0] == 1


async def test_a_schedule_that_redis_does_not_know_does_not_fire(bench: Bench) -> None:
    assert await bench.tick(AT - 5, AT) == [-2, b"", NOW]
    assert await snapshot(bench.client) == {}


async def test_a_held_lock_passes_the_tick_over(bench: Bench) -> None:
    await bench.begin(now=NOW - 10_000)
    assert (await bench.tick(AT - 10, AT - 5, unique_for=60))[0] == 1
    assert (await bench.tick(AT - 5, AT, unique_for=60))[0] == -1
    assert await bench.where() == {"at": str(AT), "fired": str(AT)}
    assert await bench.client.llen(keys.pending("q")) == 1


async def test_a_delayed_tick_is_scheduled(bench: Bench) -> None:
    await bench.begin(now=NOW - 10_000)
    assert (await bench.tick(AT - 10, AT, delay=2.5))[0] == 1
    assert await bench.client.zscore(keys.due("q"), f"s:{AT}") == NOW + 2500
    await bench.client.sadd(keys.QUEUES, "q")
    assert await check_invariant(bench.client) == []


async def test_a_failed_insert_leaves_the_schedule_where_it_was(bench: Bench) -> None:
    await bench.begin(now=NOW - 10_000)
    await bench.client.set(keys.pending("q"), "not a list")
    with pytest.raises(CommandRefused):
        await bench.tick(AT - 10, AT)
    assert await bench.where() == {"at": str(AT - 10)}
    assert await bench.client.exists(keys.task("q", f"s:{AT}")) == 0


async def test_one_leads_at_a_time(store: Store, redis_client: Any) -> None:
    leader = keys.scheduler_leader("scope")

    async def lead(name: str) -> Any:
        return await store.redis.run(LEAD, [leader], [name, 5000, NOW])

    assert await lead("a") == [1, 5000, NOW]
    refused, left, _ = await lead("b")
    assert refused == 0
    assert 4000 < left <= 5000
    assert (await lead("a"))[0] == 1
    assert await store.redis.run(RESIGN, [leader], ["b"]) == 0
    assert await store.redis.run(RESIGN, [leader], ["a"]) == 1
    assert (await lead("b"))[0] == 1
    await redis_client.persist(leader)  # a lease without an end, whoever made it, holds up nobody
    assert (await lead("a"))[0] == 1


async def test_show_and_hide_as_asynq_does(store: Store, redis_client: Any) -> None:
    schedules, identity = Schedules(store.redis, store.intake), ("h", 1, "u")
    own = keys.scheduler_entries(*identity)
    await store.redis.run(SHOW, [own, keys.SCHEDULERS], [20, 2, b"first", b"second", NOW])
    assert await redis_client.lrange(own, 0, -1) == [b"second", b"first"]
    assert 0 < await redis_client.ttl(own) <= 20
    assert await redis_client.zscore(keys.SCHEDULERS, own) == AT + 20
    await schedules.show(identity, [b"third"], 20)
    assert await redis_client.lrange(own, 0, -1) == [b"third"]
    await schedules.hide(identity)
    assert await redis_client.dbsize() == 0


async def test_the_history_keeps_the_newest_thousand_for_a_month(store: Store, redis_client: Any) -> None:
    schedules = Schedules(store.redis, store.intake)
    await schedules.record([("s", EnqueueRecord(f"s:{n}", 1_800_000_000.5 + n)) for n in range(1005)])
    assert await redis_client.zcard(keys.scheduler_history("s")) == 1000
    assert await redis_client.ttl(keys.scheduler_history("s")) > 29 * 86400
    newest = await schedules.history("s", 2)
    assert newest == [EnqueueRecord("s:1004", 1_800_001_004.5), EnqueueRecord("s:1003", 1_800_001_003.5)]
    await schedules.record([])


async def test_a_tick_prolongs_the_life_of_its_state(bench: Bench) -> None:
    await bench.begin(now=(AT - 1) * 1000)
    await bench.client.expire(bench.state, 60)
    assert (await bench.tick(AT - 1, AT))[0] == 1
    assert await bench.client.pttl(bench.state) > DAY_MS / 2
