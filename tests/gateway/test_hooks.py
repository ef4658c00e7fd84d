"""Hooks of the user's: synchronous ones run in threads, and an error object that they raise for ever stays small."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import traceback
from typing import Any

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import until
from veredus import App, Unauthorized
from veredus.gateway.auth import Identity, call_hook, jwt
from veredus.gateway.client_hooks import ConnectedClient
from veredus.handlers.executors.threads import ThreadPool
from veredus.model.failure import drop_older_raises
from veredus.peer import connect


async def test_a_synchronous_authenticator_that_waits_holds_up_nobody(app: App) -> None:
    """Twenty of them wait for each other: one after the other they would wait for ever."""
    together = threading.Barrier(20)

    def authenticate(token: str) -> Identity:
        if token.startswith("slow"):
            together.wait(30)
        return Identity(user=token)

    async with gateway(app, authenticate=authenticate) as gw:
        logins = [asyncio.create_task(JsonClient.open(gw, f"slow{n}")) for n in range(19)]
        await until(lambda: together.n_waiting == 19)
        quick = await JsonClient.open(gw, "quick")
        assert together.n_waiting == 19
        logins.append(asyncio.create_task(JsonClient.open(gw, "slow19")))
        assert len({client.sid for client in await asyncio.gather(*logins)} | {quick.sid}) == 21


async def test_a_synchronous_may_join_runs_in_a_thread(app: App) -> None:
    where: list[str] = []

    def may_join(who: Identity, group: str) -> bool:
        where.append(threading.current_thread().name)
        return group == "open"

    async with gateway(app, may_join=may_join) as gw:
        client = await JsonClient.open(gw, "ada")
        for group in ("open", "closed"):
            await client.send({"t": "join", "group": group})
            assert (await client.frame("vol"))["body"]["joined"] == (group == "open")
        assert all(name != threading.main_thread().name for name in where)


async def test_hooks_that_are_async_in_any_form_run_on_the_loop() -> None:
    async def plain(token: str) -> str:
        return threading.current_thread().name

    class Callable:
        async def __call__(self, token: str) -> str:
            return threading.current_thread().name

    def wrapped(token: str) -> object:
        return plain(token)  # called in a thread, awaited on the loop

    threads = ThreadPool(2, lambda: None)
    here = threading.current_thread().name
    for hook in (plain, functools.partial(plain), Callable(), wrapped):
        assert await call_hook(threads, hook, "t") == here
    assert await call_hook(threads, lambda token: threading.current_thread().name, "t") != here
    threads.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_hook_raises_harms_nobody_else(app: App, is_async: bool, error: type[BaseException]) -> None:
    came: list[str] = []

    def authenticate(token: str) -> Identity:
        if token == "refused":
            raise error
        return Identity(user=token)

    def may_join(who: Identity, group: str) -> bool:
        if group == "odd":
            raise error
        return True

    def on_connect(client: ConnectedClient) -> None:
        came.append(client.user)
        if client.user == "odd":
            raise error

    def as_it_is(hook: Any) -> Any:
        async def later(*arguments: Any) -> Any:
            return hook(*arguments)

        return later if is_async else hook

    app.on_connect(as_it_is(on_connect))
    async with gateway(app, authenticate=as_it_is(authenticate), may_join=as_it_is(may_join)) as gw:
        client = await JsonClient.open(gw, "ada")
        refused = await JsonClient.connect(gw)
        await refused.send({"t": "hello", "version": 1, "token": "refused"})
        assert await refused.close_code() == 4501
        for group, joined in (("odd", False), ("even", True)):
            await client.send({"t": "join", "group": group})
            assert (await client.frame("vol"))["body"]["joined"] == joined
        await JsonClient.open(gw, "odd")
        await until(lambda: sorted(came) == ["ada", "odd"])
        assert (await JsonClient.open(gw, "bob")).welcome["result"] == "new"
        await until(lambda: "bob" in came, what="hooks that go on")


async def test_an_authenticator_that_fails_is_logged_once_and_a_refusal_is_not(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def authenticate(token: str) -> Identity:
        if token == "refused":
            raise Unauthorized("no")
        return Identity(user=token, groups=None)  # type: ignore[arg-type]

    async with gateway(app, authenticate=authenticate) as gw:
        for token in ("refused", "ada", "ada"):
            client = await JsonClient.connect(gw)
            await client.send({"t": "hello", "version": 1, "token": token})
            assert await client.close_code() == 4501
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "groups: got None" in line.getMessage()
    assert line.exc_info is not None


async def test_a_check_of_a_jwt_needs_no_thread() -> None:
    with pytest.raises(Unauthorized):
        await call_hook(None, jwt("a shared secret of at least 32 bytes"), "nonsense")
    threads = ThreadPool(1, lambda: None)
    with pytest.raises(Unauthorized):
        await call_hook(threads, jwt("a shared secret of at least 32 bytes"), "nonsense")
    assert threads._threads == 0


def _frames(error: BaseException) -> int:
    return len(list(traceback.walk_tb(error.__traceback__)))


def test_of_an_error_that_is_raised_again_only_the_last_time_is_kept() -> None:
    error = ValueError("no")

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise error

    def catch(levels: int) -> int:
        try:
            deep(levels)
        except ValueError as exc:
            drop_older_raises(exc)
        return _frames(error)

    assert [catch(levels) for levels in (3, 7, 0, 3)] == [5, 9, 2, 5]
    drop_older_raises(ValueError("never raised"))


async def test_an_error_object_that_a_hook_raises_for_ever_stays_small(app: App) -> None:
    no, broken, refusing = Unauthorized("no"), ValueError("no"), ValueError("no")

    async def authenticate(token: str) -> Identity:
        if token == "ada":
            return Identity(user="ada")
        raise no if token == "no" else broken

    def may_join(who: Identity, group: str) -> bool:
        raise refusing

    async with gateway(app, authenticate=authenticate, may_join=may_join) as gw:
        sizes = []
        ada = await JsonClient.open(gw, "ada")
        for _ in range(4):
            for token in ("no", "broken"):
                client = await JsonClient.connect(gw)
                await client.send({"t": "hello", "version": 1, "token": token})
                assert await client.close_code() == 4501
            await ada.send({"t": "join", "group": "g"})
            assert (await ada.frame("vol"))["body"]["joined"] is False
            sizes.append((_frames(no), _frames(broken), _frames(refusing)))
        assert sizes[1] == sizes[2] == sizes[3]


async def test_an_error_object_that_a_handler_raises_for_ever_stays_small(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = ValueError("here"), ValueError("there")

    @app.action("here", where="gateway")
    async def fail_here() -> None:
        raise here

    @app.action("there", queue="r")
    def fail_there() -> None:
        raise there

    async with gateway(app) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        sizes, lines = [], []
        for rid in range(1, 9, 2):
            with caplog.at_level(logging.WARNING):
                caplog.clear()
                await client.request(rid, "here")
                await client.request(rid + 1, "there")
                assert [one["code"] for one in await client.take(2)] == [500, 500]
                await until(lambda: caplog.text.count("ValueError: there") > 0)
            sizes.append((_frames(here), _frames(there)))
            lines.append(caplog.text.count("\n"))
        assert sizes[1] == sizes[2] == sizes[3]
        assert max(lines) < 200


async def test_a_closed_peer_that_is_asked_for_ever_has_an_error_that_stays_small(app: App) -> None:
    async with gateway(app) as gw:
        peer = await connect(f"ws://{gw.ws_address}", token="ada")
        gw.delivery.attached[peer.session].end(4504, "by the operator")
        sizes = []
        for _ in range(5):
            try:
                await peer.wait_closed()
            except Exception as exc:
                sizes.append(_frames(exc))
            try:
                await peer.receive()
            except Exception as exc:
                sizes.append(_frames(exc))
        assert len(sizes) == 10
        assert sizes[2:4] == sizes[4:6] == sizes[8:10]
        await peer.close()
