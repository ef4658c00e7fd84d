"""Several frames with the number of one request: copies and cancels. Whatever is told of it once stays true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import until
from veredus import App
from veredus.gateway.received_requests import MOST, ReceivedRequests, RequestState


def _frame(rid: int, action: str, text: str) -> dict[str, Any]:
    return {"t": "request", "rid": rid, "action": action, "body": {"text": text}}


async def _until_pushed(app: App, client: JsonClient) -> list[dict[str, Any]]:
    """All frames that come before the message that is pushed now."""
    frames = []
    await app.push("end", session=client.sid)
    while (frame := await client.next()).get("body") != "end":
        frames.append(frame)
    return frames


@pytest.mark.parametrize("is_answered", [False, True], ids=["while it runs", "after its answer"])
async def test_a_copy_beyond_the_rate_of_requests_is_not_rejected(app: App, is_answered: bool) -> None:
    ran: list[str] = []
    go_on = asyncio.Event()

    @app.action("slow", where="gateway")
    async def slow(text: str) -> str:
        ran.append(text)
        await go_on.wait()
        return text

    async with gateway(app, request_rate=0.01, request_burst=1) as gw:
        client = await JsonClient.open(gw, "ada")
        request = _frame(1, "slow", "x")
        if is_answered:
            go_on.set()
            await client.send(request)
            await client.frame("msg", rid=1)
        await client.send(*[request] * 5, _frame(2, "slow", "y"))
        refused = await client.frame("reject")
        assert (refused["rid"], refused["code"]) == (2, 429)
        go_on.set()
        if not is_answered:
            await client.frame("msg", rid=1)
        client.cut()
        client = await JsonClient.open(gw, "ada", client.resumption())
        await client.send(_frame(3, "slow", "z"))  # it takes the only place
        await client.send(request, request, _frame(4, "slow", "refused"))
        told = []
        while (frame := await client.next())["t"] != "reject":
            told.append(frame)
        assert [frame["t"] for frame in told if frame["rid"] == 1] == ["accept", "accept"]
        await until(lambda: ran == ["x", "z"])


async def test_copies_to_a_closed_queue_are_rejected_or_answered_not_both(app: App) -> None:
    ran: list[str] = []

    @app.action("there", queue="r")
    async def there(text: str) -> str:
        ran.append(text)
        return text

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await app.inspector().close_queue("r")
        for rid in range(1, 11):
            await client.send(*[_frame(rid, "there", str(rid))] * 3)
        refused = {(await client.frame("reject"))["rid"] for _ in range(10)}
        assert refused == set(range(1, 11))
        await app.inspector().open_queue("r")
        for rid in range(1, 11):
            await client.send(*[_frame(rid, "there", str(rid))] * 3)
        answers = await client.take(10)
        assert {answer["rid"] for answer in answers} == refused
        assert all(answer["body"] == str(answer["rid"]) for answer in answers), "nothing was answered before"
        assert sorted(ran, key=int) == [str(rid) for rid in range(1, 11)]


async def test_a_cancel_of_a_rejected_request_does_nothing(app: App) -> None:
    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app, request_rate=5.0, request_burst=1) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.send(_frame(1, "echo", "x"), _frame(2, "echo", "y"), {"t": "cancel", "rid": 2})
        refused = await client.frame("reject", rid=2)
        assert refused["retryable"]
        await asyncio.sleep(refused["retry_after_ms"] / 1000)
        await client.send(_frame(2, "echo", "y"))
        assert (await client.frame("msg", rid=2))["body"] == "y", "its number was free"


async def test_a_request_that_is_cancelled_before_it_is_decided_is_answered_and_not_rejected(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel comes while the record is taken back, and is written after that."""

    @app.action("there", queue="r")
    async def there(text: str) -> str:
        return text

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await app.inspector().close_queue("r")
        (connection,) = gw.delivery.connections
        outbox, answers = gw.router._store.outbox, gw.router._answers
        refuse, respond, is_refused = outbox.refuse, answers.respond, asyncio.Event()

        async def refuse_first(*given: Any) -> Any:
            await client.send({"t": "cancel", "rid": 1})
            await until(lambda: connection.requests.state(1) is RequestState.CANCELLED, what="the cancel")
            result = await refuse(*given)
            is_refused.set()
            return result

        async def respond_later(*given: Any, **more: Any) -> Any:
            await is_refused.wait()
            return await respond(*given, **more)

        monkeypatch.setattr(outbox, "refuse", refuse_first)
        monkeypatch.setattr(answers, "respond", respond_later)
        await client.send(_frame(1, "there", "x"))
        assert (await client.next()).get("code") == 499
        assert await _until_pushed(app, client) == []


@pytest.mark.parametrize("action", ["here", "there"])
async def test_a_request_that_is_cancelled_while_it_is_recorded_does_not_run(
    app: App, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The gateway learns that it is recorded when the cancel is written."""
    ran: list[str] = []

    async def handle(text: str) -> None:
        ran.append(text)

    app.action("here", where="gateway")(handle)
    app.action("there", queue="r")(handle)
    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        outbox, answers = gw.router._store.outbox, gw.router._answers
        accept, respond = outbox.accept, answers.respond
        is_recorded, is_cancelled = asyncio.Event(), asyncio.Event()

        async def accept_slowly(*given: Any) -> Any:
            state = await accept(*given)
            is_recorded.set()
            await is_cancelled.wait()
            return state

        async def respond_then(*given: Any, **more: Any) -> Any:
            await is_recorded.wait()
            result = await respond(*given, **more)
            is_cancelled.set()
            return result

        monkeypatch.setattr(outbox, "accept", accept_slowly)
        monkeypatch.setattr(answers, "respond", respond_then)
        await client.send(_frame(1, action, "cancelled"), {"t": "cancel", "rid": 1})
        assert (await client.frame("msg", rid=1))["code"] == 499
        await client.send(_frame(2, action, "last"))
        await client.frame("msg", rid=2)
        assert ran == ["last"]


@pytest.mark.parametrize("action", ["here", "there"])
async def test_a_request_and_its_cancel_in_one_message(app: App, action: str) -> None:
    """Whether its handler has begun or not, it does not go on."""
    running: set[str] = set()

    async def handle(text: str) -> None:
        if text == "last":
            return
        running.add(text)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(text)

    app.action("here", where="gateway")(handle)
    app.action("there", queue="r")(handle)
    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        for rid in range(1, 9):
            await client.send(_frame(rid, action, str(rid)), {"t": "cancel", "rid": rid})
        assert [answer["code"] for answer in await client.take(8)] == [499] * 8
        await client.send(_frame(9, action, "last"))
        await client.frame("msg", rid=9)
        await until(lambda: not running, what="an end of all that was cancelled")


def test_only_the_newest_requests_are_remembered_and_none_that_the_client_has_settled() -> None:
    received = ReceivedRequests()
    for rid in range(1, MOST + 100):
        received.begin(rid)
        received.settle(rid)
    assert len(received) == MOST
    assert received.state(1) is None
    assert received.state(MOST + 99) is RequestState.ACCEPTED
    received.forget(MOST + 90)
    assert len(received) == 9


async def test_what_a_client_says_that_it_has_seen_is_forgotten(app: App) -> None:
    @app.action("echo", where="gateway")
    async def echo(text: str) -> str:
        return text

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        for rid in (1, 2, 3):
            await client.send(_frame(rid, "echo", "x"))
            await client.frame("msg", rid=rid)
        (connection,) = gw.delivery.connections
        assert len(connection.requests) == 3
        await client.ack(rid_floor=2)
        await until(lambda: len(connection.requests) == 1)
