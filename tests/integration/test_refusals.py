"""A server that is there but refuses: told once when it begins and once when it ends, and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.integration.support import FAST, Look
from tests.support.proxy import proxy_before
from tests.support.servers import RealServer
from tests.support.waiting import pause, until
from veredus import App, current
from veredus.worker.roles import syncer

KINDS = ("disk", "memory", "replicas", "replica", "clients")


async def _refuse(kind: str, server: RealServer, client: Any) -> None:
    if kind == "disk":
        Path(server.folder, "dump.rdb").mkdir()  # in the way of the snapshot
        await client.bgsave()

        async def has_failed() -> bool:
            return bool((await client.info("persistence"))["rdb_last_bgsave_status"] == "err")

        await until(has_failed)
    elif kind == "memory":
        await client.config_set("maxmemory", 1)
    elif kind == "replicas":
        await client.config_set("min-replicas-to-write", 1)
    elif kind == "replica":
        await client.replicaof("127.0.0.1", "1")
    else:
        await client.config_set("maxclients", 1)
        for row in await client.client_list():
            if row["cmd"] == "blmove":
                await client.client_kill_filter(_id=row["id"])


async def _accept(kind: str, server: RealServer, client: Any) -> None:
    if kind == "disk":
        Path(server.folder, "dump.rdb").rmdir()
        await client.bgsave()
    elif kind == "memory":
        await client.config_set("maxmemory", 0)
    elif kind == "replicas":
        await client.config_set("min-replicas-to-write", 0)
    elif kind == "replica":
        await client.replicaof("NO", "ONE")
    else:
        await client.config_set("maxclients", 1000)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_is_told_once_however_long_it_lasts(
    new_server: Callable[..., RealServer], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server("--save", "3600 1")
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    app, began, go = App(server.url), asyncio.Event(), asyncio.Event()

    @app.task(name="long", queue="a")
    async def long() -> None:
        began.set()
        await go.wait()

    handle = await long.enqueue()
    async with app.worker(queues=["a", "b", "c"], **(FAST | {"lease": 9.0})) as worker:
        await began.wait()
        await until(lambda: worker._roles.processor.all_empty)
        await _refuse(kind, server, client)
        await until(lambda: "Redis is not available" in caplog.text)
        go.set()
        await pause(3.0, proves="it is told no more than once")
        assert caplog.text.count("Redis is not available") == 1
        assert "available again" not in caplog.text
        await _accept(kind, server, client)
        await until(lambda: "available again" in caplog.text)
        await Look(client, "a").ends(handle.id, "gone")
        assert (caplog.text.count("Redis is not available"), caplog.text.count("available again")) == (1, 1)
    await client.aclose()
    await app.close()


async def _archived(look: Look, task_id: str) -> str:
    message = await look.ends(task_id, "archived")
    assert message is not None
    return message.error_msg


@pytest.mark.parametrize("knows", [True, False], ids=["limit known", "limit unknown"])
async def test_a_result_that_the_server_does_not_take_is_archived_with_the_reason(
    new_server: Callable[..., RealServer],
    knows: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else is held up by it, and the connection that all share is not cut for ever."""
    monkeypatch.setattr(syncer, "MOST_TRIES", 2)
    server = new_server("--proto-max-bulk-len", "1048576")
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    if not knows:
        await client.execute_command("ACL", "SETUSER", "default", "-config")
    app, look = App(server.url), Look(client)

    @app.task(name="returns")
    async def returns(size: int) -> bytes:
        return b"x" * size

    async with app.worker(**FAST) as worker:
        small = await returns.enqueue(10)
        large = await returns.enqueue(2_000_000)
        reason = await _archived(look, large.id)
        assert "2,000,000 bytes" in reason
        assert ("proto-max-bulk-len" in reason) is knows
        await look.ends(small.id, "completed")
        await look.ends((await returns.enqueue(20)).id, "completed")
        await until(lambda: worker._execution.syncer.idle and not worker._in_flight.held())
    assert caplog.text.count(f"task {large.id} of queue default is archived") == int(not knows)
    await client.aclose()
    await app.close()


async def test_a_result_for_which_the_connection_is_only_cut_is_archived_too(
    server: RealServer, redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word why: whether the server says it before it closes the connection is a matter of luck."""
    monkeypatch.setattr(syncer, "MOST_TRIES", 2)
    async with proxy_before(server.socket) as proxy:
        proxy.marker, proxy.lose_request = b"x" * 5000, 1_000_000
        app = App(proxy.url)

        @app.task(name="returns")
        async def returns(size: int) -> bytes:
            return b"x" * size

        async with app.worker(**FAST):
            large = await returns.enqueue(100_000)
            assert "100,000 bytes" in await _archived(Look(redis_client), large.id)
        await app.close()
        assert proxy.connections < 20


async def test_a_handler_that_writes_a_result_that_is_too_large_is_told(new_server: Callable[..., RealServer]) -> None:
    server = new_server("--proto-max-bulk-len", "1048576")
    app = App(server.url)

    @app.task(name="writes")
    async def writes() -> str:
        with contextlib.suppress(Exception):
            await current().write_result(b"x" * 1_048_577)
            return "written"
        return "refused"

    async with app.worker(**FAST):
        handle = await writes.enqueue()
        assert await handle.result(timeout=30) == "refused"
    await app.close()


async def test_what_a_user_may_not_do_for_a_while_is_done_later(
    new_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the fault of a task that it cannot be settled: none is archived for it, and none is told by itself."""
    server = new_server()
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    await client.execute_command("ACL", "SETUSER", "u", "on", ">secret", "~*", "&*", "+@all")
    app, began, go = App(f"unix://u:secret@{server.socket}"), 0, asyncio.Event()

    @app.task(name="long", retry_delay=0.1)
    async def long(n: int) -> int:
        nonlocal began
        began += 1
        await go.wait()
        return n

    handles = [await long.enqueue(n) for n in range(5)]
    async with app.worker(**(FAST | {"lease": 30.0})) as worker:
        await until(lambda: began == 5)
        await client.execute_command("ACL", "SETUSER", "u", "-evalsha", "-eval")
        go.set()
        await pause(4.5, proves="however often it is refused, no settlement is given up")
        assert not worker._execution.syncer.idle
        await client.execute_command("ACL", "SETUSER", "u", "+@all")
        assert [await handle.result(20) for handle in handles] == list(range(5))
    assert began == 5
    assert caplog.text.count("cannot settle") == 0
    await client.aclose()
    await app.close()
