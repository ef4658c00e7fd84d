"""Connections that died without a word, as behind a NAT that forgot them: a call goes on over a fresh one."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import veredus.lua
from tests.support.proxy import proxy_before
from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import until
from veredus import App
from veredus.errors import ConnectionLost
from veredus.store.connection import connection, repeats
from veredus.store.connection.connection import KEEPALIVE
from veredus.store.connection.redis import SingleServer
from veredus.store.store import Store, connect
from veredus.store.tasks.intake import CREATED, NewTask
from veredus.wire import keys

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server"), pytest.mark.timeout(120)]
LONG = 20.0
"""Seconds that a server has for an answer: nothing here may wait for that."""


@pytest.mark.parametrize("replies_only", [False, True], ids=["request", "reply"])
async def test_an_enqueue_over_a_forgotten_connection_is_stored_once_within_the_patience(
    server: RealServer, redis_client: Any, replies_only: bool
) -> None:
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url)  # with the defaults: both the patience and the time for an answer are 5 seconds
        await app.enqueue("t", b"1")
        proxy.forget(replies_only=replies_only)
        assert (await app.enqueue("t", b"2")).created
        assert len(await app.enqueue_many([app.call("t", b"3") for _ in range(3)])) == 3
        await app.close()
    assert await redis_client.llen(keys.pending("default")) == 5


async def test_what_reads_is_asked_again_on_a_fresh_connection(server: RealServer) -> None:
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url, timeout=LONG)
        handle = await app.enqueue("t", b"1")
        inspector = app.inspector()
        began = time.monotonic()
        proxy.forget()
        assert await inspector.queues() == ["default"]
        proxy.forget()
        assert (await handle.status()).state == "pending"
        proxy.forget()
        assert (await inspector.task("default", handle.id)).id == handle.id
        proxy.forget()
        with pytest.raises(TimeoutError):
            await handle.result(timeout=3.0)
        assert time.monotonic() - began < LONG
        await app.close()


async def test_a_change_over_a_connection_that_was_idle_goes_to_a_fresh_one(
    server: RealServer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be sent again: so the connection is checked before."""
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url, timeout=LONG))
        await store.ping()
        monkeypatch.setattr(connection, "IDLE", 0.0)
        proxy.forget()
        pushed = await asyncio.gather(*[store.redis.command("RPUSH", "x", n, key="x") for n in range(10)])
        assert sorted(pushed) == list(range(1, 11))
        assert proxy.connections == 2
        await store.close()
    assert await redis_client.llen("x") == 10


async def test_a_change_whose_reply_is_lost_is_reported_and_not_made_twice(
    server: RealServer, redis_client: Any
) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url, timeout=LONG))
        await store.ping()
        proxy.forget(replies_only=True)
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="does on a new one"):
            await store.redis.command("RPUSH", "x", 1, key="x")
        assert time.monotonic() - began < LONG
        assert await store.redis.command("LLEN", "x", key="x") == 1, "over the new one"
        assert proxy.connections == 2
        await store.close()


async def test_an_idle_connection_that_answers_is_kept(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url))
        await store.ping()
        monkeypatch.setattr(connection, "IDLE", 0.0)
        for _ in range(3):
            await store.redis.command("RPUSH", "x", 1, key="x")
        assert proxy.connections == 1
        await store.close()


@pytest.mark.parametrize("which", ["ALL", "WRITE"])
async def test_a_server_that_is_only_slow_keeps_its_connection(
    new_server: Callable[..., RealServer], which: str
) -> None:
    """A fresh connection is not answered either, so nothing is concluded: the first try is answered at last."""
    server = new_server()
    store = Store(connect(server.url, timeout=LONG))
    await store.intake.add("q", NewTask("first", b""))
    assert isinstance(store.redis, SingleServer)
    used = store.redis._connection
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", "2500", which)
        assert await store.intake.add("q", NewTask("a", b"")) == CREATED
        assert store.redis._connection is used
        assert used is not None
        assert used.alive
        await until(lambda: len(client.client_list()) == 2, what="the end of the connection that was tried")
    await store.close()


async def test_a_server_that_is_slow_only_with_what_it_is_asked_answers_at_last(
    server: RealServer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh connections are answered at once and the calls are not, on each of them: longer and longer is waited."""
    monkeypatch.setattr(connection, "SILENCE", 0.1)
    async with proxy_before(server.socket) as proxy:
        proxy.marker, proxy.delay = b"EVALSHA", 0.5
        store = Store(connect(proxy.url, timeout=LONG))
        for task_id in ("a", "b", "c"):
            assert await store.intake.add("q", NewTask(task_id, b"")) == CREATED
        assert proxy.connections < 10
        await store.close()
    assert await redis_client.llen(keys.pending("q")) == 3


async def test_a_connection_that_answered_and_fell_silent_is_soon_replaced_again(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENCE", 0.1)
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url, timeout=LONG))
        began = time.monotonic()
        for number in range(8):
            assert await store.intake.add("q", NewTask(str(number), b"")) == CREATED
            proxy.forget()
            assert await store.redis.command("LLEN", keys.pending("q"), key=keys.pending("q")) == number + 1
        assert time.monotonic() - began < LONG
        await store.close()


async def test_a_batch_of_calls_repeats_only_what_reads(server: RealServer, redis_client: Any) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url, timeout=LONG))
        await store.intake.add("q", NewTask("a", b""))
        proxy.forget(replies_only=True)
        size, pushed, there = await store.redis.command_each(
            [("LLEN", keys.pending("q")), ("RPUSH", "x", 1), ("EXISTS", keys.task("q", "a"))]
        )
        assert (size, there) == (1, 1)
        assert isinstance(pushed, ConnectionLost)
        proxy.forget()
        looked = await store.results.look_at_all([("q", "a")], "")
        assert looked[0].state == "pending"
        await store.close()
    assert await redis_client.llen("x") == 1


async def test_the_system_is_asked_to_keep_connections_alive(new_server: Callable[..., RealServer]) -> None:
    port = free_port()
    new_server(port=port)
    store = Store(connect(f"redis://127.0.0.1:{port}"))
    await store.ping()
    assert isinstance(store.redis, SingleServer)
    used = store.redis._connection
    assert used is not None
    assert used._transport is not None
    raw = used._transport.get_extra_info("socket")
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = {name: getattr(socket, name) for name in KEEPALIVE if hasattr(socket, name)}
    assert found
    assert {name: raw.getsockopt(socket.IPPROTO_TCP, option) for name, option in found.items()} == {
        name: KEEPALIVE[name] for name in found
    }
    probed = store.liveness.subscription("worker", probes=1.0)
    await probed.open(lambda: None)
    assert probed._connection is not None
    assert probed._connection._transport is not None
    raw = probed._connection._transport.get_extra_info("socket")
    assert raw.getsockopt(socket.IPPROTO_TCP, found.get("TCP_KEEPIDLE", found.get("TCP_KEEPALIVE"))) == 1
    probed.close()
    await store.close()


WRITES = re.compile(r"redis\.p?call\('(?!(?:EXISTS|GET|MGET|H(?:GET|MGET|GETALL|LEN|EXISTS)|L(?:LEN|RANGE|INDEX|POS)|"
                    r"S(?:CARD|MEMBERS|ISMEMBER|CAN|SCAN|RANDMEMBER)|TIME|TYPE|P?TTL|STRLEN|MEMORY|X(?:RANGE|LEN)|"
                    r"Z(?:CARD|COUNT|SCORE|MSCORE|RANGE|RANGEBYSCORE|REVRANGE|RANK|SCAN))')(\w+)'")  # fmt: skip


HARMLESS_TWICE = {"result/await", "limit/acquire"}
"""They write, but nothing new the second time: tested below, and with the semaphores."""


@pytest.mark.parametrize("name", sorted(repeats.SCRIPTS - HARMLESS_TWICE))
def test_a_script_that_is_repeated_writes_nothing(name: str) -> None:
    """By itself; the functions that it calls are checked by hand."""
    source = (Path(next(iter(veredus.lua.__path__))) / f"{name}.lua").read_text(encoding="utf-8")
    assert WRITES.findall(source) == []


async def test_a_listener_that_is_repeated_is_added_once(server: RealServer, redis_client: Any) -> None:
    store = Store(connect(server.url))
    await store.intake.add("q", NewTask("a", b""))
    for _ in range(2):
        await store.results.look("q", "a", "asynq:ends:me")
    assert (await Queue(store.redis, redis_client).fields("a"))["waited"] == "asynq:ends:me"
    await store.close()
