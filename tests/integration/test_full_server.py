"""A server whose memory is full takes no new tasks, but its queues are drained: that is what makes room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio

from tests.gateway.support import JsonClient, gateway
from tests.integration.support import FAST, Look
from tests.support.keyspace import check_invariant
from tests.support.servers import PRODUCTS, RealServer
from tests.support.sizes import size
from tests.support.waiting import until
from veredus import App, Job, Limit, ServerFull, current
from veredus.store.store import Store, connect
from veredus.store.tasks.work import Work
from veredus.wire import keys, session_keys


class Full:
    """A server, an app, and the queue as an independent client sees it."""

    def __init__(self, server: RealServer) -> None:
        self.server, self.app = server, App(server.url)
        self.look = Look(redis.asyncio.Redis(unix_socket_path=server.socket))

    async def fill(self) -> None:
        await self.look.client.config_set("maxmemory", 1)


@pytest.fixture(params=PRODUCTS)
async def full(request: pytest.FixtureRequest, new_server: Callable[..., RealServer]) -> AsyncIterator[Full]:
    full = Full(new_server("--maxmemory-policy", "noeviction", product=request.param))
    yield full
    await full.look.client.config_set("maxmemory", 0)
    assert await check_invariant(full.look.client) == []
    await full.app.close()
    await full.look.client.aclose()


async def test_a_full_server_refuses_new_tasks_with_a_reason(full: Full) -> None:
    await full.app.enqueue("t")
    await full.fill()
    for options in ({}, {"delay": 60.0}, {"unique_for": 60.0}):
        with pytest.raises(ServerFull, match=r"memory is full.*raise its maxmemory.*OOM command not allowed"):
            await full.app.enqueue("t", **options)  # type: ignore[arg-type]


async def test_a_worker_that_starts_on_a_full_server_drains_it(full: Full, caplog: pytest.LogCaptureFixture) -> None:
    """Every way out of an attempt works: done, with a result, retried, archived; also what is due later."""
    app, runs = full.app, []

    @app.task(name="ends", max_retry=1, retry_delay=0)
    async def ends(how: str) -> str | None:
        runs.append(how)
        if how == "result":
            await current().progress(0.5)
            await current().write_result(b"first")
            return "kept"
        if how == "archived" or (how == "retried" and runs.count(how) == 1):
            raise ValueError(how)
        return None

    handles = {how: await ends.enqueue(how) for how in ("done", "result", "retried", "archived")}
    later = await ends.using(delay=0.5).enqueue("later")
    unique = await ends.using(unique_for=600.0).enqueue("unique")
    await full.fill()
    async with app.worker(**FAST) as worker:
        for handle in (handles["done"], handles["retried"], later, unique):
            await full.look.ends(handle.id, "gone")
        await full.look.ends(handles["result"].id, "completed")
        await full.look.ends(handles["archived"].id, "archived")
        await until(lambda: worker._roles.processor.all_empty and not worker._in_flight.held())
        assert [await handles["result"].result(), runs.count("retried")] == ["kept", 2]
        await full.look.client.config_set("maxmemory", 0)
        await until(lambda: "available again" in caplog.text)
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [line.getMessage()[:60] for line in lines if "ValueError" not in line.getMessage()] == [
        "Redis is not available: the server's memory is full, it take"
    ], "told once"


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru", "volatile-ttl"])
async def test_a_server_that_may_evict_tasks_is_warned_about_at_the_start(
    new_server: Callable[..., RealServer], policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server("--maxmemory-policy", policy)
    async with App(server.url) as app, app.worker(**FAST), gateway(app):
        pass
    told = [one.name for one in caplog.records if one.getMessage().startswith(f"maxmemory-policy is {policy}: ")]
    assert len(told) == (0 if policy == "noeviction" else 2)


async def test_a_long_queue_is_drained_on_a_full_server(full: Full) -> None:
    ran, count = [0], size(500, 20_000)

    @full.app.task(name="count")
    async def counted() -> None:
        ran[0] += 1

    await full.app.enqueue_many([counted.call() for _ in range(count)])
    await full.fill()
    async with full.app.worker():
        await until(lambda: ran[0] == count)


async def test_groups_are_aggregated_on_a_full_server(full: Full) -> None:
    """Members become one task: that makes room. A set whose worker died is given back to its group first."""
    app, ran = full.app, []

    @app.aggregate("*", max_size=3)
    def together(group: str, jobs: list[Job]) -> Any:
        return app.call("sum", {"numbers": [job.json() for job in jobs]})

    @app.task(name="sum")
    async def total(numbers: list[int]) -> None:
        ran.append(sum(numbers))

    client = full.look.client
    for number in (1, 2, 3):
        await app.enqueue("n", number, group="g")
    dead = keys.group("default", "g") + ":set"
    await client.rename(keys.group("default", "g"), dead)
    await client.zadd(keys.aggregation_sets("default"), {dead: 1})
    await full.fill()
    async with app.worker(**FAST):
        await until(lambda: ran == [6])


async def test_a_request_is_answered_on_a_full_server(full: Full) -> None:
    """Also to a client that comes back; what it acknowledges leaves the log. A new request is refused."""
    app, began, go = full.app, asyncio.Event(), asyncio.Event()

    @app.action("work", queue="default")
    async def work() -> str:
        began.set()
        await go.wait()
        return "done"

    async with app.worker(**FAST), gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "work")
        await began.wait()
        await full.fill()
        await client.close()
        go.set()
        client = await JsonClient.open(gw, "ada", client.resumption())
        answer = await client.frame("msg", rid=1)
        assert answer["body"] == "done"
        await client.ack(answer["seq"])

        async def is_trimmed() -> bool:
            return bool(await full.look.client.llen(session_keys.outbox(client.sid)) == 0)

        await until(is_trimmed)
        await client.request(2, "work")
        refused = await client.frame("reject", rid=2)
        assert (refused["code"], refused["retryable"]) == (503, True)
        await full.look.client.config_set("maxmemory", 0)
        await client.request(2, "work")
        assert (await client.frame("msg", rid=2))["body"] == "done"
        await client.close()


async def test_a_session_becomes_detached_on_a_full_server(full: Full) -> None:
    """Else it would never expire, and what it has would never make room."""
    async with gateway(full.app) as gw:
        client = await JsonClient.open(gw, "ada")
        await full.fill()
        await client.close()

        async def is_detached() -> bool:
            return bool(await full.look.client.hget(session_keys.meta(client.sid), "st") == b"d")

        await until(is_detached)


async def test_leases_are_kept_and_recovered_on_a_full_server(full: Full) -> None:
    app, go, runs = full.app, asyncio.Event(), []

    @app.task(name="long", limit=Limit(concurrency=5))
    async def long(name: str) -> None:
        runs.append(name)
        if name == "kept":
            await go.wait()

    lost = await long.enqueue("lost")
    store = Store(connect(full.server.url))
    await Work(store.redis, "dead", lease_ms=1000).dequeue("default", 1)
    kept = await long.enqueue("kept")
    await full.fill()
    async with app.worker(**FAST):
        await full.look.ends(lost.id, "gone")  # its lease ran out, it was recovered and has run
        assert runs.count("kept") == 1
        assert await full.look.client.zcard(keys.SERVERS) == 1, "heartbeats are written"
        first = (await full.look.scores("lease"))[kept.id]

        async def is_prolonged() -> bool:
            return (await full.look.scores("lease"))[kept.id] > first

        await until(is_prolonged)
        go.set()
        await full.look.ends(kept.id, "gone")
    assert sorted(runs) == ["kept", "lost"]
    await store.close()


async def test_what_does_not_finish_is_given_back_and_what_has_expired_is_deleted(full: Full) -> None:
    app, began = full.app, asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    handle = await long.enqueue()
    client = full.look.client
    await client.zadd(keys.completed("default"), {"old": 1})
    await client.hset(keys.task("default", "old"), mapping={"msg": b"", "state": "completed"})
    await full.fill()
    async with app.worker(**(FAST | {"shutdown_timeout": 0.0, "janitor_interval": 0.2})):
        await began.wait()
        await full.look.ends("old", "gone")
    assert await full.look.pending() == [handle.id]


async def test_a_dequeue_asked_for_again_works_on_a_full_server(full: Full) -> None:
    await full.app.enqueue("t")
    store = Store(connect(full.server.url))
    work = Work(store.redis, "w", lease_ms=60_000)
    first = await work.dequeue("default", 1)
    await full.fill()
    work._unanswered.add("default")  # as if its reply had been lost
    again = await work.dequeue("default", 1)
    assert [row[0] for row in again.rows] == [row[0] for row in first.rows] != []
    await store.close()
