"""A dashboard over an empty server, asked in this process or through a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.dashboard import Dashboard, asgi
from veredus.dashboard.server import DashboardServer
from veredus.inspector.inspector import Inspector

TOKEN = "a-token-for-the-tests"
ADDRESS = "http://dash.test"


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    async with App(valkey_server.url, max_payload=4_000_000) as app:
        yield app


@pytest.fixture
async def inspector(app: App) -> Inspector:
    return app.inspector()


class Api:
    """`await api.get("queue", queue="mail")`, as a program with the token does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, name: str, status: int = 200, **query: Any) -> Any:
        answer = await self.client.get(f"/api/{name}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, name: str, status: int = 200, **body: Any) -> Any:
        content, headers = json.dumps(body), {"content-type": "application/json"}
        answer = await self.client.post(f"/api/{name}", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def ended(self, job_id: str, seconds: float = PATIENCE) -> Any:
        """A job, once it is over."""

        async def is_over() -> Any:
            job = await self.get("job", id=job_id)
            return job if job["status"] not in ("running", "stopping") else None

        return await until(is_over, seconds=seconds, what="the end of the job")


Making = Callable[..., Awaitable[tuple[Dashboard, httpx.AsyncClient]]]


@pytest.fixture
async def made(app: App) -> AsyncIterator[Making]:
    """Makes dashboards with settings of the test's own, and a client without a token for each."""
    dashboards: list[Dashboard] = []
    clients: list[httpx.AsyncClient] = []

    async def make(**settings: Any) -> tuple[Dashboard, httpx.AsyncClient]:
        dashboard = asgi(app, **{"token": TOKEN, "refresh": 0.05, **settings})
        client = httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url=ADDRESS)
        dashboards.append(dashboard)
        clients.append(client)
        return dashboard, client

    yield make
    for client in clients:
        await client.aclose()
    for dashboard in dashboards:
        await dashboard.close()


@pytest.fixture
async def api(made: Making) -> Api:
    _, client = await made()
    client.headers["authorization"] = f"Bearer {TOKEN}"
    return Api(client)


@pytest.fixture
async def served(app: App) -> AsyncIterator[str]:
    """The address of a dashboard on a real socket: what streams cannot be asked in this process."""
    serving = DashboardServer(asgi(app, token=TOKEN, refresh=0.05), "127.0.0.1", 0)
    running = asyncio.create_task(serving.serve())
    yield serving.address
    serving.stop()
    await asyncio.wait_for(running, PATIENCE)
