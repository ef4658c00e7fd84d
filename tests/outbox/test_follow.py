"""app.follow: a task's progress and end reach a client in one line of code, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.outbox.support import Log
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App, ConfigError, SkipRetry, Task, current
from veredus.client.follow_relay import FollowRelay
from veredus.client.notifier import Notifier
from veredus.model.delivery import MAX_BODY
from veredus.process.outage_log import OutageLog
from veredus.wire import keys
from veredus.wire.frames import decode_stored
from veredus.worker.roles.follow_relayer import FollowRelayer as HeraldRole

pytestmark = VALKEY_ONLY


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    yield app
    await app.close()


async def told(log: Log, sid: str) -> list[tuple[str, dict[str, Any]]]:
    messages = [decode_stored(entry.tail) for entry in await log.entries(sid)]
    return [(message.type, json.loads(message.body)) for message in messages]


async def test_progress_and_result_arrive_in_order_though_the_caller_is_gone(app: App, log: Log, url: str) -> None:
    sid = (await log.create()).sid
    gate = asyncio.Event()

    async def render(pages: int) -> dict[str, int]:
        await gate.wait()
        await current().progress(0.5, "half")
        return {"pages": pages}

    caller = App(url)
    caller.task(name="render", retention=60)(render)
    app.task(name="render", retention=60)(render)
    handle = await caller.enqueue("render", {"pages": 7})
    await caller.follow(handle, session=sid)
    await caller.close()
    async with app.worker(**FAST):
        gate.set()
        await until(lambda: _ended(log, sid))
    first, last = await told(log, sid)
    assert first == ("task.progress", {"task": handle.id, "queue": "default", "share": 0.5, "note": "half"})
    ended = {"task": handle.id, "queue": "default", "state": "completed", "result": {"pages": 7}}
    assert last == ("task.ended", ended)
    assert await log.client.exists(keys.told("default")) == 0


async def test_an_end_too_large_for_a_message_is_told_without_its_result(app: App, log: Log) -> None:
    sid = (await log.create()).sid

    @app.task(name="big", retention=60)
    async def big() -> str:
        return "x" * MAX_BODY

    handle = await app.enqueue("big")
    await app.follow(handle, session=sid)
    async with app.worker(**FAST):
        await until(lambda: _ended(log, sid))
    assert await told(log, sid) == [("task.ended", {"task": handle.id, "queue": "default", "state": "completed"})]


async def test_synchronous_code_follows_too(app: App, log: Log, url: str) -> None:
    sid = (await log.create()).sid

    @app.task(name="work", retention=60)
    async def work() -> int:
        return 7

    def ask() -> str:
        caller = App(url)
        handle = caller.enqueue_sync("work", retention=60)
        caller.follow_sync(handle, session=sid)
        with pytest.raises(ConfigError, match="target"):
            caller.follow_sync(handle)
        caller.close_sync()
        return handle.id

    task_id = await asyncio.to_thread(ask)
    async with app.worker(**FAST):
        await until(lambda: _ended(log, sid))
    assert [(body["task"], body["result"]) for _, body in await told(log, sid)] == [(task_id, 7)]


async def test_each_way_to_end_is_told(app: App, log: Log) -> None:
    @app.task(max_retry=0)
    async def fails() -> None:
        raise SkipRetry("no paper")

    @app.task
    async def vanishes() -> None:
        pass

    @app.task(retention=60)
    async def large() -> str:
        return "x" * 100_000

    calls: dict[str, Task[[], Any, Any]] = {"fails": fails, "vanishes": vanishes, "large": large, "cancelled": fails}
    sids, handles = {}, {}
    for name, task in calls.items():
        sids[name] = (await log.create(name)).sid
        handles[name] = await task.enqueue()
        await app.follow(handles[name], user=name)
    await handles["cancelled"].cancel(then="delete")
    async with app.worker(**FAST):
        for sid in sids.values():
            await until(lambda sid=sid: _ended(log, sid))
    bodies = {name: (await told(log, sid))[-1][1] for name, sid in sids.items()}
    assert {name: body["state"] for name, body in bodies.items()} == {
        "fails": "archived", "vanishes": "done", "large": "completed", "cancelled": "cancelled",
    }  # fmt: skip
    assert "no paper" in bodies["fails"]["error"]
    assert bodies["large"]["result"] == "x" * 100_000


async def test_a_task_that_has_ended_is_told_at_once_and_an_absent_user_gets_mail(app: App, log: Log) -> None:
    @app.task(retention=60)
    async def quick() -> int:
        return 1

    async with app.worker(**FAST):
        handle = await quick.enqueue()
        await handle.result(PATIENCE)
    await app.follow(handle, user="joe")
    created = await log.create("joe")
    assert [body["result"] for _, body in await told(log, created.sid)] == [1]


async def test_several_heralds_tell_each_thing_once_and_in_order(app: App, log: Log) -> None:
    sid = (await log.create()).sid
    key = keys.task("default", "t")
    for n in range(30):
        progress = json.dumps({"share": n / 30, "note": "", "at": 1.0})
        await log.client.rpush(keys.told("default"), f"{n}.0 >s:{sid} progress {len(key)} {key}{progress}")
    await log.client.rpush(keys.told("default"), "what is this")
    heralds = [FollowRelay(log.store, Notifier(log.store)) for _ in range(4)]
    await asyncio.gather(*[herald.pass_on(["default", "other"]) for herald in heralds])
    assert [round(body["share"] * 30) for _, body in await told(log, sid)] == list(range(30))
    assert await log.client.exists(keys.told("default")) == 0


@pytest.mark.parametrize("how", ["woken", "stopped"])
async def test_a_follow_relayer_passes_on_what_it_hears_of_and_at_a_stop_what_is_left(log: Log, how: str) -> None:
    sid = (await log.create()).sid
    key = keys.task("default", "t")
    role = HeraldRole(log.store, ["default"], 3600.0, OutageLog())
    running = asyncio.create_task(role.run())
    await until(lambda: _has_called(log, "cmdstat_lrange"), what="its first look")
    await log.client.rpush(keys.told("default"), f"1.0 >s:{sid} done {len(key)} {key}")
    if how == "woken":
        role.wake("default")
        await until(lambda: _ended(log, sid))
    role.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert await _ended(log, sid)


async def _has_called(log: Log, command: str) -> bool:
    return command in await log.client.info("commandstats")


async def test_who_is_meant_must_be_said(app: App) -> None:
    handle = app.handle("t")
    for target in ({}, {"session": "p000-x", "user": "bob"}, {"session": "bob"}, {"user": ""}):
        with pytest.raises(ConfigError, match=r"target|session|user"):
            await app.follow(handle, **target)


async def _ended(log: Log, sid: str) -> bool:
    return any(kind == "task.ended" for kind, _ in await told(log, sid))
