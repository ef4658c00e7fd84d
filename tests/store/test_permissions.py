"""Users of Redis who may not do everything: what is refused stores nothing, and what is not needed is done without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.servers import RealServer, free_port
from tests.support.waiting import until
from veredus import App
from veredus.errors import AuthError
from veredus.wire import keys

pytestmark = pytest.mark.timeout(60)
New = Callable[..., RealServer]


@asynccontextmanager
async def _app_of(new_server: New, product: str, *rules: str) -> AsyncIterator[tuple[App, Any]]:
    """An app that logs in with these rules, and a client that may do everything."""
    server = new_server(product=product, port=free_port())
    client = server.client()
    client.execute_command("ACL", "SETUSER", "u", "on", ">secret", "~*", *rules)
    async with App(f"redis://u:secret@127.0.0.1:{server.port}/0") as app:
        yield app, client


@pytest.mark.parametrize("product", ["valkey", "redis6"])
async def test_who_may_use_no_channel_enqueues_and_works_all_the_same(
    new_server: New, product: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages are hints: without them delayed tasks are found at the next look. Nothing that is stored is told as an
    error."""
    async with _app_of(new_server, product, "resetchannels", "+@all") as (app, client):
        ran: list[int] = []
        ways: list[dict[str, Any]] = [{}, {"delay": 0.2}, {"order_key": "k"}, {"limit_key": "k"}, {"unique_for": 9}]

        @app.task(name="note", max_retry=1, retry_delay=0.05)
        async def note(n: int) -> None:
            ran.append(n)
            if ran.count(n) == 1:
                raise ValueError("the first attempt fails")

        for number, options in enumerate(ways):
            assert (await note.using(**options).enqueue(number)).created
        async with app.worker(concurrency=5, forward_interval=0.1):
            await until(lambda: len(ran) == 10, what="two attempts of each")
            await until(lambda: not client.keys(keys.task("default", "*")), what="the end of all tasks")
        assert sorted(ran) == sorted([*range(5)] * 2)
        assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("product", ["valkey", "redis6"])
@pytest.mark.parametrize("command", ["time", "lpush"])
async def test_what_a_user_may_not_do_is_refused_and_stores_nothing(
    new_server: New, product: str, command: str
) -> None:
    async with _app_of(new_server, product, "allchannels", "+@all", f"-{command}") as (app, client):
        with pytest.raises(AuthError):
            await app.enqueue("note", b"1")
        with pytest.raises(AuthError):
            await app.enqueue("note", b"2", task_id="mine")
        assert not client.keys(keys.task("default", "*"))
        assert not client.exists(keys.pending("default"))
