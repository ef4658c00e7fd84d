"""Every part of a worker that lives as long as its process comes back, is counted, and makes health red meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.restarts.support import Broken, Failing
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App, Limit
from veredus.scheduler.scheduler import Scheduler
from veredus.store.tasks.work import Work
from veredus.telemetry.worker_metrics import Metrics
from veredus.wire import keys
from veredus.worker.health import problems
from veredus.worker.liveness import LivenessKeeper
from veredus.worker.roles import heartbeater
from veredus.worker.roles.aggregator import Aggregator
from veredus.worker.roles.child_relayer import ChildRelayer
from veredus.worker.roles.follow_relayer import FollowRelayer
from veredus.worker.roles.forwarder import Forwarder
from veredus.worker.roles.go_watcher import GoWatcher
from veredus.worker.roles.healthchecker import Healthchecker
from veredus.worker.roles.heartbeater import Heartbeater
from veredus.worker.roles.janitor import Janitor
from veredus.worker.roles.limiter import Limiter
from veredus.worker.roles.pending_watcher import PendingWatcher
from veredus.worker.roles.processor import Processor
from veredus.worker.roles.recorder import Recorder
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.roles.subscriber import Subscriber
from veredus.worker.roles.syncer import Syncer
from veredus.worker.roles.unserved_reporter import UnservedReporter
from veredus.worker.roles.wake_listener import WakeListener
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.worker import Worker

PARTS = {
    "aggregator": (Aggregator, "step"),
    "child-relayer": (ChildRelayer, "step"),
    "forwarder": (Forwarder, "_forward"),
    "healthchecker": (Healthchecker, "step"),
    "heartbeater": (Heartbeater, "beat"),
    "follow-relayer": (FollowRelayer, "step"),
    "janitor": (Janitor, "step"),
    "limiter": (Limiter, "step"),
    "pending-watcher": (PendingWatcher, "step"),
    "processor": (Processor, "_fetch"),
    "recorder": (Recorder, "step"),
    "recoverer": (Recoverer, "step"),
    "scheduler": (Scheduler, "step"),
    "go-watcher": (GoWatcher, "step"),
    "subscriber": (Subscriber, "_listen"),
    "syncer": (Syncer, "run"),
    "unserved-reporter": (UnservedReporter, "step"),
    "wake-listener": (WakeListener, "step"),
    "watcher": (Worker, "_watch"),
}
MORE = {
    "pending-watcher: waiting for work": ("pending-watcher", PendingWatcher, "_watch"),
    "wake-listener: listening": ("wake-listener", WakeListener, "_listen"),
    "heartbeater: making its loop": ("heartbeater", Heartbeater, "_beat_on"),
    "heartbeater: showing by connections that it lives": ("heartbeater", LivenessKeeper, "_hold"),
    "heartbeater: looking for dead workers": ("heartbeater", LivenessKeeper, "_look_on"),
}


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    app = App(valkey_server.url)
    yield app
    await app.close()


def _worker(app: App, ran: list[int], **settings: Any) -> Worker:
    """One that has all roles."""

    @app.task(name="note", limit=Limit(concurrency=5))
    async def note(n: int) -> None:
        ran.append(n)

    app.schedule("@daily", note.call(0))

    @app.aggregate("some")
    async def together(group: str, members: list[bytes]) -> Any:
        return note.call(len(members))

    return app.worker(health_check=lambda error: None, lease=1.5, **settings)


async def test_this_list_has_all_roles(app: App) -> None:
    worker = _worker(app, [])
    async with worker:
        assert set(worker._roles.roster._tasks) | {"heartbeater", "watcher"} == PARTS.keys()


@pytest.mark.parametrize("part", [*PARTS, *MORE])
async def test_a_part_that_ends_is_restarted_counted_and_shown(
    app: App, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, owner, method = MORE.get(part) or (part, *PARTS[part])
    failing, ran = Failing(monkeypatch, owner, method), list[int]()
    metrics = Metrics(0, queues=False)
    worker = _worker(app, ran, companions=[metrics])
    async with worker, httpx.AsyncClient(base_url=f"http://127.0.0.1:{metrics.port}") as client:
        worker._restarts._steady = math.inf  # a busy machine needs long for the rest
        await until(lambda: worker.signs.restarts.get(name) == 1)
        await until(lambda: failing.calls > 1)
        health = await client.get("/healthz")
        assert health.status_code == 503
        assert health.json()["problems"] == [f"{name} has ended and is being restarted: Broken: broken by the test"]
        assert health.json()["restarts"] == {name: 1}
        await app.enqueue("note", {"n": 1})
        await app.enqueue("note", {"n": 2}, delay=0.05)
        await until(lambda: sorted(ran) == [1, 2])
        assert f'veredus_role_restarts_total{{role="{name}"}} 1.0' in (await client.get("/metrics")).text
        worker._restarts._steady = 0.0
        assert (await client.get("/healthz")).status_code == 200
    lines = [record for record in caplog.records if "has ended" in record.getMessage()]
    assert [record.getMessage().partition(" ")[0] for record in lines] == [name]
    assert lines[0].exc_info is not None
    assert lines[0].exc_info[0] is Broken


async def test_a_part_that_keeps_ending_keeps_health_red(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    failing, ran = Failing(monkeypatch, Janitor, "step", times=1e9), list[int]()
    worker = _worker(app, ran)
    async with worker:
        await until(lambda: failing.calls >= 4)
        assert [one.partition(" ")[0] for one in problems(worker.signs)] == ["janitor"]
        await app.enqueue("note", {"n": 1})
        await until(lambda: ran == [1])


@pytest.mark.parametrize("broken", ["the record", "the beat"])
async def test_leases_are_renewed_while_the_heartbeater_is_being_restarted(
    app: App, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either whatever follows the renewal fails each time, or every other beat fails as a whole."""
    beats, beat = itertools.count(), Heartbeater.beat

    async def every_other(self: Heartbeater, store: Any) -> None:
        if next(beats) % 2:
            raise Broken
        await beat(self, store)

    if broken == "the record":
        monkeypatch.setattr(heartbeater, "encode_worker", _raise)
    else:
        monkeypatch.setattr(Heartbeater, "beat", every_other)
    starts: list[float] = []

    @app.task
    async def long() -> None:
        starts.append(time.monotonic())
        await until(lambda: worker.signs.restarts.get("heartbeater", 0) >= 4)
        await until(lambda: time.monotonic() - starts[0] > 3.2)

    worker = app.worker(lease=1.5, sweep=0.3)
    async with worker:
        handle = await long.enqueue()
        await until(lambda: starts)
        await until(lambda: worker._in_flight.busy == 0)
        await until(lambda: _gone(app, handle.id))
    assert len(starts) == 1, "its lease never lapsed, or the recoverer would have had it run again"


async def _gone(app: App, task_id: str) -> bool:
    async with app.inspector() as inspector:
        return await inspector._tasks.known_in(["default"], task_id) == [False]


def _raise(*_: Any) -> Any:
    raise Broken


async def test_a_process_that_cannot_show_that_it_moves_begins_to_show_it_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its supervisor would take it for one that stands still."""
    failing, ran, shared = Failing(monkeypatch, SharedBeat, "publish"), list[int](), SharedBeat(10)
    _worker(app, ran)
    worker = Worker(app, app.worker(lease=1.5).config, shared=shared)
    async with worker:
        await until(lambda: shared.read().at > 0)
        assert failing.calls > 1
        assert worker.signs.restarts == {"heartbeater": 1}
    shared.close()


async def test_settlements_that_the_syncer_keeps_survive_its_restart(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch, Work, "settle", times=2)
    ran: list[int] = []
    worker = _worker(app, ran)
    async with worker:
        handle = await app.enqueue("note", {"n": 1})
        await until(lambda: ran == [1])
        await until(lambda: failing.calls >= 3)
        await until(lambda: _gone(app, handle.id))
        await until(lambda: not worker._in_flight.held())
        assert worker.signs.restarts == {"syncer": 1}
    assert ran == [1]


async def test_a_message_that_cannot_be_handled_does_not_cost_the_subscription(
    app: App, valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing, ran = Failing(monkeypatch, Subscriber, "_receive"), list[int]()
    worker = _worker(app, ran)
    async with worker:

        def published() -> bool:
            with valkey_server.client() as client:
                client.publish(keys.delay_wakeup("default"), b"\xff\x00 nonsense")
            return failing.calls >= 2

        await until(published)
        assert caplog.text.count("could not be handled") == 1
        assert "subscriber" not in worker.signs.restarts


async def test_a_drain_that_fails_goes_on(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with a handler that does not end is replaced all the same."""
    failing, shared = Failing(monkeypatch, Worker, "_drain"), SharedBeat(10)
    release = asyncio.Event()

    @app.task(timeout=1)
    async def stuck() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    worker = Worker(app, app.worker(lease=1.5, deadline_grace=0.2, shutdown_timeout=0.1).config, shared=shared)
    async with worker:
        await stuck.enqueue()
        await asyncio.wait_for(worker.wait(), 30)
        assert failing.calls == 2
        release.set()
    shared.close()
