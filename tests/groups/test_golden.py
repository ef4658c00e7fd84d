"""What real Asynq wrote: the same calls leave the same here, but for the documented rows; and what Go grouped, our
worker aggregates."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.integration.support import Look
from tests.interop.golden import Dump, golden_dump, restore, take
from tests.interop.replay import options_of, payload_of
from tests.support.golden import load
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Call, Job
from veredus.wire import keys
from veredus.wire.attempts import FIELDS as ATTEMPTS
from veredus.wire.messages import as_dict

pytestmark = VALKEY_ONLY
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def view(dump: Dump) -> dict[str, Any]:
    """A dump without what differs from run to run: ids are told by the payload; times, records of workers and those of
    attempts (row attempt-fields) are left out; of a sorted set there are the members."""
    names: dict[str, str] = {}
    for key, row in dump.rows.items():
        if ":t:" in key:
            names[key.partition(":t:")[2]] = (
                f"<{as_dict('TaskMessage', row.value[b'msg']).get('payload', b'').decode()}>"
            )

    def named(text: str) -> str:
        for task_id, name in names.items():
            text = text.replace(task_id, name)
        text = re.sub(r"(processed|failed):[\d-]+$", r"\1:<day>", text)
        return _UUID.sub("<set>", text)

    found: dict[str, Any] = {}
    for key, row in dump.rows.items():
        if key.startswith(("asynq:servers", "asynq:workers", "asynq:types", "asynq:details")) or ":batch:" in key:
            continue
        if row.type == "hash":
            fields = {name.decode(): text for name, text in row.value.items()}
            value: Any = {name: named(text.decode()) for name, text in fields.items() if name not in {"msg", *ATTEMPTS}}
            message = as_dict("TaskMessage", row.value[b"msg"])
            value["msg"] = {name: named(str(text)) for name, text in message.items() if name != "completed_at"}
        elif row.type == "string":
            value = named(row.value.decode())
        else:
            value = sorted(named(member.decode()) for member in row.value)
        found[named(key)] = (row.type, row.pttl_ms > 0, value)
    return found


async def replayed(app: App, name: str) -> None:
    for call in load(name)["inputs"]:
        if call["call"] == "Client.Enqueue":
            handle = await app.enqueue(call["type"], payload_of(call["given"]), **options_of(call["given"]))
            assert handle.state == call["returned"][0]["state"]


def without_sequence(found: dict[str, Any]) -> dict[str, Any]:
    """Row group-order: the sequence is there, and is ours alone."""
    for kind, _, value in found.values():
        if kind == "hash" and value["state"] == "aggregating":
            assert re.fullmatch(r"\d{19}-\d{6}", value.pop("group_seq"))
    return found


async def test_waiting_in_groups(app: App, redis_client: Any) -> None:
    await replayed(app, "group-aggregating")
    golden, ours = view(golden_dump("group-aggregating")), without_sequence(view(await take(redis_client)))
    # Row group-unique-key: the hash of a unique member names its lock.
    golden["asynq:{default}:t:<uniq>"][2]["unique_key"] = keys.unique("default", "g:item", b"uniq")
    assert ours == golden


async def test_scheduled_with_a_group(app: App, redis_client: Any) -> None:
    await replayed(app, "group-scheduled-before")
    golden, ours = view(golden_dump("group-scheduled-before")), view(await take(redis_client))
    # Rows due-index and scheduled-group: our index, and the group that it will join.
    golden["asynq:{default}:due"] = ("zset", False, ["<late>"])
    golden["asynq:{default}:t:<late>"][2]["due_group"] = "user:9"
    assert ours == golden


def aggregating_app(app: App, pause: asyncio.Event | None = None) -> App:
    """The aggregator of the golden runs: joins payloads; type of the result: aggregated."""

    @app.task(name="aggregated", payload="raw", retention=3600)
    async def aggregated(payload: bytes) -> None: ...

    @app.task(name="noop", payload="raw")
    async def noop(payload: bytes) -> None: ...

    @app.aggregate("*", grace=2, max_size=3)
    async def join(group: str, jobs: list[Job]) -> Call[Any]:
        if pause is not None:
            await pause.wait()
        return aggregated.call(f"{group}:".encode() + b"\n".join(job.payload for job in jobs))

    return app


async def test_when_due_it_goes_to_its_group_instead_of_running_alone(app: App, redis_client: Any) -> None:
    """Row group-scheduled: the golden task ended as itself, ours as part of an aggregate."""
    await replayed(app, "group-scheduled-after")
    async with aggregating_app(app).worker(concurrency=10):
        await until(lambda: redis_client.zcard(keys.completed("default")))
    golden, ours = view(golden_dump("group-scheduled-after")), view(await take(redis_client))
    message = golden.pop("asynq:{default}:t:<late>")[2]["msg"]
    assert message["group_key"] == "user:9"
    assert ours.pop("asynq:{default}:t:<user:9:late>")[2]["state"] == "completed"
    golden["asynq:{default}:completed"] = ("zset", False, ["<user:9:late>"])
    assert ours == golden


async def test_a_set_in_flight_and_after(app: App, redis_client: Any) -> None:
    await replayed(app, "group-set-in-flight")
    pause = asyncio.Event()
    began = (await take(redis_client)).captured
    async with aggregating_app(app, pause).worker(concurrency=10):
        await until(lambda: redis_client.exists(keys.aggregation_sets("default")))
        in_flight = await take(redis_client)
        pause.set()
        await until(lambda: redis_client.zcard(keys.completed("default")))
        await until(lambda: _no_active(redis_client))
        after = await take(redis_client)
    assert without_sequence(view(in_flight)) == view(golden_dump("group-set-in-flight"))
    (score,) = in_flight.rows[keys.aggregation_sets("default")].value.values()
    assert began + 119 <= int(score) <= in_flight.captured + 121
    assert view(after) == by_arrival(view(golden_dump("group-set-in-flight-after")))


def by_arrival(node: Any) -> Any:
    """Row group-order: Go's aggregate has the members of one second by id, ours by arrival."""
    if isinstance(node, dict):
        return {by_arrival(key): by_arrival(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(by_arrival(item) for item in node)
    if not isinstance(node, str):
        return node
    for end in ("\n", "\\n"):
        node = node.replace(f"item-2{end}item-0{end}item-1", f"item-0{end}item-1{end}item-2")
    return node


async def _no_active(client: Any) -> bool:
    return bool(await client.llen(keys.active("default")) == 0)


@pytest.mark.parametrize("name", ["group-aggregating", "group-set-in-flight"])
async def test_what_go_grouped_our_worker_aggregates(app: App, redis_client: Any, name: str) -> None:
    await restore(redis_client, golden_dump(name))
    await redis_client.delete("asynq:servers", "asynq:workers", *await redis_client.keys("asynq:servers:*"))
    if name == "group-set-in-flight":  # the Go server that made the set is gone and its time is over
        await redis_client.zadd(keys.aggregation_sets("default"), {_set_key(name): 1})
    # The golden clock is ahead of this one: the members joined in the future.
    for key in await redis_client.keys("asynq:{default}:g:*"):
        for number, (member, _) in enumerate(await redis_client.zrange(key, 0, -1, withscores=True)):
            await redis_client.zadd(key, {member: 1_700_000_000 + number})
    look = Look(redis_client)
    expected = {"group-aggregating": 2, "group-set-in-flight": 1}[name]
    async with aggregating_app(app).worker(concurrency=10):
        await until(lambda: _completed(redis_client, expected))
    payloads = [(await look.message(task_id)).payload for task_id in await look.scores("completed")]
    if name == "group-aggregating":
        assert b"user:1:item-0\nitem-1\nitem-2" in payloads
        assert sorted(payloads)[1] in (b"user:2:other\nuniq", b"user:2:uniq\nother")
    else:
        assert payloads == [b"user:1:item-2\nitem-0\nitem-1"]
    # Row group-lock-released: the lock that Go's member held is free.
    left = {key.decode().partition("}:")[2] for key in await redis_client.keys("asynq:{default}:*")}
    assert {name for name in left if name.startswith(("unique", "g:", "groups", "aggregation"))} == set()
    assert await check_invariant(redis_client) == []


async def _completed(client: Any, count: int) -> bool:
    return bool(await client.zcard(keys.completed("default")) == count)


def _set_key(name: str) -> str:
    return next(key for key in golden_dump(name).rows if re.search(r":g:.*:" + _UUID.pattern, key))
