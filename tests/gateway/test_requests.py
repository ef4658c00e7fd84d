"""Requests become tasks: one answer each, whatever is repeated, bound, cancelled, late or dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer
from tests.support.waiting import forever, until
from veredus import App, current
from veredus.errors import ConnectionLost
from veredus.model.request import RETENTION
from veredus.store.store import Store


def _echo(app: App, **settings: Any) -> None:
    @app.action("echo", queue="r", **settings)
    async def echo(text: str) -> str:
        return text


async def test_a_request_is_accepted_run_by_a_worker_and_answered(app: App, gw_store: Store) -> None:
    _echo(app)
    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "echo", {"text": "hi"})
        assert (await client.frame("accept"))["rid"] == 1
        answer = await client.frame("msg")
        assert (answer["kind"], answer["rid"], answer["body"], answer.get("code", 0)) == ("response", 1, "hi", 0)
        await until(lambda: not gw.router.open, what="the request is seen to be answered")
        assert gw.overload.upstream == 0


async def test_only_actions_can_be_called_by_clients(app: App) -> None:
    _echo(app)

    @app.task(name="secret", queue="r")
    async def secret() -> None: ...

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "secret")
        rejected = await client.frame("reject")
        assert (rejected["rid"], rejected["code"], rejected.get("retryable", False)) == (1, 404, False)
        await client.request(2, "ecoh")
        assert "did you mean 'echo'" in (await client.frame("reject"))["error"]


async def test_a_repeated_request_is_not_run_twice(app: App) -> None:
    runs: list[int] = []
    release = asyncio.Event()

    @app.action(queue="r")
    async def slow() -> int:
        runs.append(1)
        await release.wait()
        return len(runs)

    async with gateway(app) as one, gateway(app) as two, app.worker("r"):
        client = await JsonClient.open(one, "ada")
        await client.request(1, "slow")
        await client.request(1, "slow")
        assert [(await client.frame("accept"))["rid"] for _ in range(2)] == [1, 1]
        await until(lambda: runs)
        client.cut()
        again = await JsonClient.open(two, "ada", client.resumption())
        assert [(one["rid"], one["state"]) for one in again.welcome["open"]] == [(1, "open")]
        await again.request(1, "slow")
        await again.frame("accept")
        release.set()
        assert (await again.frame("msg"))["body"] == 1
        again.cut()
        again = await JsonClient.open(one, "ada", again.resumption())
        assert [(one["rid"], one["state"]) for one in again.welcome["open"]] == [(1, "done")]
        await again.request(1, "slow")
        await again.frame("accept")
        await app.push("end", session=again.sid)
        assert (await again.frame("msg"))["body"] == "end"
    assert runs == [1]


@pytest.mark.parametrize("where", ["ahead", "while it runs"])
async def test_n1_n3_n4_before_response_after_and_late(app: App, where: str) -> None:
    """Notifies bound before and after request 123, then request 123; also over a reconnect in between."""
    began, release = asyncio.Event(), asyncio.Event()

    @app.action(queue="r")
    async def hello() -> str:
        began.set()
        await release.wait()
        await current().client.notify("told", type="own", when="before")
        return "response"

    async def bind(sid: str) -> None:
        fields: dict[str, Any] = {"session": sid, "title": "T", "content": "C", "metadata": {"k": "v"}}
        assert (await app.push("after", bind=(123, "after"), type="a", **fields)).status == "held"
        assert (await app.push("before", bind=(123, "before"), type="b", **fields)).status == "held"

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        if where == "ahead":
            await bind(client.sid)
        await client.request(123, "hello")
        await client.frame("accept")
        await began.wait()
        if where != "ahead":
            await bind(client.sid)
        client.cut()
        again = await JsonClient.open(gw, "ada", client.resumption())
        release.set()
        messages = await again.take(4)
        assert [message["body"] for message in messages] == ["before", "told", "response", "after"]
        assert [message["seq"] for message in messages] == [1, 2, 3, 4]
        for message, hint in ((messages[0], 1), (messages[3], 2)):
            assert (message["title"], message["content"], message["metadata"]) == ("T", "C", {"k": "v"})
            assert (message["sync_hint"], message["bind_client_seq_id"]) == (hint, 123)
        late = await app.push("too late", session=again.sid, bind=(123, "before"))
        assert late.status == "late"
        assert (await again.take(1))[0]["kind"] == "late"
        assert (await app.push("x", session=again.sid, bind=(123, "before"), late="reject")).status == "too_late"
        assert (await app.push("after all", session=again.sid, bind=(123, "after"))).status == "queued"


async def test_n2_held_notifies_go_with_the_error_that_a_deadline_gives(app: App) -> None:
    _echo(app)
    async with gateway(app) as gw:  # and no worker
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "echo", {"text": "x"}, deadline_ms=300)
        await client.frame("accept")
        await app.push("before", session=client.sid, bind=(1, "before"))
        await app.push("dropped", session=client.sid, bind=(1, "after"), on_fail="drop")
        await app.push("after", session=client.sid, bind=(1, "after"))
        before, response, after = await client.take(3)
        assert (before["body"], after["body"]) == ("before", "after")
        assert (response["rid"], response["code"]) == (1, 408)
        assert gw.overload.upstream == 0


async def test_n6_nothing_comes_between_what_is_bound_and_its_response(app: App) -> None:
    @app.action(queue="r")
    async def busy() -> str:
        for n in range(3):
            await current().client.notify(n, type="bound", when="before")
            await current().client.notify(n, type="bound", when="after")
        return "response"

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")

        async def chatter() -> None:
            while True:
                await asyncio.gather(*[app.push("other", session=client.sid, type="other") for _ in range(5)])

        noise = asyncio.create_task(chatter())
        for rid in range(1, 11):
            await client.request(rid, "busy")
            await client.frame("msg", rid=rid)
            await client.ack()
        noise.cancel()
        for message in client.messages:
            if message["kind"] == "response":
                at = message["seq"] - 1
                around = [one["type"] for one in client.messages[at - 3 : at] + client.messages[at + 1 : at + 4]]
                assert set(around) == {"bound"} or len(client.messages) < at + 4, around


async def test_n6_a_request_number_beyond_32_bits_keeps_its_binds(app: App) -> None:
    _echo(app)
    rid = 2**53 - 1
    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await app.push("before", session=client.sid, bind=(rid, "before"))
        await client.request(rid, "echo", {"text": "x"})
        assert [message["body"] for message in await client.take(2)] == ["before", "x"]


async def test_a_deadline_is_kept_although_the_gateway_that_took_the_request_is_dead(app: App) -> None:
    _echo(app)
    async with gateway(app) as one:
        client = await JsonClient.open(one, "ada")
        await client.request(1, "echo", {"text": "x"}, deadline_ms=1000)
        await client.frame("accept")
        one.router.open.remove((client.sid, 1))  # as if it had died with its timers
    async with gateway(app) as two:
        again = await JsonClient.open(two, "ada", client.resumption())
        assert (await again.frame("msg", rid=1))["code"] == 408


async def test_a_cancelled_request_is_answered_at_once_and_its_task_ends(app: App) -> None:
    began = asyncio.Event()
    ended: list[str] = []

    @app.action(queue="r")
    async def slow() -> None:
        began.set()
        try:
            await forever()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "slow")
        await began.wait()
        await client.send({"t": "cancel", "rid": 1})
        assert (await client.frame("msg", rid=1))["code"] == 499
        await until(lambda: ended)


async def test_s5_refused_requests_do_not_desynchronise_the_client(app: App) -> None:
    """Refused for their rate, the same numbers are good a moment later; heartbeats and acks are never refused."""
    _echo(app, where="gateway")
    async with gateway(app, request_rate=20, request_burst=5) as gw:
        client = await JsonClient.open(gw, "ada")
        for rid in range(1, 11):
            await client.request(rid, "echo", {"text": str(rid)})
        refused = [await client.frame("reject") for _ in range(5)]
        assert {frame["code"] for frame in refused} == {429}
        assert all(frame["retryable"] and frame["retry_after_ms"] > 0 for frame in refused)
        while len(client.messages) < 10:
            frame = refused.pop() if refused else await client.next()
            if frame["t"] == "reject":
                await asyncio.sleep(frame["retry_after_ms"] / 1000)
                await client.request(frame["rid"], "echo", {"text": str(frame["rid"])})
        assert sorted(message["rid"] for message in client.messages) == list(range(1, 11))
        for _ in range(200):
            await client.ack()
        await app.push("x", session=client.sid)
        assert (await client.frame("msg"))["body"] == "x"


@pytest.mark.parametrize("kind", ["request", "join", "cancel", "auth"])
async def test_a_flood_of_frames_ends_the_connection_and_nobody_else_s(app: App, kind: str) -> None:
    frames: dict[str, dict[str, Any]] = {
        "request": {"t": "request", "rid": 1, "action": "nothing"},
        "join": {"t": "join", "group": "g"},
        "cancel": {"t": "cancel", "rid": 1},
        "auth": {"t": "auth", "token": "ada"},
    }
    async with gateway(app, request_rate=5, request_burst=10) as gw:
        flooder, other = await JsonClient.open(gw, "ada"), await JsonClient.open(gw, "bob")
        for _ in range(4):
            await flooder.send(*[frames[kind]] * 50)
        assert await flooder.close_code() == 4005
        assert (await JsonClient.open(gw, "ada", flooder.resumption())).welcome["result"] == "resumed"
        await app.push("x", session=other.sid)
        assert (await other.take(1))[0]["body"] == "x"


async def test_too_many_open_requests_of_one_session_are_refused(app: App) -> None:
    _echo(app)
    async with gateway(app, open_requests=3) as gw:
        client = await JsonClient.open(gw, "ada")
        for rid in range(1, 5):
            await client.request(rid, "echo", {"text": "x"})
        assert (await client.frame("reject"))["rid"] == 4


async def test_overload_is_refused_as_retryable_for_all_and_pushes_go_on(app: App) -> None:
    _echo(app)
    async with gateway(app, max_upstream=2) as gw:
        first, second = [await JsonClient.open(gw, name) for name in ("ada", "bob")]
        for rid in (1, 2):
            await first.request(rid, "echo", {"text": "x"})
            await first.frame("accept")
        await second.request(1, "echo", {"text": "x"})
        rejected = await second.frame("reject")
        assert (rejected["code"], rejected["retryable"]) == (503, True)
        await app.push("x", session=second.sid)
        assert (await second.frame("msg"))["body"] == "x"


async def test_handlers_in_the_gateway(app: App) -> None:
    @app.action("add", where="gateway")
    async def add(a: int, b: int = 1) -> int:
        await current().client.notify("thinking", type="progress")
        await current().client.notify("done", when="after")
        return a + b

    @app.action("block", where="gateway")
    def block() -> str:
        return current().headers["veredus-user"]

    @app.action("fail", where="gateway")
    async def fail() -> None:
        raise ValueError("inner matters")

    @app.action("late", where="gateway", deadline=0.2)
    async def late() -> None:
        await forever()

    @app.action("coroutine", where="gateway")
    def coroutine() -> Any:
        return asyncio.sleep(0)

    hanging: list[int] = []

    @app.action("hang", where="gateway")
    async def hang(rid: int) -> None:
        hanging.append(rid)
        await forever()

    async with gateway(app, handlers=2) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "add", {"a": 2})
        assert [message["body"] for message in await client.take(3)] == ["thinking", 3, "done"]
        await client.request(2, "block")
        assert (await client.frame("msg", rid=2))["body"] == "ada"
        await client.request(3, "fail")
        answer = await client.frame("msg", rid=3)
        assert (answer["code"], answer["error"]) == (500, "the handler failed (ValueError)")
        await client.request(4, "add", {"a": "two"})
        assert (await client.frame("msg", rid=4))["code"] == 400
        await client.request(5, "late")
        assert (await client.frame("msg", rid=5))["code"] == 408
        await client.request(6, "coroutine")
        answer = await client.frame("msg", rid=6)
        assert (answer["code"], answer["error"]) == (500, "the handler failed (ResultError)")
        for rid in (7, 8):
            await client.request(rid, "hang", {"rid": rid})
        await until(lambda: hanging == [7, 8])
        await client.request(9, "hang", {"rid": 9})
        assert (await client.frame("reject"))["rid"] == 9


async def test_serial_requests_of_one_session_run_one_after_the_other(app: App) -> None:
    running: list[int] = []
    most = 0

    @app.action(queue="r", serial=True)
    async def step(n: int) -> int:
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        await asyncio.sleep(0.02)
        running.remove(n)
        return n

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        for rid in range(1, 7):
            await client.request(rid, "step", {"n": rid})
        answers: list[int] = []
        while len(answers) < 6:
            answers.append((await client.frame("msg"))["body"])
        assert answers == [1, 2, 3, 4, 5, 6]
        assert most == 1


async def test_a_client_may_ask_for_its_requests_to_run_one_after_the_other(app: App) -> None:
    """Only those that it asks that for: the action itself is not serial."""
    began: list[int] = []
    release = asyncio.Event()

    @app.action(queue="r")
    async def step(n: int) -> int:
        began.append(n)
        if n == 1:
            await release.wait()
        return n

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        for rid in (1, 2):
            await client.request(rid, "step", {"n": rid}, serial=True)
            await client.frame("accept", rid=rid)
        await client.request(3, "step", {"n": 3})
        assert (await client.frame("msg"))["body"] == 3
        assert began == [1, 3]
        release.set()
        assert [one["body"] for one in await client.take(2)] == [1, 2]


async def test_a_request_without_reply_that_is_repeated_after_its_end_is_not_run_again(
    app: App, valkey_server: RealServer
) -> None:
    """Its task is kept for a while although the action keeps none: nothing else remembers such a request."""
    done: list[str] = []

    @app.action(queue="r")
    async def note(text: str) -> None:
        done.append(text)

    async with gateway(app) as gw, app.worker("r", concurrency=1):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "note", {"text": "x"}, no_reply=True)
        await client.frame("accept", rid=1)
        with valkey_server.client() as redis:
            await until(lambda: done and not redis.llen("asynq:{r}:active"), what="the end of its task")
        await client.request(1, "note", {"text": "x"}, no_reply=True)
        await client.frame("accept", rid=1)
        await client.request(2, "note", {"text": "y"}, no_reply=True)
        await until(lambda: "y" in done)
        assert done == ["x", "y"]


async def test_a_request_without_reply_is_run_and_not_answered(app: App) -> None:
    done: list[str] = []

    @app.action(queue="r")
    async def note(text: str) -> None:
        done.append(text)

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "note", {"text": "x"}, no_reply=True)
        await client.frame("accept")
        await until(lambda: done)
        await app.push("end", session=client.sid)
        assert (await client.frame("msg"))["body"] == "end"


@pytest.mark.parametrize(("given", "timeout"), [({"timeout": 5.0}, 5), ({"timeout": 90.0}, 20), ({}, 20)])
async def test_the_task_of_a_request_keeps_its_own_timeout_and_retention(
    app: App, given: dict[str, Any], timeout: int
) -> None:
    """The deadline of the request only shortens the one, and what repeats are known by only lengthens the other."""
    _echo(app, deadline=20, retention=RETENTION + 1000, **given)
    async with gateway(app) as gw, app.inspector() as inspector:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "echo", {"text": "hi"})
        await client.frame("accept")
        task = await inspector.task("r", f"{client.sid}.1")
        assert (task.timeout, task.retention) == (timeout, RETENTION + 1000)


async def test_an_answer_of_a_handler_in_the_gateway_is_written_again_until_the_store_takes_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    _echo(app, where="gateway")
    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        outbox, failed = gw._local_actions._answers.outbox, list[Any]()
        respond = outbox.respond

        async def fails_once(*args: Any, **more: Any) -> Any:
            if not failed:
                failed.append(args)
                raise ConnectionLost("away")
            return await respond(*args, **more)

        monkeypatch.setattr(outbox, "respond", fails_once)
        await client.request(1, "echo", {"text": "hi"})
        assert (await client.frame("msg"))["body"] == "hi"
        assert len(failed) == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, ExceptionGroup])
async def test_whatever_a_handler_in_the_gateway_raises_ends_its_request_and_nothing_else(
    app: App, error: type[BaseException]
) -> None:
    @app.action("odd", where="gateway")
    async def odd(text: str) -> str:
        if text == "raise":
            raise error("many", [ValueError()]) if error is ExceptionGroup else error()
        return text

    async with gateway(app) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "odd", {"text": "raise"})
        assert (await client.frame("msg", rid=1))["code"] == (499 if error is asyncio.CancelledError else 500)
        await client.request(2, "odd", {"text": "on"})
        assert (await client.frame("msg", rid=2))["body"] == "on"
