"""Keys of arguments reach Redis on every path: each way to send a task keeps order, limit and uniqueness."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers import VALKEY_ONLY
from veredus import App, ConfigError, Limit, PayloadError, Task
from veredus.model.frames import Request
from veredus.model.request import Origin
from veredus.wire import keys

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]

KEYS: dict[str, Any] = {
    "order_key": "o:{user_id}",
    "limit_key": lambda user_id, note="": f"l:{user_id}",
    "unique_key": "u:{user_id}",
    "unique_for": 600,
}


def _declare(app: App) -> Task[Any, Any, Any]:
    @app.task(name="send", **KEYS)
    async def send(user_id: int = 7, note: str = "") -> None: ...

    return send


async def _ways(app: App, task: Task[Any, Any, Any]) -> None:
    """Each with another user, who is the only one of its task."""
    await task.enqueue(1)
    await app.enqueue_many([task.call(2)])
    await app.send(task.call(3))
    await app.enqueue("send", {"user_id": 4})
    await app.enqueue("send", b'{"user_id": 5}')
    await app.enqueue("a type of Go", {"user_id": 6}, **{**KEYS, "limit_key": "l:{user_id}"})


async def _keys(app: App, queue: str, task_id: str) -> list[str]:
    """The order key and the limit key that Redis has."""
    key = keys.task(queue, task_id)
    found = await app._client().store.redis.command("HMGET", key, "order_key", "limit_key", key=key)
    return [(one or b"").decode() for one in found]


async def test_every_way_to_send_keeps_every_key() -> None:
    app = App()
    task = _declare(app)
    app.schedule("@every 60s", task.call(8))

    @app.topic("payments", order_key="o:{payment.user_id}", limit_key="l:{payment.user_id}")
    async def pay(payment: dict[str, int]) -> None: ...

    app.cron("@every 60s", name="nightly", **KEYS)(lambda user_id=9, note="": None)
    async with app.test() as q:
        await _ways(app, task)
        with pytest.raises(ConfigError):
            await app.enqueue("a type of Go", b"no JSON", order_key="{user_id}")
        with pytest.raises(PayloadError):
            await app.enqueue("send", b'{"user_id": "x"}')
        await app.produce("payments", {"user_id": 10})
        for sent, user in zip(q.sent, [1, 2, 3, 4, 5, 6, 10], strict=True):
            assert await _keys(app, sent.queue, sent.id) == [f"o:{user}", f"l:{user}"], user
        again = [await task.enqueue(1, note="another"), *await app.enqueue_many([task.call(2, note="x")])]
        again.append(await app.enqueue("send", {"user_id": 4, "note": "x"}))
        assert [one.created for one in again] == [False] * 3
        assert (await task.enqueue(11, note="another")).created
        await q.advance(60, work=False)
        await q._work().tick()  # schedules fire
        pending = await app.inspector().tasks("default", "pending")
        scheduled = [await _keys(app, "default", info.id) for info in pending if ":" in info.id]
        assert sorted(scheduled) == [["o:8", "l:8"], ["o:9", "l:9"]]


def test_synchronous_code_keeps_them_too() -> None:
    app = App()
    task = _declare(app)
    with app.test():
        assert task.enqueue_sync(1).created
        assert not task.enqueue_sync(1, note="x").created
        assert not app.enqueue_sync("send", {"user_id": 1, "note": "y"}).created
        assert not app.enqueue_many_sync([task.call(1, note="z")])[0].created


async def test_a_limit_counts_by_the_key_of_the_arguments() -> None:
    app, order = App(), list[str]()

    @app.task(name="mail", limit=Limit(rate="1/10s", per="key"), limit_key="{provider}")
    async def mail(provider: str, number: int) -> None:
        order.append(f"{provider}{number}")

    async with app.test() as q:
        await app.enqueue_many([mail.call("a", 1), mail.call("a", 2), mail.call("b", 1)])
        await q.drain()
        assert sorted(order) == ["a1", "b1"]
        await q.advance(10)
        assert sorted(order) == ["a1", "a2", "b1"]


async def test_what_is_edited_keeps_its_own_key() -> None:
    app = App()
    task = _declare(app)
    async with app.test():
        handle = await task.enqueue(1)
        await app.inspector().edit_payload("default", handle.id, b'{"user_id": 1, "note": "edited"}')
        assert not (await task.enqueue(1)).created


async def test_requests_of_clients_have_keys_too(url: str) -> None:
    from veredus.client.client import Client
    from veredus.clock import SYSTEM
    from veredus.gateway.request_intake import NotAccepted, RequestIntake
    from veredus.store.store import Store, connect

    app = App(url)

    @app.action("render", queue="r", **KEYS)
    async def render(user_id: int, note: str = "") -> None: ...

    store = Store(connect(url))
    try:
        intake = RequestIntake(app.tasks, store, Client(store, max_payload=1000), SYSTEM, lambda exc: None)

        async def request(number: int, body: bytes) -> None:
            origin = Origin("s", number, "ada", round((SYSTEM.time() + 30) * 1000))
            await intake.enqueue(origin, Request(rid=number, action="render", body=body), app.actions["render"], 30)

        await request(1, b'{"user_id": 1}')
        with pytest.raises(NotAccepted) as conflict:
            await request(2, b'{"user_id": 1, "note": "x"}')
        with pytest.raises(NotAccepted) as unreadable:
            await request(3, b'{"user_id": "x"}')
        assert [raised.value.refusal.code for raised in (conflict, unreadable)] == [409, 400]
    finally:
        await store.close()
