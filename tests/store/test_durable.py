"""durability="replica" and "fsync": a task counts as sent once it is as safe as that, whatever is repeated or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.sentinels import is_replicating
from tests.support.servers import PRODUCTS, RealServer, free_port
from tests.support.waiting import until, until_sync
from veredus import App, ConfigError, NotConfirmed, NotReady, TaskIdConflict
from veredus.model.options import Options
from veredus.store.connection.replication import Replication
from veredus.store.inspect.checkups import RENAME_DAMAGED
from veredus.store.store import Store, connect
from veredus.store.tasks.intake import NewTask
from veredus.wire import keys

New = Callable[..., RealServer]


def pair(new_server: New, product: str = "valkey") -> tuple[RealServer, RealServer]:
    master = new_server("--repl-diskless-sync-delay", "0", port=free_port(), product=product)
    replica = new_server("--replicaof", "127.0.0.1", str(master.port), port=free_port(), product=product)
    until_sync(lambda: is_replicating(replica), what="the replication")
    return master, replica


def raw_length(server: RealServer) -> int:
    return len(server.client().lrange(keys.pending("default"), 0, -1))


def calls_of(server: RealServer, command: str) -> int:
    return int(server.client().info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("product", PRODUCTS)
async def test_every_kind_of_task_is_on_the_replica_when_it_counts_as_sent(new_server: New, product: str) -> None:
    master, replica = pair(new_server, product)
    app = App(master.url, durability="replica")

    @app.task(name="t")
    async def task(n: int) -> None: ...

    soon = datetime.now(UTC) + timedelta(hours=1)
    kinds: list[dict[str, Any]] = [
        {},
        {"delay": 60},
        {"at": soon},
        {"unique_for": 60},
        {"order_key": "k"},
        {"limit_key": "k"},
        {"group": "g"},
        {"task_id": "given"},
    ]
    there = replica.client()
    for n, options in enumerate(kinds):
        handle = await task.using(**options).enqueue(n)
        assert there.exists(keys.task("default", handle.id)), options
    handles = await app.enqueue_many([task.using(**options).call(100 + n) for n, options in enumerate(kinds[:-1])])
    assert all(there.exists(keys.task("default", handle.id)) for handle in handles)
    handle = await asyncio.to_thread(task.enqueue_sync, 1000)
    assert there.exists(keys.task("default", handle.id))
    assert calls_of(master, "wait") > len(kinds)
    waits = calls_of(master, "wait")
    await task.using(durability="any").enqueue(1001)
    assert calls_of(master, "wait") == waits, "a call may ask for less than its app"
    app.close_sync()
    await app.close()


async def test_a_store_closes_the_connections_that_confirm_too(new_server: New) -> None:
    master, _ = pair(new_server)
    before = {row.split(" ")[0] for row in master.connections()}
    store = Store(connect(master.url))
    await store.intake_with("replica").add("q", NewTask("a", b""))
    await store.intake.add("q", NewTask("b", b""))

    def ours() -> set[str]:
        return {row for row in master.connections() if row.split(" ")[0] not in before}

    assert len(ours()) == 2
    await store.close()
    await until(lambda: not ours(), what="the connections closed")
    assert store.intake_with("replica"), "they do not end only because nobody holds them any more"


async def test_many_callers_share_one_confirmation(new_server: New) -> None:
    master, _ = pair(new_server)
    app = App(master.url, durability="replica")

    async def send(n: int) -> None:
        await app.enqueue("t", n)

    await send(0)
    before = calls_of(master, "wait")
    await asyncio.gather(*[send(n) for n in range(400)])
    assert calls_of(master, "wait") - before <= 10
    before = calls_of(master, "wait")
    await app.enqueue_many(app.call("t", n) for n in range(2_000))
    assert calls_of(master, "wait") - before <= 10
    await app.close()


async def test_what_replicas_do_not_confirm_is_told_with_its_handle(new_server: New) -> None:
    master, replica = pair(new_server)
    app = App(master.url, durability="replica", patience=0.6)

    @app.task(name="t")
    async def task(n: int) -> None: ...

    await task.using(unique_for=60).enqueue(0)
    replica.freeze()
    try:
        with pytest.raises(
            NotConfirmed, match=r"^task \S+ is stored on \S+, but 0 of 1 replicas confirmed it"
        ) as caught:
            await task.using(task_id="mine").enqueue(1)
        assert [handle.id for handle in caught.value.handles] == ["mine"]
        assert master.client().exists(keys.task("default", "mine"))
        with pytest.raises(TaskIdConflict):
            await task.using(task_id="mine").enqueue(1)
        with pytest.raises(NotConfirmed, match=r"^2 of 3 tasks are stored on") as caught:
            await app.enqueue_many([task.call(2), task.using(unique_for=60).call(0), task.using(delay=9).call(3)])
        assert [handle.created for handle in caught.value.handles] == [True, False, True]
    finally:
        replica.thaw()
    assert (await task.enqueue(4)).created
    assert replica.client().exists(keys.task("default", "mine")), "it came there later"
    await app.close()


@pytest.mark.parametrize("product", PRODUCTS)
async def test_a_repeated_call_is_confirmed_anew(new_server: New, product: str) -> None:
    """WAIT looks at what its own connection wrote. After a lost reply the task is there and nothing is written: the
    replica that does not have it yet must not pass for one that confirmed."""
    master, replica = pair(new_server, product)
    app = App(master.url, durability="replica", patience=3.0)
    await app.enqueue("t", 0)
    replica.freeze()
    try:
        sending = asyncio.create_task(app.enqueue("t", 1))
        await until(lambda: raw_length(master) == 2)
        master.client().execute_command("CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(NotConfirmed):
            await sending
    finally:
        replica.thaw()
    assert raw_length(master) == 2
    await app.close()


async def test_a_call_that_writes_nothing_is_confirmed_for_what_was_written_before(new_server: New) -> None:
    """Such as a repeated one: to a connection that has written nothing the server confirms anything."""
    master, replica = pair(new_server)
    redis = connect(master.url)
    durable = Replication(redis, "replica")
    look = ([keys.archived("q"), f"{keys.queue_prefix('q')}damaged:archived"], ["zset"])
    assert await durable.run(RENAME_DAMAGED, *look) == 0
    replica.freeze()
    try:
        await redis.command("SET", "written", "by another connection", key="written")
        with pytest.raises(NotConfirmed):
            await durable.run(RENAME_DAMAGED, *look)
    finally:
        replica.thaw()
    await durable.close()
    await redis.close()


async def test_without_a_replica_nothing_is_stored(server: RealServer) -> None:
    app = App(server.url, durability="replica", patience=0.2)
    with pytest.raises(NotReady, match=r"no replica is connected to .*; nothing was stored"):
        await app.enqueue("t")
    assert server.client().keys("asynq:{*") == []
    await app.close()


@pytest.mark.parametrize("product", PRODUCTS)
async def test_a_server_that_cannot_confirm_is_told_before_anything_is_stored(new_server: New, product: str) -> None:
    server = new_server(product=product)
    app = App(server.url, patience=0.2)
    with pytest.raises(ConfigError, match=r"^durability: got 'fsync', expected any or replica: fsync needs Redis 7.2"):
        await app.enqueue("t", durability="fsync")
    assert server.client().keys("asynq:{*") == []
    await app.close()


async def test_on_disk(new_server: New) -> None:
    server = new_server("--appendonly", "yes")
    app = App(server.url)
    await app.enqueue("t", 1, durability="fsync")
    await app.enqueue("t", 1, durability="fsync", delay=60)
    assert calls_of(server, "waitaof") >= 2
    server.kill()
    server.start()
    assert server.client().llen(keys.pending("default")) == 1
    assert server.client().zcard(keys.scheduled("default")) == 1
    await app.close()


def test_a_wrong_word_is_refused() -> None:
    for make in (lambda: App(durability="disk"), lambda: Options().merged({"durability": "disk"})):
        with pytest.raises(ConfigError, match=r"^durability: got 'disk', expected one of any, replica, fsync"):
            make()
