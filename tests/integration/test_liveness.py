"""A worker that has died is noticed by its closed connections, long before its leases end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.support import Look
from tests.support.mortal import Mortal
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import pause, until
from veredus import App, current
from veredus.events import WorkerMisjudged
from veredus.model import absences
from veredus.store.store import Store
from veredus.store.tasks.liveness import LivenessReport
from veredus.wire import keys
from veredus.worker import liveness
from veredus.worker.worker import Worker

FOREVER = 600.0
"""A lease that does not end in this test."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at a tenth of the time."""
    monkeypatch.setattr(absences, "PATIENCE", absences.PATIENCE / 10)
    monkeypatch.setattr(absences, "INTERVAL", absences.INTERVAL / 10)
    monkeypatch.setattr(liveness, "IDLE", 0.3)


@pytest.fixture
async def mortal(url: str) -> AsyncIterator[Mortal]:
    mortal = Mortal(url)
    yield mortal
    await mortal.die()


async def lines(client: Any, worker_id: str) -> int:
    return int((await client.pubsub_numsub(keys.alive(worker_id)))[0][1])


def is_looked_for(worker: Worker, mortal: Mortal) -> bool:
    """Whether the worker has seen the mortal one."""
    return mortal.worker_id in worker._heartbeater.liveness._absences._seen


async def test_its_tasks_run_elsewhere_and_count_as_after_an_expired_lease(
    app: App, look: Look, mortal: Mortal
) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(name="t")
    async def task() -> None:
        ran.append((current().id, current().attempt))

    handle = await app.enqueue("t")
    await mortal.live()
    assert mortal.tasks == [handle.id]
    async with app.worker(lease=FOREVER) as worker:
        await until(lambda: is_looked_for(worker, mortal))
        assert ran == []
        await mortal.die()
        await look.ends(handle.id, "gone")
    assert ran == [(handle.id, 2)]
    assert await look.counters() == (2, 1)
    assert int(await look.client.hget(keys.JUDGED, mortal.worker_id)) == 1
    assert 0 < await look.client.ttl(keys.JUDGED) <= 3600


@VALKEY_ONLY
async def test_a_go_worker_and_one_of_an_earlier_version_are_never_judged(
    app: App, url: str, look: Look, mortal: Mortal
) -> None:
    """They do not subscribe. Their leases are left alone."""
    app.task(name="t")(lambda: None)
    handle = await app.enqueue("t")
    await mortal.live(is_subscribed=False)
    other = Mortal(url)
    try:
        await other.live()
        async with app.worker(lease=FOREVER) as worker:
            await until(lambda: is_looked_for(worker, other))
            await mortal.die()
            await other.die()
            await until(lambda: not is_looked_for(worker, other), what="the end of the one that can be judged")
            assert await look.state(handle.id) == "active"
    finally:
        await other.die()


@VALKEY_ONLY
async def test_a_living_worker_that_loses_its_connections_beats_and_subscribes_again(app: App, look: Look) -> None:
    app.task(name="t")(lambda: None)
    async with app.worker(lease=FOREVER) as worker:
        await until(lambda: _has(look, worker.worker_id, 2))
        (record,) = await look.client.zrange(keys.SERVERS, 0, -1)
        await look.client.zrem(keys.SERVERS, record)  # the next beat writes it; without a reason it is 200 seconds away
        await look.client.client_kill_filter(_type="pubsub")
        await until(lambda: look.client.zscore(keys.SERVERS, record), what="the sign of life")
        await until(lambda: _has(look, worker.worker_id, 2), what="the new subscriptions")


@VALKEY_ONLY
async def test_a_worker_that_stops_makes_room_for_another_one_that_looks_for_the_dead(app: App, look: Look) -> None:
    app.task(name="t")(lambda: None)
    async with app.worker(lease=FOREVER) as worker:
        await until(lambda: look.client.zscore(keys.CHECKERS, worker.worker_id))
    assert await look.client.zscore(keys.CHECKERS, worker.worker_id) is None


async def _has(look: Look, worker_id: str, number: int) -> bool:
    return await lines(look.client, worker_id) == number


@VALKEY_ONLY
async def test_a_worker_learns_that_it_was_misjudged(
    app: App, look: Look, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(name="t")(lambda: None)
    events: list[object] = []
    async with app.worker(lease=FOREVER) as worker:
        worker.bus.subscribe(events.append)
        await until(lambda: _has(look, worker.worker_id, 2))
        await store.liveness.judge(worker.worker_id, 3)
        await look.client.client_kill_filter(_type="pubsub")
        await until(lambda: [one for one in events if isinstance(one, WorkerMisjudged)])
    assert [one for one in events if isinstance(one, WorkerMisjudged)] == [WorkerMisjudged(3)]
    assert len([line for line in caplog.messages if "looked dead to others" in line]) == 1


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (("resetchannels", "&asynq:cancel"), "its tasks start elsewhere only when"),
        (("-pubsub",), "cannot look for dead"),
    ],
    ids=["channels", "PUBSUB"],
)
async def test_a_user_without_the_rights_works_with_leases_alone(
    app: App,
    look: Look,
    server: RealServer,
    mortal: Mortal,
    caplog: pytest.LogCaptureFixture,
    rules: tuple[str, ...],
    what: str,
) -> None:
    caplog.set_level(logging.INFO, "veredus.worker")
    await look.client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">pw", "~*", "&*", "+@all", *rules)
    path = server.url.removeprefix("unix://")
    limited = App(f"unix://u:pw@{path}")
    ran: list[str] = []

    @limited.task(name="t")
    async def task() -> None:
        ran.append("t")

    try:
        async with limited.worker(lease=FOREVER):
            await until(lambda: [line for line in caplog.messages if what in line])
            await limited.enqueue("t")
            await until(lambda: ran)
        assert len([line for line in caplog.messages if what in line]) == 1
    finally:
        await limited.close()
        await look.client.execute_command("ACL", "DELUSER", "u")


@VALKEY_ONLY
async def test_a_forked_process_does_not_keep_the_connection_of_its_parent_open(look: Look, mortal: Mortal) -> None:
    await mortal.live()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        assert await lines(look.client, mortal.worker_id) == 1
        await mortal.die()
        await until(lambda: _has(look, mortal.worker_id, 0), seconds=5.0)
    finally:
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, child, 0)


@VALKEY_ONLY
async def test_a_checker_that_was_cut_off_itself_judges_nobody(
    app: App, look: Look, mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the server looks like that, also if both connections are back before the next look."""
    monkeypatch.setattr(liveness, "RETRY", 0.0)
    monkeypatch.setattr(absences, "INTERVAL", 0.15)
    app.task(name="t")(lambda: None)
    handle = await app.enqueue("t")
    await mortal.live()
    async with app.worker(lease=FOREVER) as worker:
        await until(lambda: is_looked_for(worker, mortal))
        async with look.client.pipeline(transaction=True) as pipe:
            for row in await look.client.client_list(_type="pubsub"):
                if row["name"] == f"veredus-heart-{worker.worker_id[:8]}":
                    pipe.client_kill_filter(_id=row["id"])
            await pipe.execute()
        await until(lambda: _has(look, worker.worker_id, 2))
        await mortal.die()
        await pause(0.8, proves="four times the patience, and it is still active")
        assert await look.state(handle.id) == "active"


async def test_a_worker_that_stops_before_its_first_look_is_answered_leaves_nothing(
    store: Store, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, asked = store.liveness.look, asyncio.Event()

    async def without_an_answer(worker_id: str, *, may_check: bool) -> LivenessReport:
        report = await look(worker_id, may_check=may_check)
        if may_check:
            asked.set()
            await asyncio.Event().wait()
        return report

    monkeypatch.setattr(store.liveness, "look", without_an_answer)
    hooks = liveness.LivenessHooks(lambda: None, lambda worker: None, lambda leases: None)
    keeper = liveness.LivenessKeeper("w", hooks, lease=FOREVER, looks_for_others=True)
    running = asyncio.create_task(keeper.run(store))
    await asked.wait()
    assert await redis_client.exists(keys.CHECKERS)
    await keeper.leave(store)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not await redis_client.exists(keys.CHECKERS)
