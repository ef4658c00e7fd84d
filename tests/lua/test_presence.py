"""beat and leave: the record of a worker process and of what it does, as Asynq's tools read them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.keyspace import Key, snapshot
from veredus.store.store import Store
from veredus.store.tasks.live_processes import ASK
from veredus.store.tasks.worker_records import BEAT, LEAVE
from veredus.wire.presence import ServerRecord, encode_server

NOW = 4_000_000_000_250
SERVER, WORKING, TYPES = "asynq:servers:{h:1:s}", "asynq:workers:{h:1:s}", "asynq:types:{h:1:s}"
DETAILS = "asynq:details:{h:1:s}"
ALL = [SERVER, WORKING, TYPES, DETAILS, "asynq:servers", "asynq:workers"]
RECORD = ServerRecord(
    host="h",
    pid=1,
    server_id="s",
    concurrency=4,
    queues={"q": 1},
    strict_priority=False,
    status="active",
    started_at=1_700_000_000.0,
    active_worker_count=0,
)


async def test_a_beat_writes_the_record_and_what_runs(store: Store, redis_client: Any) -> None:
    reply = await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 2, "a", b"A", "b", b"B", NOW])
    assert reply == [NOW, 1, b""]
    assert await snapshot(redis_client) == {
        SERVER: Key("string", "info", "seconds"),
        WORKING: Key("hash", {"a": "A", "b": "B"}, "seconds"),
        TYPES: Key("string", "t", "seconds"),
        DETAILS: Key("hash", {"version": "0.3", "memory": "42"}, "seconds"),
        "asynq:servers": Key("zset", {SERVER: "4000000010"}, "none"),
        "asynq:workers": Key("zset", {WORKING: "4000000010"}, "none"),
    }
    assert 9 <= await redis_client.ttl(SERVER) <= 10
    assert 9 <= await redis_client.ttl(WORKING) <= 10


async def test_the_next_beat_writes_what_has_changed(store: Store, redis_client: Any) -> None:
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 3, "a", b"A", "b", b"B", "d", b"D", NOW])
    await redis_client.expire(WORKING, 1)
    reply = await store.redis.run(
        BEAT, ALL, [10, b"later", "u", "0.3", 43, 3, 1, "a", 2, "b", b"B2", "c", b"C", NOW + 5000]
    )
    assert reply == [NOW + 5000, 1, b""]
    space = await snapshot(redis_client)
    assert space[SERVER].value == "later"
    assert space[TYPES].value == "u"
    assert space[WORKING].value == {"b": "B2", "c": "C", "d": "D"}
    assert space["asynq:servers"].value == {SERVER: "4000000015"}
    assert 9 <= await redis_client.ttl(WORKING) <= 10


async def test_a_beat_that_begins_anew_replaces_all_of_it(store: Store, redis_client: Any) -> None:
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 1, "a", b"A", NOW])
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 1, "c", b"C", NOW])
    assert (await snapshot(redis_client))[WORKING].value == {"c": "C"}


@pytest.mark.parametrize("there", ["nothing", "another", "no hash"])
async def test_rows_that_are_not_as_expected_are_left_alone(store: Store, redis_client: Any, there: str) -> None:
    if there == "another":
        await redis_client.hset(WORKING, "x", "X")
    elif there == "no hash":
        await redis_client.set(WORKING, "x")
    before = await snapshot(redis_client)
    reply = await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, 2, 0, 1, "c", b"C", NOW])
    assert reply == [NOW, 0, b""]
    space = await snapshot(redis_client)
    assert space.get(WORKING) == before.get(WORKING)
    assert space[SERVER].value == "info"


async def test_the_store_sends_only_what_changed_and_all_of_it_when_that_is_gone(
    store: Store, redis_client: Any
) -> None:
    async def sent(working: dict[str, bytes]) -> int:
        before = (await redis_client.info("stats"))["total_net_input_bytes"]
        await store.presence.beat(RECORD, working)
        assert {name.decode(): info for name, info in (await redis_client.hgetall(WORKING)).items()} == working
        return int((await redis_client.info("stats"))["total_net_input_bytes"] - before)

    large = {f"t{number}": b"x" * 10_000 for number in range(20)}
    assert await sent(large) > 200_000
    assert await sent(large) < 10_000
    assert await sent({**large, "new": b"y", "t1": b"changed"}) < 10_000
    assert await sent({"t2": large["t2"]}) < 10_000
    await redis_client.delete(WORKING)
    assert await sent(large) > 200_000


async def test_without_running_tasks_there_is_no_key_for_them(store: Store, redis_client: Any) -> None:
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 1, "a", b"A", NOW])
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 0, NOW])
    assert WORKING not in await snapshot(redis_client)


async def test_in_a_cluster_the_indexes_are_left_to_the_caller(store: Store, redis_client: Any) -> None:
    await store.redis.run(BEAT, ALL[:4], [10, b"info", "t", "0.3", 42, "", 0, 1, "a", b"A", NOW])
    assert set(await snapshot(redis_client)) == {SERVER, WORKING, TYPES, DETAILS}
    await store.redis.run(LEAVE, ALL[:4], [])
    assert await snapshot(redis_client) == {}


async def test_leave_removes_one_process_and_no_other(store: Store, redis_client: Any) -> None:
    other = [name.replace("h:1", "h:2") for name in ALL]
    await store.redis.run(BEAT, other, [10, b"info", "t", "0.3", 42, "", 0, 1, "x", b"X", NOW])
    before = await snapshot(redis_client)
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 1, "a", b"A", NOW])
    assert await store.redis.run(LEAVE, ALL, []) == 4
    assert await snapshot(redis_client) == before


async def test_many_running_tasks(store: Store, redis_client: Any) -> None:
    args = [item for i in range(5000) for item in (f"t{i}", b"x")]
    await store.redis.run(BEAT, ALL, [10, b"info", "t", "0.3", 42, "", 0, 5000, *args, NOW])
    assert await redis_client.hlen(WORKING) == 5000


async def test_the_part_of_the_store_uses_the_servers_clock(store: Store, redis_client: Any) -> None:
    seconds, _ = await redis_client.time()
    now, asked = await store.presence.beat(RECORD, {"a": b"A"})
    assert asked == ""
    assert seconds * 1000 <= now <= seconds * 1000 + 60_000
    space = await snapshot(redis_client)
    assert set(space) == set(ALL)
    assert space["asynq:workers"].value == {WORKING: str(now // 1000 + 10)}
    assert await redis_client.get(SERVER) == encode_server(RECORD)
    await store.presence.leave(RECORD)
    assert await snapshot(redis_client) == {}


async def test_what_a_process_is_asked_is_told_with_every_beat_until_it_leaves(store: Store, redis_client: Any) -> None:
    async def ask(verb: str) -> int:
        return int(await store.redis.run(ASK, [SERVER, TYPES, DETAILS], [verb]))

    async def told() -> str:
        return (await store.presence.beat(RECORD, {})).asked

    assert await ask("quiet") == 0, "there is no such process"
    assert await told() == ""
    assert await ask("quiet") == 1
    assert [await told(), await told()] == ["quiet", "quiet"]
    assert await ask("stop") == 1
    assert await ask("quiet") == 1
    assert await told() == "stop", "a stop is not taken back"
    assert 9 <= await redis_client.ttl(DETAILS) <= 10
    await store.presence.leave(RECORD)
    assert await snapshot(redis_client) == {}


async def test_a_process_that_reads_no_requests_is_not_asked(store: Store, redis_client: Any) -> None:
    await redis_client.set(SERVER, "info")
    assert await store.redis.run(ASK, [SERVER, TYPES, DETAILS], ["stop"]) == -1, "Go's servers declare no types"
    await redis_client.set(TYPES, "t")
    assert await store.redis.run(ASK, [SERVER, TYPES, DETAILS], ["stop"]) == -2, "an earlier version has no details"
    assert set(await snapshot(redis_client)) == {SERVER, TYPES}


async def test_a_damaged_key_of_the_details_is_written_anew(store: Store, redis_client: Any) -> None:
    await redis_client.set(DETAILS, "x")
    assert await store.redis.run(ASK, [SERVER, TYPES, DETAILS], ["stop"]) == 0
    await store.presence.beat(RECORD, {})
    assert set((await snapshot(redis_client))[DETAILS].value) == {"version", "memory"}
