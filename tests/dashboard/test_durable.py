"""Durable tasks in the JSON API: their timeline, their children, what they wait for, and how they begin again."""

from __future__ import annotations

from typing import Any

import httpx

from tests.dashboard.conftest import TOKEN, Api
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.dashboard.dashboard import asgi

pytestmark = VALKEY_ONLY


async def test_a_run_is_looked_at_and_begins_again(url: str) -> None:
    app = App(url)

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task(task_id="order")
    async def order() -> None:
        await current().gather("parts", [child.call(n) for n in range(3)])
        await current().wait_for("approved:7")

    dashboard = asgi(app, token=TOKEN)
    transport, headers = httpx.ASGITransport(dashboard), {"authorization": f"Bearer {TOKEN}"}
    async with (
        app,
        app.worker(),
        httpx.AsyncClient(transport=transport, base_url="http://dash.test", headers=headers) as client,
    ):
        api = Api(client)
        known: dict[str, Any] = {"queue": "default", "id": "order"}
        await order.enqueue()

        async def waits() -> bool:
            return bool((await api.get("task", **known)).get("waiting_for") == "event approved:7")

        await until(waits)
        task = await api.get("task", **known)
        assert [(one["kind"], one["name"], one["outcome"]) for one in task["run"]["steps"]] == [
            ("children", "parts", "done"),
            ("event", "approved:7", "waiting"),
        ]
        assert task["run"]["steps"][0]["size"] == 3
        page = await api.get("children", **known, gather="parts", page=2, size=2)
        assert [(one["outcome"], one["detail"]) for one in page["children"]] == [("done", "2")]
        (group,) = (await api.get("waiting"))["waiting"]
        assert (group["reason"], group["count"], group["task_id"]) == ("event approved:*", 1, "order")
        found = await api.get("tasks", queue="default", state="scheduled", waiting="event approved:*")
        assert [one["id"] for one in found["tasks"]] == ["order"]
        assert (await api.post("tasks/move", 409, queue="default", ids=["order"], target="other"))["error"]
        mark = task["run"]["mark"]
        assert (await api.post("tasks/run", queue="default", ids=["order"], from_start=True))["done"] == ["order"]

        async def is_new() -> bool:
            run = (await api.get("task", **known))["run"]
            return run is not None and bool(run["mark"] != mark)

        await until(is_new)
        await until(waits)
        await api.post("tasks/cancel", queue="default", ids=["order"], then="delete", children="keep")
    await dashboard.close()
