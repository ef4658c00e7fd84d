"""A reply to an enqueue gets lost: the call is sent again, and no task runs twice, although it has ended by then."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

from tests.support.forks import in_a_fork
from tests.support.keyspace import check_invariant
from tests.support.proxy import Proxy, proxy_before
from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, Job
from veredus.errors import ConnectionLost, ServerFull
from veredus.store.store import Store, connect
from veredus.store.tasks import intake
from veredus.store.tasks.intake import ADD, CREATED, ENQUEUE, ENQUEUE_BOUND, ID_EXISTS, SCHEDULE, NewTask
from veredus.wire import keys

pytestmark = pytest.mark.timeout(120)


class Scene:
    """A producer behind a proxy that loses replies, and a worker beside it that runs and deletes what is stored."""

    def __init__(self, app: App, proxy: Proxy, client: Any) -> None:
        self.app, self.proxy, self._client = app, proxy, client
        self.runs: Counter[int] = Counter()

    async def lose_reply(self, send: Callable[[], Any], tasks: int = 1) -> Any:
        """What `send` returns although the reply to its script was lost after all its tasks had ended."""
        before = self.runs.total()
        self.proxy.may_break.clear()
        self.proxy.lose_reply = 1
        sending = asyncio.ensure_future(send())
        await until(lambda: self.runs.total() == before + tasks, what="the runs")
        await until(lambda: _is_empty(self._client), what="the end of the tasks")
        self.proxy.may_break.set()
        return await sending


@asynccontextmanager
async def scene(server: RealServer, redis_client: Any) -> AsyncIterator[Scene]:
    async with proxy_before(server.socket) as proxy:
        app, beside = App(proxy.url, patience=PATIENCE), App(server.url)
        at = Scene(app, proxy, redis_client)
        for script in (
            ENQUEUE,
            SCHEDULE,
            ADD,
            ENQUEUE_BOUND,
        ):  # else the lost reply is the one that asks for the script
            await redis_client.script_load(script.source)

        @beside.task(name="note")
        async def note(n: int) -> None:
            at.runs[n] += 1

        @beside.aggregate("*", max_size=1)
        def one_by_one(group: str, jobs: list[Job]) -> Any:
            return [beside.call("note", job.payload) for job in jobs]

        async with beside.worker({"default": 1}):
            yield at
            await until(lambda: _is_empty(redis_client), what="the end of all tasks")
        assert await check_invariant(redis_client) == []
        await app.close()
        await beside.close()


async def _is_empty(client: Any) -> bool:
    return not await client.keys("asynq:{default}:t:*")


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "task_id": {"task_id": "mine"},
    "unique": {"unique_for": 60},
    "order": {"order_key": "o"},
    "delay": {"delay": 0.01},
    "limit": {"limit_key": "l"},
    "group": {"group": "g"},
    "replace": {"task_id": "mine", "replace": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
async def test_a_task_whose_reply_was_lost_runs_once(
    server: RealServer, redis_client: Any, options: dict[str, Any]
) -> None:
    async with scene(server, redis_client) as at:
        for n in (1, 2):  # an id of one's own is free again when its task has ended
            handle = await at.lose_reply(functools.partial(at.app.enqueue, "note", {"n": n}, **options))
            assert handle.created
            await until(lambda: _is_empty(redis_client), what="the end of the task")
        await at.app.enqueue("note", {"n": 3})
        await until(lambda: at.runs[3] == 1)
        assert at.runs == {1: 1, 2: 1, 3: 1}


async def test_a_batch_whose_reply_was_lost_runs_once(server: RealServer, redis_client: Any) -> None:
    async with scene(server, redis_client) as at:
        calls = [at.app.call("note", {"n": n}) for n in range(100)]
        handles = await at.lose_reply(lambda: at.app.enqueue_many(calls), tasks=100)
        assert all(handle.created for handle in handles)
        await at.app.enqueue("note", {"n": 100})
        await until(lambda: at.runs[100] == 1)
        assert at.runs == dict.fromkeys(range(101), 1)


async def test_several_batches_in_flight_are_each_recognised(server: RealServer, redis_client: Any) -> None:
    """Two of a queue are on their way at once, and their connection breaks under both."""
    async with scene(server, redis_client) as at:
        sending = [asyncio.ensure_future(at.app.enqueue("note", {"n": n})) for n in range(300)]
        at.proxy.lose_reply = 3
        await asyncio.gather(*sending)
        await until(lambda: at.runs.total() >= 300)
        await at.app.enqueue("note", {"n": 300})
        await until(lambda: at.runs[300] == 1)
        assert at.proxy.lose_reply == 0
        assert at.runs == dict.fromkeys(range(301), 1)


async def test_a_replacement_whose_reply_was_lost_is_made_once(server: RealServer, redis_client: Any) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url), patience=PATIENCE)
        q = Queue(store.redis, redis_client)

        async def ended_task() -> None:
            await q.activate("mine")
            await q.archive("mine")

        entry = NewTask("mine", b"new", replace=True)
        await ended_task()
        assert await store.intake.add("q", entry) == CREATED  # the server has the scripts now
        await redis_client.flushdb()
        await ended_task()
        record = intake.CallRecord("", "", 0)
        proxy.marker = store.intake._replacement("q", entry, record).script.sha.encode()
        proxy.lose_reply = 1
        proxy.may_break.clear()
        adding = asyncio.ensure_future(store.intake.add("q", entry))
        await until(lambda: q.pending(), what="the new task")
        await redis_client.delete(keys.pending("q"), keys.task("q", "mine"))  # as if it had been run
        proxy.may_break.set()
        assert await adding == CREATED
        assert await q.pending() == []
        await store.close()


@asynccontextmanager
async def _lost_and_full(new_server: Callable[..., RealServer], patience: float) -> AsyncIterator[tuple[Any, Any]]:
    """A call whose reply was lost, and a server that has no room when the call is sent again."""
    server = new_server()
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url), patience=patience)
        await store.intake.add("q", NewTask("first", b""))
        proxy.may_break.clear()
        proxy.lose_reply = 1
        adding = asyncio.ensure_future(store.intake.add("q", NewTask("a", b"")))
        await until(lambda: client.exists(keys.task("q", "a")))
        await client.config_set("maxmemory", 1)
        proxy.may_break.set()
        yield client, adding
        assert await Queue(store.redis, client).pending() == ["first", "a"]
        await store.close()
        await client.aclose()


async def test_a_stored_task_is_not_called_refused_because_the_server_is_full_now(
    new_server: Callable[..., RealServer],
) -> None:
    async with _lost_and_full(new_server, patience=1.0) as (_, adding):
        with pytest.raises(ConnectionLost, match="whether the tasks were stored is not known"):
            await adding


async def test_a_server_that_was_not_ready_has_stored_nothing(new_server: Callable[..., RealServer]) -> None:
    """Full by the second try, it is a full server, and not one that may have the task."""
    server = new_server()
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    store = Store(connect(server.url), patience=5.0)
    await store.intake.add("q", NewTask("first", b""))
    await client.execute_command("REPLICAOF", "127.0.0.1", "1")  # it refuses to write
    adding = asyncio.ensure_future(store.intake.add("q", NewTask("a", b"")))

    async def has_refused() -> bool:
        return bool((await client.info("errorstats")).get("errorstat_READONLY"))

    await until(has_refused, what="a refusal")
    await client.config_set("maxmemory", 1)
    await client.execute_command("REPLICAOF", "NO", "ONE")
    with pytest.raises(ServerFull):
        await adding
    assert await Queue(store.redis, client).pending() == ["first"]
    await store.close()
    await client.aclose()


async def test_a_call_whose_reply_was_lost_is_recognised_once_a_full_server_has_room(
    new_server: Callable[..., RealServer],
) -> None:
    async with _lost_and_full(new_server, patience=2 * PATIENCE) as (client, adding):

        async def has_refused() -> bool:
            return bool((await client.info("errorstats")).get("errorstat_OOM"))

        await until(has_refused, what="a refusal")
        await client.config_set("maxmemory", 0)
        assert await adding == CREATED


@VALKEY_ONLY
async def test_a_call_is_not_sent_again_after_the_patience_although_only_this_process_stood_still(
    server: RealServer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record may be gone by then: the caller gets the error of the first try."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url), patience=60)
        await store.intake.add("q", NewTask("first", b""))
        sleep = asyncio.sleep

        async def stand_still(seconds: float) -> None:
            now[0] += 61
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", stand_still)
        proxy.lose_reply = 1
        with pytest.raises(ConnectionLost):
            await store.intake.add("q", NewTask("a", b""))
        monkeypatch.undo()
        await store.close()
    assert await Queue(store.redis, redis_client).pending() == ["first", "a"]


async def test_a_copy_of_a_producer_loses_no_task(server: RealServer, redis_client: Any) -> None:
    """A machine that is cloned while it runs goes on with the same numbers in the same slots."""
    stores = [Store(connect(server.url)) for _ in range(2)]
    for store in stores:
        store.intake._producer = "same"
    for n in range(5):
        for name, store in zip("ab", stores, strict=True):
            assert await store.intake.add("q", NewTask(f"{name}{n}", b"")) == CREATED
            assert await store.intake.add("q", NewTask(f"{name}{n}", b"")) == ID_EXISTS
    assert len(await Queue(stores[0].redis, redis_client).pending()) == 10
    assert len(await redis_client.keys("*:sent:*")) == 2, "one of them has another name now"
    for store in stores:
        await store.close()


async def test_a_copy_of_a_producer_whose_reply_was_lost_reports_that(server: RealServer, redis_client: Any) -> None:
    """Its record has been overwritten: nobody knows whether its task was stored, so it is not stored again."""
    async with proxy_before(server.socket) as proxy:
        copy, other = Store(connect(proxy.url), patience=PATIENCE), Store(connect(server.url))
        copy.intake._producer = other.intake._producer = "same"
        await copy.intake.add("q", NewTask("first", b""))
        other.intake._number = 7
        proxy.may_break.clear()
        proxy.lose_reply = 1
        adding = asyncio.ensure_future(copy.intake.add("q", NewTask("a", b"")))
        q = Queue(other.redis, redis_client)
        await until(lambda: redis_client.exists(q.task("a")))
        await other.intake.add("q", NewTask("b", b""))
        proxy.may_break.set()
        with pytest.raises(ConnectionLost, match="not known"):
            await adding
        assert await q.pending() == ["first", "a", "b"]
        for store in (copy, other):
            await store.close()


@VALKEY_ONLY
async def test_a_fork_is_a_producer_of_its_own(server: RealServer, redis_client: Any) -> None:
    app = App(server.url)
    await app.enqueue("t", b"0")
    ours = app._client().store.intake

    def in_child() -> str:
        app.enqueue_sync("t", b"1")
        return ours._producer

    theirs = await in_a_fork(in_child)
    assert theirs != ours._producer
    await app.enqueue("t", b"2")
    await app.close()
    assert await redis_client.llen(keys.pending("default")) == 3
    assert len(await redis_client.keys("*:sent:*")) == 2


async def test_slots_are_used_again_and_belong_to_one_queue(server: RealServer, redis_client: Any) -> None:
    store = Store(connect(server.url))
    for n in range(20):
        await asyncio.gather(*[store.intake.add_many(f"q{i % 4}", [NewTask(f"{n}-{i}", b"")]) for i in range(8)])
    assert len(await redis_client.keys("*:sent:*")) == 8, "two for each of four queues"
    cancelled = asyncio.ensure_future(store.intake.add("q0", NewTask("x", b"")))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await store.intake.add("q0", NewTask("y", b""))
    assert len(await redis_client.keys("*:sent:*")) == 8
    await store.close()


async def test_a_record_lives_twice_the_patience_and_half_a_minute(server: RealServer, redis_client: Any) -> None:
    store = Store(connect(server.url), patience=60)
    await store.intake.add("q", NewTask("a", b""))
    (record,) = await redis_client.keys("*:sent:*")
    assert 140 < await redis_client.ttl(record) <= 150
    await store.close()
