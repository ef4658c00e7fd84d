"""The same dashboard over Valkey, Redis 6.2 and a cluster: every address answers, and what it changes is changed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import TOKEN, Api
from tests.support.clusters import Nodes
from veredus import App
from veredus.dashboard import asgi
from veredus.dashboard.dashboard import READINGS


async def _everything(url: str) -> None:
    async with App(url) as app:
        handle = await app.enqueue("t", {"n": 1}, queue="mail", delay=600)
        await app.enqueue("t", {"n": 2}, queue="other", group="g")
        dashboard = asgi(app, token=TOKEN)
        headers = {"authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://dash.test", headers=headers) as client:
            api = Api(client)
            known = {"queue": "mail", "id": handle.id, "state": "scheduled"}
            for name, reading in READINGS.items():
                if name not in ("schedule", "session", "job", "children"):
                    given: dict[str, Any] = {field: known[field] for field in reading.parameters if field in known}
                    assert await api.get(name, **given)
            assert [queue["queue"] for queue in (await api.get("overview"))["queues"]] == ["mail", "other"]
            await api.post("tasks/move", queue="mail", ids=[handle.id], target="elsewhere")
            assert (await api.get("find", id=handle.id))["queues"] == ["elsewhere"]
            job = await api.post("jobs/start", verb="delete", queue="elsewhere", state="scheduled")
            assert (await api.ended(job["id"]))["result"]["done"] == 1
            found = await api.ended((await api.post("doctor/diagnose"))["id"])
            assert found["result"] == {"findings": [], "total": 0}
        await dashboard.close()


async def test_on_one_server(url: str) -> None:
    await _everything(url)


@pytest.mark.timeout(120)
async def test_on_a_cluster(nodes: Nodes) -> None:
    await _everything(nodes.url)
