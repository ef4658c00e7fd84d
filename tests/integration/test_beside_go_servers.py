"""A worker beside the record of a Go server: what it leaves, for how long, and what it costs without one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.integration.test_unserved import GO
from tests.lua.test_for_go import FOR_GO, OURS
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, Job
from veredus.model import go_share
from veredus.process.outage_log import OutageLog
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.store.tasks.worker_records import WorkerRecords
from veredus.wire import keys
from veredus.worker.roles import go_watcher
from veredus.worker.roles.go_watcher import GoWatcher

pytestmark = VALKEY_ONLY


@pytest.fixture
async def go(store: Any, redis_client: Any) -> None:
    """The record of a Go server that serves `for-go`, and takes nothing."""
    await WorkerRecords(store.redis).beat(GO, {})
    await redis_client.delete(keys.types(GO.host, GO.pid, GO.server_id))


def working(url: str) -> tuple[App, dict[str, float]]:
    app, began = App(url), {}

    @app.handler("t", queue="for-go")
    async def work(job: Job) -> None:
        began[job.id] = time.monotonic()

    return app, began


def share_of(worker: Any) -> go_share.GoShare:
    share: go_share.GoShare = worker._roles.processor._shares["for-go"]
    return share


@pytest.mark.usefixtures("go")
async def test_what_go_does_not_take_runs_here_and_then_nothing_is_left(url: str, redis_client: Any) -> None:
    app, began = working(url)
    async with app, app.worker("for-go", **FAST) as worker:
        await until(lambda: share_of(worker).percent == 50)
        sent = time.monotonic()
        for task_id in (FOR_GO[0], OURS[0]):
            await app.enqueue("t", queue="for-go", task_id=task_id)
        await until(lambda: OURS[0] in began)
        await pause(0.1, proves="the other one is left for Go")
        assert FOR_GO[0] not in began
        assert await redis_client.lrange("asynq:{for-go}:pending", 0, -1) == [FOR_GO[0].encode()]
        await until(lambda: FOR_GO[0] in began)
        assert began[FOR_GO[0]] - sent >= 1.4
        assert share_of(worker).terms(time.monotonic()) == ""
        await app.enqueue("t", queue="for-go", task_id=FOR_GO[1])
        await until(lambda: FOR_GO[1] in began)


@pytest.mark.usefixtures("go")
@pytest.mark.parametrize("settings", [{"share_with_go": False}, {"burst": True}], ids=str)
async def test_nothing_is_left_without_the_setting_and_in_a_burst(url: str, settings: dict[str, Any]) -> None:
    app, began = working(url)
    async with app:
        await app.enqueue("t", queue="for-go", task_id=FOR_GO[0])
        async with app.worker("for-go", **FAST, **settings) as worker:
            await until(lambda: began)
            assert share_of(worker).percent == 0


async def test_without_a_go_server_one_command_is_asked_now_and_then(store: Any, redis_client: Any) -> None:
    role = GoWatcher(LiveProcesses(store.redis), ["for-go"], OutageLog())
    await role.step()
    await redis_client.config_resetstat()
    for _ in range(5):
        await role.search()
        assert await role.step() is False, "its time has not come"
    stats = await redis_client.info("commandstats")
    assert stats["cmdstat_zrange"]["calls"] == 5
    assert {name for name in stats if name not in ("cmdstat_info", "cmdstat_config|resetstat")} == {"cmdstat_zrange"}
    assert go_watcher.INTERVAL == 10.0


@pytest.mark.usefixtures("go")
async def test_a_go_server_that_is_gone_is_noticed(store: Any, redis_client: Any) -> None:
    role = GoWatcher(LiveProcesses(store.redis), ["for-go", "other"], OutageLog())
    await role.search()
    assert {queue: share.percent for queue, share in role.shares.items()} == {"for-go": 50, "other": 0}
    await redis_client.delete(keys.server(GO.host, GO.pid, GO.server_id))  # its name stays a while
    await role.search()
    assert role.shares["for-go"].percent == 0


@pytest.mark.usefixtures("go")
async def test_the_share_of_go_is_that_of_its_processes(store: Any) -> None:
    """Of those that serve the queue and are active; each of them has one, whatever its concurrency."""
    role = GoWatcher(LiveProcesses(store.redis), ["for-go"], OutageLog())
    for n, (status, queue) in enumerate([("active", "for-go")] * 2 + [("stopped", "for-go"), ("active", "other")]):
        record = replace(GO, server_id=f"s{n}", status=status, queues={queue: 1}, concurrency=30)
        await WorkerRecords(store.redis).beat(record, {})
    await role.search()
    assert role.shares["for-go"].percent == 33


@pytest.mark.usefixtures("go")
@pytest.mark.parametrize("error", ["", 'handler not found for task "t"'])
async def test_what_became_of_a_trial_is_looked_up(store: Any, redis_client: Any, error: str) -> None:
    role = GoWatcher(LiveProcesses(store.redis), ["for-go"], OutageLog())
    await role.step()
    share = role.shares["for-go"]
    share.trials["t"] = "trial"
    if error:
        await redis_client.hset(keys.task("for-go", "trial"), mapping={"state": "retry", "msg": error})
    assert await role.step() is None
    assert share.terms(time.monotonic()).endswith("\2t\0" if error else "\1t\0")
    assert await role.step() is False, "nothing was asked"
