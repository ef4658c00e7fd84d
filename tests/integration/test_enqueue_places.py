"""Sending from everywhere: threads, several loops, forked children, with and without `async with`; and topics."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import forever, until, until_sync
from veredus import App, ConfigError, Handle

pytestmark = VALKEY_ONLY


async def test_plain_threads(app: App, look: Look) -> None:
    @app.task(name="t")
    def work(n: int) -> None: ...

    def produce(n: int) -> list[str]:
        one = work.enqueue_sync(n)
        many = app.enqueue_many_sync(work.call(i) for i in range(10))
        other = app.enqueue_sync("t", {"n": 1})
        message = app.produce_sync("topic", [1])
        assert message.queue == "topic"
        return [one.id, *(handle.id for handle in many), other.id]

    with ThreadPoolExecutor(8) as pool:
        sent = await asyncio.gather(*[asyncio.get_running_loop().run_in_executor(pool, produce, n) for n in range(16)])
    ids = [task_id for part in sent for task_id in part]
    assert sorted(await look.pending()) == sorted(ids)
    assert len(await look.of("topic").pending()) == 16


async def test_synchronous_sending_inside_a_running_loop(app: App, look: Look) -> None:
    handle = app.enqueue_sync("t")
    assert await look.pending() == [handle.id]


def test_close_sync_ends_the_thread_and_its_connections_and_the_next_call_opens_them_again(server: RealServer) -> None:
    app = App(server.url)
    app.close_sync()  # nothing is open: nothing is started to close it
    assert not _blocking_threads()
    for _ in range(2):
        app.enqueue_sync("t")
        assert not _blocking_threads(), "it sends in the thread of its caller"
        app.enqueue_many_sync([app.call("t")])
        assert _blocking_threads()
        assert server.connections()
        app.close_sync()
        assert not _blocking_threads()
        until_sync(lambda: not server.connections(), what="the end of all connections")


def test_close_sync_ends_what_another_thread_waits_for(url: str) -> None:
    app = App(url)
    begun, ended = threading.Event(), list[str]()

    async def hang() -> None:
        begun.set()
        await forever()

    def wait() -> None:
        try:
            app.blocking(hang())
        except CancelledError:
            ended.append("cancelled")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(30)
    app.close_sync()
    waiting.join(30)
    assert ended == ["cancelled"]


def test_an_app_that_nobody_has_any_more_keeps_no_thread(url: str) -> None:
    app = App(url)
    app.enqueue_many_sync([app.call("t")])
    assert _blocking_threads()
    del app
    gc.collect()
    until_sync(lambda: not _blocking_threads(), what="the end of the thread")


def _blocking_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "veredus-blocking"]


async def test_many_at_once_share_few_round_trips(app: App, look: Look) -> None:
    await app.enqueue("t")
    before = (await look.client.info("stats"))["total_commands_processed"]
    handles = await asyncio.gather(*[app.enqueue("t", {"n": n}) for n in range(400)])
    after = (await look.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert len({handle.id for handle in handles}) == 400
    assert len(await look.pending()) == 401
    assert after < 40
    assert before > 0


def test_two_event_loops_one_after_the_other_and_at_once(url: str) -> None:
    app = App(url)
    ids: list[str] = []

    async def produce() -> None:
        for _ in range(5):
            ids.append((await app.enqueue("t")).id)
        await app.close()

    asyncio.run(produce())
    asyncio.run(produce())
    threads = [threading.Thread(target=lambda: asyncio.run(produce())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 25


async def test_a_forked_child_opens_connections_of_its_own(app: App, look: Look) -> None:
    await app.enqueue("t", task_id="parent-1")
    app.enqueue_sync("t", task_id="parent-2")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            app.enqueue_sync("t", task_id="child-1")
            app.enqueue_many_sync([])
            code = 0
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await app.enqueue("t", task_id="parent-3")
    app.enqueue_sync("t", task_id="parent-4")
    assert await look.pending() == ["parent-1", "parent-2", "child-1", "parent-3", "parent-4"]


async def test_an_app_can_be_closed_and_used_again(url: str, look: Look) -> None:
    async def connections() -> int:
        return len([row for row in await look.client.client_list() if row["name"].startswith("veredus")])

    before = await connections()
    app = App(url)
    async with app as same:
        assert same is app
        await app.enqueue("t")
    await app.enqueue("t")
    await app.close()
    await app.close()
    assert len(await look.pending()) == 2

    async def no_more_than_before() -> bool:
        return await connections() <= before

    await until(no_more_than_before)


@dataclass
class Order:
    id: int
    lines: list[str]


MESSAGES: list[Any] = [[1, "a"], 7, None, "text", {"id": 7}, 2.5, True]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
async def test_a_topic_carries_any_json_value(app: App, look: Look, message: Any) -> None:
    got: list[Any] = []

    @app.topic("events")
    async def consume(event: Any) -> None:
        got.append(event)

    async with app.worker(**FAST):
        handle = await app.produce("events", message)
        await until(lambda: got)
    assert isinstance(handle, Handle)
    assert (handle.queue, handle.type, handle.created) == ("events", "events", True)
    assert got == [message]


async def test_a_topic_with_a_type_validates(app: App, look: Look) -> None:
    got: list[Order] = []

    @app.topic("orders", max_retry=2, check_arguments=False)
    async def consume(order: Order) -> None:
        got.append(order)

    async with app.worker(**FAST):
        await app.produce("orders", Order(7, ["x"]))
        await app.produce("orders", {"id": 8, "lines": []}, delay=0.02)
        await consume.enqueue(Order(9, []))
        bad = await app.produce("orders", {"id": "seven", "lines": []})
        message = await look.of("orders").ends(bad.id, "retry")
        await until(lambda: len(got) == 3)
    assert message is not None
    assert "id" in message.error_msg
    assert message.retry == 2
    assert sorted(order.id for order in got) == [7, 8, 9]


async def test_a_topic_of_bytes_gets_them_raw(app: App, look: Look) -> None:
    got: list[bytes] = []

    @app.topic("raw")
    async def consume(data: bytes) -> None:
        got.append(data)

    async with app.worker(**FAST):
        await consume.enqueue(b"\x00\xff")
        await until(lambda: got == [b"\x00\xff"])


async def test_a_topic_needs_no_declaration(app: App, look: Look) -> None:
    handle = await app.produce("nobody", {"a": 1}, max_retry=1)
    message = await look.of("nobody").message(handle.id)
    assert (message.type, message.queue, message.payload, message.retry) == ("nobody", "nobody", b'{"a":1}', 1)
    with pytest.raises(ConfigError):
        await app.produce("", 1)
