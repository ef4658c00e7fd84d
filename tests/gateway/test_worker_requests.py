"""The worker's side of requests: answered before settled, once, with what stands before and after the answer."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, until
from veredus import App, Refused, SkipRetry, current
from veredus.clock import SystemClock
from veredus.errors import ConnectionLost
from veredus.events import TaskEnded
from veredus.handlers import request_answers
from veredus.model.delivery import MAX_BODY, Quota
from veredus.model.frames import Kind, Message
from veredus.model.request import Origin
from veredus.store.store import Store
from veredus.store.tasks.work import Work
from veredus.wire.frames import decode_stored


async def _session(gw_store: Store) -> str:
    created = await gw_store.sessions.create(
        "ada", node="n1", connection="c1", secret_hash="h", quota=Quota(), ttl_ms=60_000
    )
    return created.sid


async def _request(
    app: App,
    gw_store: Store,
    sid: str,
    rid: int,
    action: str,
    payload: Any = None,
    *,
    deadline_in: float = 30.0,
    **options: Any,
) -> Any:
    """As a gateway does it: record, then enqueue."""
    deadline = math.ceil((time.time() + deadline_in) * 1000)
    assert await gw_store.outbox.accept(sid, rid, deadline, 1) == "new"
    headers = Origin(sid, rid, "ada", deadline).headers()
    return await app.enqueue(action, payload, task_id=f"{sid}.{rid}", headers=headers, retention=300, **options)


async def _log(gw_store: Store, sid: str) -> list[Message]:
    excerpt = (await gw_store.outbox.read([(sid, 1, 1000, 2**22)]))[0]
    assert excerpt is not None
    return [decode_stored(entry.tail) for entry in excerpt.entries]


async def _until(gw_store: Store, sid: str, rid: int) -> list[Message]:
    """Until the response is there; everything that is."""

    async def answered() -> list[Message] | None:
        log = await _log(gw_store, sid)
        return log if any(one.kind is Kind.RESPONSE and one.rid == rid for one in log) else None

    log: list[Message] = await until(answered, what="the response")
    return log


async def test_before_response_after_and_what_is_told_meanwhile(app: App, gw_store: Store) -> None:
    @app.action("render", queue="r")
    async def render(order: int) -> dict[str, int]:
        client = current().client
        assert (client.user, client.request) == ("ada", 1)
        await client.notify({"step": 3}, type="last", title="t", content="c", metadata={"k": "v"}, when="after")
        await client.notify({"step": 1}, type="progress")
        await client.notify(b"raw", type="first", when="before")
        return {"order": order}

    sid = await _session(gw_store)
    await _request(app, gw_store, sid, 1, "render", {"order": 7})
    async with app.worker("r"):
        log = await _until(gw_store, sid, 1)
    assert [(one.kind, one.type, one.body, one.encoding) for one in log] == [
        (Kind.NOTIFY, "progress", b'{"step":1}', "json"),
        (Kind.NOTIFY, "first", b"raw", "raw"),
        (Kind.RESPONSE, "", b'{"order":7}', "json"),
        (Kind.NOTIFY, "last", b'{"step":3}', "json"),
    ]
    assert (log[3].title, log[3].content, log[3].metadata, log[3].sync_hint) == ("t", "c", {"k": "v"}, 2)
    assert [one.bind_client_seq_id for one in log] == [1, 1, 0, 1]
    assert log[3].create_time > 0


async def test_a_threads_handler_notifies_too_and_bytes_stay_bytes(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    def hello() -> bytes:
        current().client.notify_sync("hi", type="greeting")
        return b"\x00\xff"

    sid = await _session(gw_store)
    await _request(app, gw_store, sid, 5, "hello")
    async with app.worker("r"):
        log = await _until(gw_store, sid, 5)
    assert [(one.type, one.body, one.encoding) for one in log] == [
        ("greeting", b'"hi"', "json"),
        ("", b"\x00\xff", "raw"),
    ]


async def test_failures_become_error_responses_that_say_no_more_than_they_should(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    async def refuses() -> None:
        raise Refused(409, "sold out")

    @app.action(queue="r")
    async def breaks() -> None:
        raise RuntimeError("password=hunter2")

    @app.action(queue="r", max_retry=5)
    async def takes(order: int) -> None: ...

    @app.action(queue="r", max_retry=5)
    async def answers_nonsense() -> Any:
        return object()

    sid = await _session(gw_store)
    for rid, action in enumerate(("refuses", "breaks", "takes", "answers_nonsense"), 1):
        await _request(app, gw_store, sid, rid, action, b'{"order":"seven"}' if action == "takes" else None)
    async with app.worker("r"):
        for rid in (1, 2, 3, 4):
            log = await _until(gw_store, sid, rid)
    found = {one.rid: (one.code, one.error) for one in log}
    assert found[1] == (409, "sold out")
    assert found[2] == (500, "the handler failed (RuntimeError)")
    assert found[3][0] == 400
    assert "order" in found[3][1]
    assert found[4] == (500, "the handler failed (ResultError)")


async def test_an_error_response_only_when_no_retry_is_left_and_notifies_are_not_repeated(
    app: App, gw_store: Store
) -> None:
    attempts = []

    @app.action(queue="r", max_retry=2, retry_delay=0.05)
    async def shaky() -> str:
        attempts.append(current().attempt)
        await current().client.notify(1, type="one")
        await current().client.notify(2, type="two")
        if len(attempts) < 3:
            raise RuntimeError("again")
        return "done"

    @app.action(queue="r", max_retry=1, retry_delay=0.05)
    async def hopeless() -> None:
        raise RuntimeError("again")

    @app.action(queue="r", max_retry=9)
    async def gives_up() -> None:
        raise SkipRetry("no")

    sid = await _session(gw_store)
    for rid, action in enumerate(("shaky", "hopeless", "gives_up"), 1):
        await _request(app, gw_store, sid, rid, action)
    async with app.worker("r", forward_interval=0.1):
        for rid in (1, 2, 3):
            log = await _until(gw_store, sid, rid)
    assert attempts == [1, 2, 3]
    assert [one.type for one in log if one.kind is Kind.NOTIFY] == ["one", "two"]
    assert sorted((one.rid, one.code) for one in log if one.kind is Kind.RESPONSE) == [(1, 0), (2, 500), (3, 500)]


async def test_a_request_that_fails_after_its_deadline_is_archived_and_one_that_fails_before_it_is_retried(
    app: App, gw_store: Store
) -> None:
    """Its client was told that it is too late: no further attempt can change that."""

    @app.action(queue="r", max_retry=5, retry_delay=1000)
    async def fails(deadline: float) -> None:
        while time.time() < deadline:
            await asyncio.sleep(0.01)
        raise RuntimeError("boom")

    sid = await _session(gw_store)
    late = await _request(app, gw_store, sid, 1, "fails", {"deadline": time.time() + 0.5}, deadline_in=0.4)
    early = await _request(app, gw_store, sid, 2, "fails", {"deadline": 0.0}, deadline_in=600)
    async with app.worker("r"):
        await _until(gw_store, sid, 1)
        for handle, state in ((late, "archived"), (early, "retry")):

            async def has_ended(handle: Any = handle, state: str = state) -> bool:
                return (await app.inspector().task("r", handle.id)).state == state

            await until(has_ended)
            assert (await app.inspector().task("r", handle.id)).max_retry == 5


async def test_a_response_that_exists_already_stays_and_the_task_just_ends(app: App, gw_store: Store) -> None:
    ran, answered = asyncio.Event(), asyncio.Event()

    @app.action(queue="r")
    async def slow() -> str:
        ran.set()
        await answered.wait()
        return "late"

    sid = await _session(gw_store)
    handle = await _request(app, gw_store, sid, 1, "slow")
    async with app.worker("r"):
        await ran.wait()
        from veredus.clock import SYSTEM
        from veredus.handlers.request_answers import RequestAnswers

        told = await RequestAnswers(gw_store.outbox, SYSTEM).respond(
            Origin(sid, 1, "ada", 0), code=408, error="too late"
        )
        assert told.status == "sent"
        answered.set()
        assert await handle.result(timeout=PATIENCE) == "late"
    assert [(one.code, one.body) for one in await _log(gw_store, sid)] == [(408, b"")]


async def test_a_lost_worker_is_answered_by_the_recoverer(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    async def never() -> None: ...

    sid = await _session(gw_store)
    await _request(app, gw_store, sid, 1, "never")
    dead = Work(gw_store.redis, "dead-worker", lease_ms=200)
    assert len((await dead.dequeue("r", 1)).rows) == 1
    async with app.worker("r", lease=0.6):
        log = await _until(gw_store, sid, 1)
    assert [(one.kind, one.code) for one in log] == [(Kind.RESPONSE, 504)]


async def test_a_lost_request_that_was_to_be_cancelled_is_answered_as_cancelled(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    async def never() -> None: ...

    sid = await _session(gw_store)
    handle = await _request(app, gw_store, sid, 1, "never", max_retry=5)
    dead = Work(gw_store.redis, "dead-worker", lease_ms=200)
    assert len((await dead.dequeue("r", 1)).rows) == 1
    assert await handle.cancel() == "cancelling"
    async with app.worker("r", lease=0.6):
        log = await _until(gw_store, sid, 1)
    assert [(one.kind, one.code, one.error) for one in log] == [(Kind.RESPONSE, 499, "cancelled")]


async def test_a_response_that_is_too_large_becomes_an_error_response(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    async def large() -> bytes:
        return b"x" * (MAX_BODY + 1)

    @app.action(queue="r")
    async def fits() -> bytes:
        return b"x" * MAX_BODY

    sid = await _session(gw_store)
    await _request(app, gw_store, sid, 1, "large")
    await _request(app, gw_store, sid, 2, "fits")
    async with app.worker("r"):
        await _until(gw_store, sid, 1)
        log = await _until(gw_store, sid, 2)
    assert {one.rid: (one.code, len(one.body)) for one in log} == {1: (413, 0), 2: (0, MAX_BODY)}


async def test_a_long_reason_is_cut(app: App, gw_store: Store) -> None:
    @app.action(queue="r")
    async def refuses() -> None:
        raise Refused(409, "x" * 5000)

    sid = await _session(gw_store)
    await _request(app, gw_store, sid, 1, "refuses")
    async with app.worker("r"):
        (answer,) = await _until(gw_store, sid, 1)
    assert (answer.code, answer.error) == (409, "x" * 1000)


async def test_an_answer_is_tried_until_the_deadline_of_its_request(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_answers, "LEAST_PATIENCE", 0.0)

    @app.action(queue="r")
    async def quick() -> str:
        return "done"

    sid = await _session(gw_store)
    async with app.worker("r") as worker:
        requests = worker._execution.attempt_runner._requests
        respond, tries = requests.respond, 0

        async def away_at_first(*args: Any, **how: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise ConnectionLost("away")
            return await respond(*args, **how)

        requests.respond = away_at_first  # type: ignore[method-assign]
        await _request(app, gw_store, sid, 1, "quick", deadline_in=600)
        log = await _until(gw_store, sid, 1)
    assert [(one.code, one.body) for one in log] == [(0, b'"done"')]


async def test_a_request_that_cannot_be_answered_is_not_settled(
    app: App, gw_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would wait for ever: the lease runs out instead, and the recoverer decides."""
    monkeypatch.setattr(request_answers, "LEAST_PATIENCE", 0.1)

    @app.action(queue="r")
    async def quick() -> str:
        return "done"

    sid = await _session(gw_store)
    events: list[Any] = []
    worker = app.worker("r")
    worker.bus.subscribe(events.append)
    async with worker:

        async def away(*args: Any, **how: Any) -> Any:
            raise ConnectionLost("away")

        requests = worker._execution.attempt_runner._requests
        requests.respond = away  # type: ignore[method-assign]
        handle = await _request(app, gw_store, sid, 1, "quick", deadline_in=0.1)
        await until(lambda: [event for event in events if isinstance(event, TaskEnded)])
        await worker._execution.settler.drain()  # what was to be written is written now
        assert (await app.inspector().task("r", handle.id)).state == "active"


async def test_a_plain_task_has_no_client(app: App, gw_store: Store) -> None:
    problems: list[str] = []

    @app.task(queue="r")
    async def plain() -> str:
        try:
            _ = current().client
        except LookupError as exc:
            problems.append(str(exc))
        return "ok"

    handle = await plain.enqueue()
    async with app.worker("r"):
        assert await handle.result(timeout=PATIENCE) == "ok"
    assert problems == ["current().client: this task is not a client's request"]


async def test_made_up_headers_harm_nobody(app: App, gw_store: Store) -> None:
    @app.task(queue="r", name="t")
    async def task() -> str:
        return "ok"

    for headers in (
        {"veredus-session": ""},
        {"veredus-session": "x"},
        {"veredus-session": "x", "veredus-request": "1"},
    ):
        handle = await app.enqueue("t", queue="r", headers=headers)
        async with app.worker("r"):
            assert await handle.result(timeout=PATIENCE) == "ok"


async def test_a_request_of_no_session_is_answered_to_nobody_and_told_once(
    gw_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Headers that no gateway wrote: what ends the task must not wait for an answer that cannot be given."""
    answering = request_answers.RequestAnswers(gw_store.outbox, SystemClock())
    until_then = time.monotonic() + PATIENCE
    assert await answering.respond_surely(Origin("nonsense", 1, "", 0), until_then, body=b"1") is True
    assert caplog.text.count("cannot answer its request") == 1
