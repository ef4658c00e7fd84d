"""What Asynq's users ask for: replace, retries at the front, closed queues, limits of the archive, a prefix."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.integration.support import FAST, Look
from tests.support.keyspace import snapshot
from tests.support.proxy import proxy_before
from tests.support.servers import PRODUCTS, VALKEY_ONLY, RealServer
from tests.support.waiting import until
from veredus import App, ConfigError, QueueClosed, QueueNotFound, TaskIdConflict
from veredus.model.archive import ArchiveLimits
from veredus.wire import keys

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


# Replace.


@pytest.mark.parametrize("fails", [True, False], ids=["archived", "completed"])
async def test_an_ended_task_makes_room_for_a_new_one_with_its_id(app: App, look: Look, fails: bool) -> None:
    runs: list[int] = []

    @app.task(name="nightly", max_retry=0, retention=600)
    async def nightly(n: int) -> None:
        runs.append(n)
        if fails:
            raise RuntimeError("no")

    state = "archived" if fails else "completed"
    async with app.worker(**FAST):
        await nightly.using(task_id="tonight").enqueue(1)
        await look.ends("tonight", state)
        with pytest.raises(TaskIdConflict):
            await nightly.using(task_id="tonight").enqueue(2)
        handle = await nightly.using(task_id="tonight", replace=True).enqueue(3)
        assert handle.created
        await until(lambda: runs == [1, 3])
        await look.ends("tonight", state)
    assert await look.counters() == (2, 2 if fails else 0)


async def test_one_that_has_not_ended_is_not_replaced(app: App, look: Look) -> None:
    await app.enqueue("t", b"1", task_id="x")
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", b"2", task_id="x", replace=True)
    first, second = await app.enqueue_many(
        [app.call("t", b"3", task_id="x", replace=True), app.call("t", b"4", task_id="y", replace=True)]
    )
    assert (first.created, second.created) == (False, True)
    assert (await look.message("x")).payload == b"1"


async def test_a_batch_replaces_too(app: App, look: Look) -> None:
    inspector = app.inspector()
    await app.enqueue("t", b"1", task_id="x")
    await inspector.archive("default", "x")
    (handle,) = await app.enqueue_many([app.call("t", b"2", task_id="x", replace=True)])
    assert handle.created
    assert (await look.message("x")).payload == b"2"
    with pytest.raises(ConfigError, match="replace"):
        await app.enqueue("t", b"2", task_id="x", replace="yes")  # type: ignore[arg-type]


# Retries at the front.


@pytest.mark.parametrize("by_task", [True, False])
async def test_a_retry_goes_to_the_front_of_the_line_if_asked(app: App, look: Look, by_task: bool) -> None:
    order: list[str] = []
    go_on = asyncio.Event()

    @app.task(name="step", retry_delay=0.2, retry_front=True if by_task else None)
    async def step(name: str) -> None:
        order.append(name)
        if order == ["first"]:
            raise RuntimeError("once more")
        if name == "slow":
            await go_on.wait()

    first = await step.enqueue("first")
    await step.enqueue("slow")
    async with app.worker(concurrency=1, retry_front=not by_task, **FAST):
        await until(lambda: order == ["first", "slow"])
        for n in range(20):
            await step.enqueue(str(n))

        async def due() -> bool:
            return await look.state(first.id) == "pending"

        await until(due)
        go_on.set()
        await until(lambda: len(order) == 23)
    assert order[:4] == ["first", "slow", "first", "0"]


# Deferrals.


async def test_what_is_no_failure_ends_after_so_many_deferrals(app: App, look: Look) -> None:
    runs: list[int] = []

    @app.task(name="wait", retry_delay=0, max_retry=3)
    async def wait() -> None:
        runs.append(1)
        raise TimeoutError("not yet")

    async with app.worker(is_failure=lambda error: not isinstance(error, TimeoutError), max_deferrals=5, **FAST):
        handle = await wait.enqueue()
        message = await look.ends(handle.id, "archived")
    assert len(runs) == 6
    assert message is not None
    assert (message.retried, message.error_msg) == (0, "TimeoutError: not yet")
    assert (await look.fields(handle.id))["deferrals"] == b"5"


async def test_a_task_whose_deferrals_cannot_be_read_is_put_off_once_more(app: App, look: Look) -> None:
    @app.task(name="wait", retry_delay=600)
    async def wait() -> None:
        raise TimeoutError("not yet")

    handle = await wait.enqueue()
    await look.client.hset(look.task(handle.id), "deferrals", "many")
    async with app.worker(is_failure=lambda error: False, max_deferrals=1, **FAST):
        await look.ends(handle.id, "retry")


# Closed queues.


async def _without_calls(look: Look) -> dict[str, Any]:
    """All keys but the records of producers' calls, which are kept for a while also of those that were refused."""
    return {name: key for name, key in (await snapshot(look.client)).items() if ":sent:" not in name}


async def test_a_closed_queue_takes_nothing_in_and_goes_on_with_what_it_has(app: App, look: Look) -> None:
    ran: list[int] = []

    @app.task(name="step")
    async def step(n: int) -> None:
        ran.append(n)

    inspector = app.inspector()
    await step.enqueue(1)
    await step.using(delay=0.5).enqueue(2)
    assert await inspector.close_queue("default")
    assert not await inspector.close_queue("default")
    before = await _without_calls(look)
    for option in ({}, {"delay": 1}, {"group": "g"}, {"unique_for": 60}, {"task_id": "x", "replace": True}):
        with pytest.raises(QueueClosed, match="default"):
            await step.using(**option).enqueue(3)
    with pytest.raises(QueueClosed):
        await app.enqueue_many([step.call(3), step.call(4)])
    assert await _without_calls(look) == before
    async with app.worker(**FAST):
        await until(lambda: sorted(ran) == [1, 2])
        assert await inspector.is_closed("default")
        assert await inspector.open_queue("default")
        assert not await inspector.open_queue("default")
        await step.enqueue(5)
        await until(lambda: sorted(ran) == [1, 2, 5])


async def test_a_schedule_passes_over_a_closed_queue(app: App, look: Look, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "veredus")

    @app.cron("@every 1s")
    async def tick() -> None: ...

    with pytest.raises(QueueNotFound):
        await app.inspector().close_queue("default")
    await app.enqueue("t", delay=3600)
    await app.inspector().close_queue("default")
    async with app.worker(**FAST):
        await until(lambda: "was not enqueued: its queue is closed" in caplog.text)
        assert await look.pending() == []
    assert await look.counters() == (0, 0)


# The archive.


async def test_the_archive_keeps_as_many_as_its_app_says(url: str, look: Look) -> None:
    app = App(url, archive_size=3)

    @app.task(name="bad", max_retry=0)
    async def bad() -> None:
        raise RuntimeError("no")

    async with app.worker(concurrency=1, **FAST):
        for _ in range(8):
            await bad.enqueue()

        async def done() -> bool:
            return bool(await look.client.get(keys.failed("default")) == b"8")

        await until(done)
    assert len(await look.scores("archived")) == 3
    waiting = await bad.enqueue()
    await app.cancel(waiting.id)
    await app.inspector().archive("default", (await bad.enqueue()).id)
    assert len(await look.scores("archived")) == 3
    await app.close()


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "9"])
def test_limits_of_the_archive_are_checked(given: Any) -> None:
    for name in ("archive_size", "archive_days"):
        with pytest.raises(ConfigError, match=name):
            App(**{name: given})


def test_limits_of_the_archive_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert App().archive == ArchiveLimits(size=9_999, days=90)
    monkeypatch.setenv("VEREDUS_ARCHIVE_SIZE", "500")
    monkeypatch.setenv("VEREDUS_ARCHIVE_DAYS", "7")
    assert App().archive == ArchiveLimits(size=500, days=7)
    assert App(archive_size=3).archive == ArchiveLimits(size=3, days=7)
    monkeypatch.setenv("VEREDUS_ARCHIVE_DAYS", "soon")
    with pytest.raises(ConfigError, match="VEREDUS_ARCHIVE_DAYS"):
        App()


# A prefix.

_SHOP = """
import asyncio
from datetime import timedelta
from veredus import App

app = App()

@app.task(name="step", max_retry=0, retention=60)
async def step(n: int) -> int:
    if n < 0:
        raise ValueError(n)
    return n

@app.cron("@every 1h", name="hourly")
async def hourly() -> None: ...

@app.aggregate("g", grace=1)
def join(group, jobs):
    return step.call(len(jobs))

async def main():
    async with app, app.worker(lease=1.5):
        handle = await step.using(unique_for=60).enqueue(7)
        assert await handle.result(timeout=10) == 7
        bad = await step.enqueue(-1)
        await step.using(delay=60).enqueue(1)
        await step.using(group="g").enqueue(2)
        while (await bad.status()).state != "archived":
            await asyncio.sleep(0.02)
        inspector = app.inspector()
        assert await inspector.queues() == ["default"]
        info = await inspector.queue("default")
        assert (info.archived, info.scheduled) == (1, 1), info
        assert await inspector.servers()
        assert not [f for f in await inspector.doctor.diagnose() if f.task_id]
        print("good")

asyncio.run(main())
"""


async def test_with_a_prefix_of_its_own_a_system_shares_no_key_with_others(url: str, look: Look) -> None:
    environment = {**os.environ, "VEREDUS_KEY_PREFIX": "shop", "VEREDUS_REDIS_URL": url}
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _SHOP], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "good\n", ended.stderr
    names = [name.decode() for name in await look.client.keys("*")]
    assert len(names) > 5
    assert all(name.startswith("shop:") for name in names), names
    app = App(url)
    assert await app.inspector().queues() == []
    await app.close()


@pytest.mark.parametrize("bad", ["{shop}", "my shop", "a*"])
def test_a_prefix_that_would_break_the_keys_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="VEREDUS_KEY_PREFIX"):
        keys.checked_prefix(bad)


# The server's memory.


async def test_a_worker_warns_of_a_server_that_evicts(
    new_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server("--maxmemory-policy", "allkeys-lru")
    app = App(server.url)
    async with app.worker("default", **FAST):
        assert "maxmemory-policy is allkeys-lru" in caplog.text
    await app.close()


@pytest.mark.parametrize("product", PRODUCTS)
async def test_a_server_that_is_too_old_is_refused_at_the_start(
    new_server: Callable[..., RealServer], product: str
) -> None:
    server = new_server(product=product)
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url)
        with server.client() as client:
            version: str = client.info("server")["redis_version"]
        proxy.instead = {f"redis_version:{version}".encode(): f"redis_version:5{version[1:]}".encode()}
        with pytest.raises(ConfigError, match=r"5\..*Redis 6.2 or newer"):
            await app.worker("default", **FAST).start()
        await app.close()


async def test_a_worker_that_starts_waits_for_a_server_that_is_not_ready_yet(
    new_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server("--lua-time-limit", "1")
    app = App(server.url)
    with server.client() as busy, server.client() as client:
        looping = asyncio.create_task(asyncio.to_thread(_loop_until_killed, busy))
        await until(lambda: _is_busy(client))
        worker = app.worker("default", **FAST)
        starting = asyncio.create_task(worker.start())
        await until(lambda: "the server is not ready yet: BUSY" in caplog.text or starting.done())
        client.script_kill()
        await starting
        await looping
    await worker.stop()
    await app.close()


def _loop_until_killed(client: Any) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match="killed"):
        client.eval("while true do end", 0)


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.exceptions.ResponseError as exc:
        return "BUSY" in str(exc)
    return False
