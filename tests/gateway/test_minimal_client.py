"""The client of examples/minimal_client.py, which is made from docs/gateway-protocol.md alone, with a real gateway."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.support import gateway
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, current
from veredus.gateway import maintenance

PROGRAM = Path(__file__).parents[2] / "examples/minimal_client.py"


def _client() -> Any:
    found = importlib.util.spec_from_file_location("minimal_client", PROGRAM)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.Client


def test_it_has_at_most_100_lines_and_nothing_of_veredus() -> None:
    text = PROGRAM.read_text()
    assert len(text.splitlines()) <= 100
    assert "import veredus" not in text
    assert "from veredus" not in text


def _actions(app: App) -> list[int]:
    ran: list[int] = []

    @app.action("double", queue="r")
    async def double(n: int) -> int:
        ran.append(n)
        await current().client.notify(n, type="progress")
        return 2 * n

    return ran


async def test_requests_messages_and_resumes_nothing_lost_nothing_twice(app: App) -> None:
    ran = _actions(app)
    seen: list[dict[str, Any]] = []
    async with gateway(app, may_join=lambda who, group: group == "room") as gw, app.worker("r"):
        client = _client()(f"ws://{gw.ws_address}/", "ada", seen.append)
        running = asyncio.create_task(client.run())
        assert await asyncio.wait_for(client.request("double", {"n": 0}), PATIENCE) == 0
        sid = client.resume["sid"]
        for group, code in (("room", 0), ("secret", 403)):
            await client.send({"t": "join", "group": group})
            await until(lambda: seen[-1]["t"] == "vol", what="the answer to a join")
            assert seen.pop()["body"].get("code", 0) == code

        async def produce() -> None:
            for number in range(100):
                await app.push(number, session=sid, type="push")
                await asyncio.sleep(0.005)

        async def ask() -> list[int]:
            return [await client.request("double", {"n": n}) for n in range(1, 9)]

        producing, asking = asyncio.create_task(produce()), asyncio.create_task(ask())
        while not (producing.done() and asking.done()):
            await asyncio.sleep(0.04)
            if client.socket is not None:
                client.socket.transport.abort()
            await asyncio.sleep(0.04)
        assert await asking == [2 * n for n in range(1, 9)]
        assert client.resume["sid"] == sid
        await until(lambda: sum(one.get("type") == "push" for one in seen) == 100, what="all pushes")
        await until(lambda: client.socket is not None)
        assert (await app.push("x", group="room")).queued == 1
        await until(lambda: seen[-1].get("body") == "x", what="the push to the group")
        await client.send({"t": "leave", "group": "room"})
        await until(lambda: seen[-1]["t"] == "vol", what="the answer to a leave")
        assert not seen.pop()["body"].get("joined")
        assert (await app.push("y", group="room")).queued == 0
        with pytest.raises(RuntimeError, match="404 no action"):
            await client.request("doubl")
        await client.send({"t": "bye"})
        assert await asyncio.wait_for(running, PATIENCE) == 4504
    assert [one["body"] for one in seen if one.get("type") == "push"] == list(range(100))
    assert [one["body"] for one in seen if one.get("type") == "progress"] == list(range(9))
    assert all(one["t"] == "msg" for one in seen)
    assert sorted(ran) == list(range(9))


async def test_it_begins_anew_when_the_session_is_lost(
    app: App, valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP", 0.2)
    _actions(app)
    seen: list[dict[str, Any]] = []
    async with gateway(app) as gw, app.worker("r"):
        client = _client()(f"ws://{gw.ws_address}/", "ada", seen.append)
        running = asyncio.create_task(client.run())
        assert await asyncio.wait_for(client.request("double", {"n": 1}), PATIENCE) == 2
        before = client.resume["sid"]
        with valkey_server.client() as redis:
            redis.flushall()
        await until(lambda: client.resume["sid"] != before, what="another session")
        assert (seen[-1]["t"], seen[-1]["result"], seen[-1]["reason"]) == ("welcome", "reset", "unknown")
        assert await asyncio.wait_for(client.request("double", {"n": 2}), PATIENCE) == 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
