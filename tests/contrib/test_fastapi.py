"""FastAPI and Starlette with a real uvicorn: lifespan, dependency, a worker inside, reload."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.support.processes import running
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, until, until_sync
from veredus import App, ConfigError, ConnectionLost
from veredus.contrib.fastapi import get_app, lifespan

Queue = Annotated[App, Depends(get_app)]


@contextlib.asynccontextmanager
async def served(web: Any) -> AsyncIterator[httpx.AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve([listener]))
    try:
        await until(lambda: server.started or task.done())
        assert server.started, "the web application did not start"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client
    finally:
        server.should_exit = True
        await task


async def test_the_app_is_closed_with_the_web_application(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)
    web = FastAPI(lifespan=lifespan(app))

    def connections() -> list[str]:
        with valkey_server.client() as client:
            return [one["name"] for one in client.client_list() if one["name"].startswith("veredus")]

    async with served(web):
        assert connections() == ["veredus"]
    await until(lambda: connections() == [], what="the end of its connections")


async def test_a_request_becomes_a_task_and_its_result_an_answer(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    opened: list[str] = []

    @contextlib.asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[dict[str, str]]:
        opened.append("open")
        yield {"own": "state"}
        opened.append("closed")

    web = FastAPI(lifespan=lifespan(app, worker={"concurrency": 4}, within=own))

    @web.post("/double/{number}")
    async def start(number: int, queue: Queue) -> dict[str, Any]:
        assert queue is app
        handle = await double.enqueue(number)
        return {"id": handle.id, "result": await handle.result(timeout=PATIENCE)}

    @web.websocket("/socket")
    async def talk(socket: WebSocket, queue: Queue) -> None:
        await socket.accept()
        await socket.send_text(type(queue).__name__)
        await socket.close()

    async with served(web) as client:
        answer = (await client.post("/double/21")).json()
        assert answer["result"] == 42
        import websockets

        async with websockets.connect(f"ws://127.0.0.1:{client.base_url.port}/socket") as connection:
            assert await connection.recv() == "App"
    assert opened == ["open", "closed"]


async def test_starlette_alone(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    async def start(request: Request) -> JSONResponse:
        handle = await get_app(request).enqueue("elsewhere", {"a": 1})
        return JSONResponse({"state": handle.state})

    web = Starlette(routes=[Route("/", start)], lifespan=lifespan(app))
    async with served(web) as client:
        assert (await client.get("/")).json() == {"state": "pending"}


async def test_without_redis_it_does_not_start_unless_told_to() -> None:
    app = App(f"redis://127.0.0.1:{free_port()}/0", timeout=0.2)
    web = FastAPI()
    with pytest.raises(ConnectionLost):
        async with lifespan(app)(web):
            pass
    async with lifespan(app, check=False)(web):
        assert web.state.veredus is app
    with pytest.raises(ConfigError, match="True, False, or the settings"):
        lifespan(app, worker="yes")  # type: ignore[arg-type]


WEB = """
from fastapi import FastAPI
from veredus import App
from veredus.contrib.fastapi import lifespan

app = App()

@app.task
async def work() -> str:
    return "{answer}"

web = FastAPI(lifespan=lifespan(app, worker=True))

@web.get("/")
async def index() -> str:
    return await (await work.enqueue()).result(timeout=10)
"""


def test_under_uvicorn_with_reload(valkey_server: RealServer, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "shop.py").write_text(WEB.format(answer="first"))
    command = [sys.executable, "-m", "uvicorn", "shop:web", "--reload", "--port", str(port), "--log-level", "warning"]
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url}
    with running(command, cwd=tmp_path, env=environment) as process:
        _wait_for_answer(port, "first")
        (tmp_path / "shop.py").write_text(WEB.format(answer="second"))
        _wait_for_answer(port, "second")
        process.terminate()
        assert process.wait(PATIENCE) in (0, -15)


def _wait_for_answer(port: int, expected: str) -> None:
    def says() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/", timeout=5).text == f'"{expected}"'
        return False

    until_sync(says, seconds=60, what=f"the answer {expected}")
