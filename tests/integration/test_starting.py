"""A start that fails closes what it opened: threads, connections, the lifespan, what runs beside the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App, Call, Job, StoreError
from veredus.store.store import Store
from veredus.wire import keys
from veredus.worker import worker as worker_module
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.limiter import Limiter
from veredus.worker.worker import Worker

pytestmark = VALKEY_ONLY


class Fault(Exception):
    """What goes wrong at a start."""


def _fail(*args: Any) -> Any:
    raise Fault


async def _fail_later(*args: Any) -> Any:
    raise Fault


@asynccontextmanager
async def _failing_companion(worker: Worker) -> AsyncIterator[None]:
    if worker.app:
        raise Fault
    yield


STEPS: dict[str, tuple[Any, str]] = {
    "server": (worker_module, "check_server"),
    "parts": (Worker, "_compose"),
    "limits": (Limiter, "declare"),
    "burst": (Forwarder, "step"),
}


@pytest.mark.parametrize("step", [*STEPS, "lifespan", "companion"])
async def test_a_start_that_fails_closes_what_it_opened(
    url: str, look: Look, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Connections that are left behind fail every test."""
    trail: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[str]:
        if step == "lifespan":
            raise Fault
        trail.append("lifespan opened")
        yield "pool"
        trail.append("lifespan closed")

    @asynccontextmanager
    async def companion(worker: Worker) -> AsyncIterator[None]:
        trail.append("companion opened")
        yield
        trail.append("companion closed")

    app = App(url, lifespan=lifespan)
    app.state = "before"

    @app.task
    async def work() -> None: ...

    @app.aggregate("*", grace=1)
    def digest(group: str, jobs: list[Job]) -> Call[Any]:
        return work.call()

    if step in STEPS:
        monkeypatch.setattr(*STEPS[step], _fail if step == "parts" else _fail_later)
    companions = [companion, _failing_companion] if step == "companion" else [companion]
    worker = app.worker(**FAST, burst=True, companions=companions)
    before = set(threading.enumerate())
    with pytest.raises(Fault):
        await worker.start()
    assert [thread for thread in threading.enumerate() if thread not in before and "heart" in thread.name] == []
    assert trail[len(trail) // 2 :] == [one.replace("opened", "closed") for one in reversed(trail[: len(trail) // 2])]
    assert ("lifespan opened" in trail) == (step not in ("server", "lifespan"))
    assert ("companion opened" in trail) == (step == "companion")
    assert app.state == "before"
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("veredus")] == []
    assert await look.client.zcard(keys.SERVERS) == 0
    await app.close()


async def test_a_companion_that_fails_to_close_does_not_keep_the_lifespan_open(
    url: str, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    trail: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[str]:
        yield "pool"
        trail.append("closed")

    @asynccontextmanager
    async def companion(worker: Worker) -> AsyncIterator[None]:
        yield
        raise Fault

    app = App(url, lifespan=lifespan)

    @app.task
    async def work() -> None: ...

    async with app.worker(**FAST, companions=[companion]):
        assert app.state == "pool"
    assert trail == ["closed"]
    assert "a companion failed to close" in caplog.text
    await app.close()


async def test_the_threads_of_aggregate_functions_end_with_the_worker(app: App, look: Look) -> None:
    seen: list[threading.Thread] = []

    @app.task(name="summary")
    async def summary() -> None: ...

    @app.aggregate("*", grace=1, max_size=1)
    def digest(group: str, jobs: list[Job]) -> Call[Any]:
        seen.append(threading.current_thread())
        return summary.call()

    async with app.worker(**FAST):
        await app.enqueue("item", {}, group="g")
        await until(lambda: seen)
    await asyncio.to_thread(seen[0].join, PATIENCE)
    assert not seen[0].is_alive()


async def test_two_workers_of_one_app_have_the_state_of_the_last_one_as_long_as_it_runs(url: str, look: Look) -> None:
    opened: list[int] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[list[int]]:
        opened.append(len(opened))
        yield [len(opened)]

    app = App(url, lifespan=lifespan)

    @app.task
    async def work() -> None: ...

    first, second = app.worker(**FAST), app.worker(**FAST)
    await first.start()
    await second.start()
    await first.stop()
    assert app.state == [2]
    await second.stop()
    await app.close()


async def test_a_scheduler_that_cannot_start_closes_its_connection(
    app: App, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Any] = []

    @app.cron("@every 1h")
    async def tick() -> None: ...

    async def away(store: Store) -> None:
        stores.append(store)  # or it would be closed for being forgotten
        await store.redis.command("PING", key="")
        raise StoreError("away")

    monkeypatch.setattr(Store, "ping", away)
    with pytest.raises(StoreError):
        await app.scheduler().start()

    async def is_gone() -> bool:
        return not any("scheduler" in one["name"] for one in await look.client.client_list())

    await until(is_gone)
