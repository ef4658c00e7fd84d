"""Sending tasks: every option with what it leaves in Redis, and what is refused before anything is sent."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import Look
from veredus import App, ConfigError, PayloadError, PayloadTooLarge, TaskIdConflict
from veredus.client import client
from veredus.store.connection.batching import MAX_ITEMS
from veredus.wire import keys

FAR = datetime(2040, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)


async def _welcome(user_id: int, lang: str = "en") -> str:
    return ""


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"retry": 25, "timeout": 1800, "deadline": 0, "retention": 0, "queue": "default"}),
        ({"queue": "mail"}, {"queue": "mail"}),
        ({"max_retry": 0}, {"retry": 0}),
        ({"max_retry": 2**31 - 1}, {"retry": 2**31 - 1}),
        ({"timeout": 90}, {"timeout": 90, "deadline": 0}),
        ({"timeout": 0.2}, {"timeout": 1}),
        ({"timeout": timedelta(minutes=2)}, {"timeout": 120}),
        ({"deadline": FAR}, {"timeout": 0, "deadline": int(FAR.timestamp())}),
        ({"deadline": FAR, "timeout": 5}, {"timeout": 5, "deadline": int(FAR.timestamp())}),
        ({"retention": 60}, {"retention": 60}),
        ({"retention": 0.5}, {"retention": 1}),
        ({"task_id": "mine"}, {"id": "mine"}),
        ({"headers": {"trace": "1", "ключ": "значение"}}, {"headers": {"trace": "1", "ключ": "значение"}}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_an_option_is_stored(app: App, look: Look, options: dict[str, Any], fields: dict[str, Any]) -> None:
    task = app.task(name="welcome")(_welcome)
    before = time.time_ns()
    handle = await task.using(**options).enqueue(42, lang="zh")
    look = look.of(options.get("queue", "default"))
    message = await look.message(handle.id)
    assert {name: getattr(message, name) for name in fields} == fields
    assert (message.type, message.payload) == ("welcome", b'{"user_id":42,"lang":"zh"}')
    assert (handle.id, handle.queue, handle.type, handle.state) == (message.id, look.queue, "welcome", "pending")
    assert handle.created
    stored = await look.fields(handle.id)
    assert (set(stored), stored["state"]) == ({"msg", "state", "pending_since"}, b"pending")
    assert before - 10**9 < int(stored["pending_since"]) < time.time_ns() + 10**9
    assert await look.client.smembers(keys.QUEUES) == {look.queue.encode()}


async def test_a_unique_task_is_stored_once(app: App, look: Look) -> None:
    task = app.task(name="welcome")(_welcome)
    once = task.using(unique_for=60)
    first, second, other = await once.enqueue(1), await once.enqueue(1), await once.enqueue(2)
    assert (first.created, second.created, other.created) == (True, False, True)
    lock = keys.unique("default", "welcome", b'{"user_id":1}')
    assert await look.client.get(lock) == first.id.encode()
    assert 50 < await look.client.ttl(lock) <= 60
    assert await look.pending() == [first.id, other.id]


@pytest.mark.parametrize("how", ["delay", "at"])
async def test_a_delayed_task_is_scheduled_to_the_millisecond(app: App, look: Look, how: str) -> None:
    due = time.time() + 100.25
    options: dict[str, Any] = {"delay": 100.25} if how == "delay" else {"at": datetime.fromtimestamp(due, UTC)}
    handle = await app.enqueue("t", **options)
    assert handle.state == "scheduled"
    exact = (await look.scores("due"))[handle.id]
    assert abs(exact / 1000 - due) < (5 if how == "delay" else 0.002)
    assert (await look.scores("scheduled"))[handle.id] == -(-exact // 1000)


@pytest.mark.parametrize(
    "options", [{"delay": 0}, {"at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay": timedelta(0)}, {"delay": None}]
)
async def test_a_task_due_in_the_past_is_pending_at_once(app: App, look: Look, options: dict[str, Any]) -> None:
    handle = await app.enqueue("t", **options)
    assert handle.state == "pending"
    assert await look.pending() == [handle.id]


async def test_options_of_the_call_win_over_those_of_the_task(app: App, look: Look) -> None:
    task = app.task(name="t", queue="mail", max_retry=3, timeout=30, delay=50, headers={"a": "1", "b": "1"})(_welcome)
    changed = task.using(max_retry=9, headers={"b": "2", "c": "3"}, at=datetime.fromtimestamp(time.time() + 500, UTC))
    first, second = await changed.enqueue(1), await task.enqueue(1)
    mail = look.of("mail")
    message = await mail.message(first.id)
    assert (message.retry, message.timeout, message.headers) == (9, 30, {"a": "1", "b": "2", "c": "3"})
    due = await mail.scores("due")
    assert due[first.id] / 1000 - time.time() > 400
    assert due[second.id] / 1000 - time.time() < 60
    untouched = await mail.message(second.id)
    assert (untouched.retry, untouched.headers) == (3, {"a": "1", "b": "1"})


async def test_app_enqueue_takes_the_options_of_a_task_that_it_knows(app: App, look: Look) -> None:
    app.task(name="known", queue="mail", max_retry=2)(_welcome)
    handle = await app.enqueue("known", {"user_id": 1})
    assert handle.queue == "mail"
    assert (await look.of("mail").message(handle.id)).retry == 2


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (None, b""),
        (b"", b""),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"x"), b"x"),
        ({"a": 1}, b'{"a":1}'),
        ("text", b'"text"'),
        ([1, 2.5, None, True], b"[1,2.5,null,true]"),
    ],
)
async def test_a_foreign_type_takes_bytes_nothing_or_json(app: App, look: Look, payload: Any, stored: bytes) -> None:
    handle = await app.enqueue("go:type", payload)
    assert (await look.message(handle.id)).payload == stored


async def test_no_payload_and_an_empty_one_are_two_locks(app: App, look: Look) -> None:
    assert (await app.enqueue("t", None, unique_for=10)).created
    assert (await app.enqueue("t", b"", unique_for=10)).created
    assert not (await app.enqueue("t", None, unique_for=10)).created


async def test_a_task_id_that_is_taken_raises_and_changes_nothing(app: App, look: Look) -> None:
    task = app.task(name="t")(_welcome)
    await task.using(task_id="mine").enqueue(1)
    with pytest.raises(TaskIdConflict, match="'mine'") as caught:
        await task.using(task_id="mine").enqueue(2)
    assert (caught.value.task_id, caught.value.queue) == ("mine", "default")
    assert json.loads((await look.message("mine")).payload) == {"user_id": 1}
    assert await look.pending() == ["mine"]
    assert (await task.using(task_id="mine", queue="other").enqueue(3)).created


async def test_a_batch_tells_for_each_item_what_became_of_it(app: App, look: Look) -> None:
    task = app.task(name="t")(_welcome)
    handles = await app.enqueue_many(
        [
            task.call(1),
            task.using(task_id="mine").call(2),
            task.using(task_id="mine").call(3),
            task.using(delay=60).call(4),
            task.using(queue="other").call(5),
            task.using(unique_for=60).call(6),
            task.using(unique_for=60).call(6),
        ]
    )
    assert [handle.created for handle in handles] == [True, True, False, True, True, True, False]
    assert [handle.state for handle in handles] == ["pending"] * 3 + ["scheduled"] + ["pending"] * 3
    assert await look.pending() == [handles[n].id for n in (0, 1, 5)]
    assert await look.of("other").pending() == [handles[4].id]
    assert list(await look.scores("scheduled")) == [handles[3].id]


async def test_a_large_batch_keeps_its_order(app: App, look: Look) -> None:
    task = app.task(name="t")(_welcome)
    handles = await app.enqueue_many(task.call(n) for n in range(2345))
    assert await look.pending() == [handle.id for handle in handles]
    assert len({handle.id for handle in handles}) == 2345
    assert await app.enqueue_many([]) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "misses the argument 'user_id'"),
        ((1, "en", 3), {}, "takes 2 positional arguments, got 3"),
        ((1,), {"user_id": 2}, "got 'user_id' twice"),
        ((1,), {"langs": "en"}, "has no argument 'langs'"),
        ((object(),), {}, "cannot be written as JSON"),
        (({1: {2: object()}},), {}, "cannot be written as JSON"),
        (("\ud800",), {}, "cannot be written as JSON"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    app: App, look: Look, args: Any, kwargs: Any, message: str
) -> None:
    task: Any = app.task(name="t")(_welcome)
    with pytest.raises(PayloadError, match=message):
        await task.enqueue(*args, **kwargs)
    with pytest.raises(PayloadError, match=message):
        task.call(*args, **kwargs)
    assert await look.client.dbsize() == 0


async def test_a_payload_that_is_too_large_is_refused(url: str, look: Look) -> None:
    async with App(url, max_payload=100) as app:
        await app.enqueue("t", b"x" * 100)
        with pytest.raises(PayloadTooLarge, match="101 bytes, allowed are 100") as caught:
            await app.enqueue("t", b"x" * 101)
        assert (caught.value.size, caught.value.limit) == (101, 100)
        assert len(await look.pending()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"expires": 5, "delay": 5},
        {"expires": 5, "delay": 6},
        {"expires": datetime(2020, 1, 1, tzinfo=UTC)},
        {"expires": 60, "at": datetime(2040, 1, 1, tzinfo=UTC)},
    ],
)
async def test_a_task_that_would_expire_before_it_is_due_is_refused(
    app: App, look: Look, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"^expires: "):
        await app.enqueue("t", **options)
    assert await look.client.dbsize() == 0


@pytest.mark.parametrize(
    ("task_type", "options"), [("", {}), ("  ", {}), (5, {}), ("a\ud800", {}), ("t", {"headers": {"a": "\ud800"}})]
)
async def test_a_bad_type_or_header_is_refused(app: App, look: Look, task_type: Any, options: Any) -> None:
    with pytest.raises(ConfigError):
        await app.enqueue(task_type, **options)
    assert await look.client.dbsize() == 0


async def test_of_a_list_with_one_payload_that_is_too_large_nothing_is_sent(url: str, look: Look) -> None:
    app = App(url, max_payload=100)
    calls = [app.call("t", b"x") for _ in range(2 * MAX_ITEMS)]
    with pytest.raises(PayloadTooLarge):
        await app.enqueue_many([*calls, app.call("t", b"x" * 101)])
    assert await look.pending() == []
    await app.close()


async def test_many_different_options_do_not_pile_up(app: App, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_TEMPLATES", 10)
    await app.enqueue_many([app.call("t", b"", retention=n) for n in range(1, 100)])
    assert len(app._client()._templates) <= 10
    assert len(await look.pending()) == 99
