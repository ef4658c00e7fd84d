"""Queues with a maximum length: never longer, whoever sends at the same time and whatever replies are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.proxy import proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, ConfigError, QueueClosed, QueueFull, TaskIdConflict
from veredus.wire import keys

MOST = 10


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    app.max_length("small", MOST)
    async with app:
        yield app


async def _waiting(app: App) -> int:
    info = await app.inspector().queue("small")
    return info.pending + info.scheduled + info.retry


KINDS: dict[str, dict[str, Any]] = {
    "pending": {},
    "scheduled": {"delay": 60},
    "ordered": {"order_key": "a"},
    "limited": {"limit_key": "a"},
    "unique": {"unique_for": 60},
    "grouped": {"group": "g"},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_more_wait_than_may_whatever_kind_they_are(app: App, kind: str) -> None:
    options = {"queue": "small", **KINDS[kind]}
    filling = {"queue": "small"} if kind == "grouped" else options  # members of groups do not count
    handles = [await app.enqueue("t", {"n": n}, **filling) for n in range(MOST)]
    assert all(handle.created for handle in handles)
    with pytest.raises(QueueFull, match="queue 'small' is full: 10 tasks may wait"):
        await app.enqueue("t", {"n": MOST}, **options)
    assert await _waiting(app) == MOST
    await app.inspector().delete("small", handles[0].id)
    assert (await app.enqueue("t", {"n": MOST + 1}, **options)).created


async def test_many_senders_at_once_fill_it_to_the_last_place(app: App) -> None:
    async def send(n: int) -> bool:
        try:
            return (await app.enqueue("t", {"n": n}, queue="small")).created
        except QueueFull:
            return False

    sent = await asyncio.gather(*[send(n) for n in range(3 * MOST)])
    assert sum(sent) == MOST == await _waiting(app)
    await app.enqueue("t", queue="other")


@pytest.mark.parametrize("kind", ["pending", "ordered", "unique"])
async def test_a_batch_is_stored_as_far_as_there_is_room_and_in_its_order(app: App, kind: str) -> None:
    calls = [app.call("t", {"n": n}, queue="small", **KINDS[kind]) for n in range(2_500)]
    other = app.call("t", {"n": 0}, queue="other")
    with pytest.raises(QueueFull, match="2,490 of 2,501 tasks were not stored") as caught:
        await app.enqueue_many([*calls, other])
    created = [handle.created for handle in caught.value.handles]
    assert created == [True] * MOST + [False] * 2_490 + [True]
    assert await _waiting(app) == MOST


async def test_what_is_there_already_is_told_from_what_has_no_room(app: App) -> None:
    first = await app.enqueue("t", {"n": 0}, queue="small", unique_for=60)
    taken = [await app.enqueue("t", {"n": n}, queue="small", task_id=f"id-{n}") for n in range(1, MOST)]
    again = await app.enqueue("t", {"n": 0}, queue="small", unique_for=60)
    assert (again.created, again.id) == (False, first.id)
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", {"n": 1}, queue="small", task_id=taken[0].id)
    await app.inspector().archive("small", taken[0].id)
    await app.enqueue("t", queue="small")
    with pytest.raises(QueueFull):  # the archived one made room, which is taken
        await app.enqueue("t", queue="small", task_id=taken[0].id, replace=True)
    assert (await app.inspector().task("small", taken[0].id)).state == "archived"
    await app.inspector().delete("small", taken[1].id)
    assert (await app.enqueue("t", queue="small", task_id=taken[0].id, replace=True)).created
    await app.inspector().close_queue("small")
    with pytest.raises(QueueClosed):
        await app.enqueue("t", queue="small")


async def test_a_sender_waits_for_room_as_long_as_it_wants_to(app: App) -> None:
    await app.enqueue_many([app.call("t", {"n": n}, queue="small") for n in range(MOST)])
    with pytest.raises(QueueFull):
        await app.enqueue("t", queue="small", wait_for_room=0.01)
    one = asyncio.create_task(app.enqueue("t", queue="small", wait_for_room=PATIENCE))
    many = asyncio.create_task(app.enqueue_many([app.call("t", queue="small", wait_for_room=PATIENCE)] * MOST))
    app.handler("t")(lambda: None)
    async with app.worker("small", scheduler=False):
        assert (await one).created
        assert [handle.created for handle in await many] == [True] * MOST


async def test_synchronous_code_is_bounded_too(app: App) -> None:
    def send() -> bool:
        app.enqueue_many_sync([app.call("t", {"n": n}, queue="small") for n in range(MOST)])
        try:
            app.enqueue_sync("t", queue="small", wait_for_room=0.01)
        except QueueFull:
            return False
        finally:
            app.close_sync()
        return True

    assert not await asyncio.to_thread(send)


async def test_a_bound_can_be_taken_away_and_is_a_number() -> None:
    app = App()
    app.max_length("q", 5)
    app.max_length("q", None)
    assert app.max_lengths == {}
    for wrong in (0, -1, 1.5, "5"):
        with pytest.raises(ConfigError, match="most"):
            app.max_length("q", wrong)  # type: ignore[arg-type]


@VALKEY_ONLY
@pytest.mark.parametrize("kind", ["pending", "scheduled", "ordered", "unique", "grouped"])
async def test_a_repeated_call_gets_what_its_first_try_did_although_the_queue_is_full_by_then(
    server: RealServer, redis_client: Any, kind: str
) -> None:
    async with proxy_before(server.socket) as proxy:
        app, beside = App(proxy.url, patience=PATIENCE), App(server.url)
        app.max_length("small", 1)
        async with app, beside:
            warm = await app.enqueue("warm", queue="small", **KINDS[kind])  # connects, registers, loads the script
            await beside.inspector().delete("small", warm.id)
            proxy.may_break.clear()
            proxy.lose_reply = 1
            sending = asyncio.create_task(app.enqueue("t", queue="small", **KINDS[kind]))
            await until(lambda: _has(beside, kind), what="the task, whose reply is lost")
            [key] = await redis_client.keys(keys.task("small", "*"))  # it has ended, and another one came
            await beside.inspector().delete("small", key.decode().rpartition(":t:")[2])
            await beside.enqueue("another", queue="small")
            proxy.may_break.set()
            assert (await sending).created


async def _has(app: App, kind: str) -> bool:
    infos = {info.queue: info for info in await app.inspector().stats()}
    info = infos.get("small")
    return info is not None and bool(info.aggregating if kind == "grouped" else info.pending + info.scheduled)
