"""What is started and stopped by hand: tasks that are enqueued, schedules, worker processes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.dashboard.conftest import ADDRESS, TOKEN, Api
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.dashboard import asgi
from veredus.inspector.inspector import Inspector


async def test_a_task_is_enqueued_with_the_options_of_its_declaration(app: App, api: Api, inspector: Inspector) -> None:
    @app.task(name="mail:send", queue="mail", max_retry=7)
    async def send(n: int) -> None: ...

    sent = await api.post("enqueue", type="mail:send", payload='{"n": 1}')
    assert (sent["queue"], sent["created"]) == ("mail", True)
    task = await inspector.task("mail", sent["id"])
    assert (task.payload, task.max_retry, task.state) == (b'{"n": 1}', 7, "pending")
    given: dict[str, Any] = {
        "queue": "other",
        "delay": 600,
        "max_retry": 2,
        "timeout": 30,
        "retention": 60,
        "task_id": "by-hand",
    }
    assert (await api.post("enqueue", type="unknown", **given))["id"] == "by-hand"
    task = await inspector.task("other", "by-hand")
    assert (task.state, task.max_retry, task.timeout, task.retention) == ("scheduled", 2, 30, 60)
    assert (await api.post("enqueue", 409, type="unknown", **given))["error"] == "task_id_conflict"
    assert (await api.post("enqueue", 400, type="t", max_retry=-1))["field"] == "max_retry"
    assert (await api.post("enqueue", 400, type="t", delay=1, at="2030-01-01T00:00:00Z"))["error"] == "bad_request"
    assert (await api.post("enqueue", 400, type=" "))["field"] == "type"


async def test_a_schedule_is_shown_in_words_paused_and_run(
    app: App, api: Api, inspector: Inspector, valkey_server: RealServer
) -> None:
    @app.cron("30 3 * * 1-5", name="report", queue="reports", max_retry=3)
    async def report() -> None: ...

    app.schedule("@every 1h", app.call("plain", {"n": 1}, queue="plain"))
    app.schedule("@every 2h", app.call("odd", {"n": 1}, queue="plain", order_key="a"))
    async with app.scheduler():

        async def listed() -> Any:
            found = (await api.get("schedules"))["schedules"]
            return found if len(found) == 3 else None

        rows = {row["task_type"]: row for row in await until(listed, what="three schedules")}
        row = rows["report"]
        assert (row["words"], row["queue"], row["paused"]) == ("at 03:30 on Monday to Friday", "reports", False)
        assert len(row["upcoming"]) == 5
        assert row["upcoming"][0] == row["next"]
        assert all("T03:30:00" in at for at in row["upcoming"])
        assert await api.post("schedule/pause", id=row["id"]) == {"changed": True}
        assert [one["paused"] for one in (await api.get("schedules"))["schedules"] if one["id"] == row["id"]] == [True]
        sent = await api.post("schedule/run", id=row["id"])  # also while it is paused
        assert (await inspector.task("reports", sent["id"])).max_retry == 3
        assert await api.post("schedule/resume", id=row["id"]) == {"changed": True}
        missing = await api.post("schedule/run", 404, id="nothing")
        assert missing["error"] == "schedule_not_found"
        # A dashboard without the app reads the options back, or says why it cannot.
        dashboard = asgi(valkey_server.url, token=TOKEN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url=ADDRESS) as client:
            client.headers["authorization"] = f"Bearer {TOKEN}"
            other = Api(client)
            sent = await other.post("schedule/run", id=rows["plain"]["id"])
            assert (await inspector.task("plain", sent["id"])).payload == b'{"n":1}'
            refused = await other.post("schedule/run", 400, id=rows["odd"]["id"])
            assert "OrderKey" in refused["message"]
        await dashboard.close()


async def test_a_worker_takes_no_more_tasks_and_stops(app: App, api: Api) -> None:
    begun = asyncio.Event()

    @app.task(name="hold")
    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    await hold.using(task_id="held").enqueue()
    async with app.worker(lease=1.5, shutdown_timeout=0.1) as worker:
        await begun.wait()

        async def shown() -> Any:
            found = (await api.get("servers"))["servers"]
            return found[0] if found and found[0]["active_workers"] else None

        server = await until(shown, what="the worker and its task")
        assert server["version"]
        assert "held" in {one["task_id"] for one in server["active_workers"]}
        lease = (await api.get("task", queue="default", id="held"))["lease"]
        assert server["id"].startswith(lease["owner"].split(":")[0])
        assert (await api.post("worker/quiet", worker=server["id"]))["worker"]["asked"] == "quiet"

        async def is_quiet() -> bool:
            return bool((await api.get("servers"))["servers"][0]["status"] == "stopped")

        await until(is_quiet, what="the worker to take no more tasks")
        assert (await api.post("worker/stop", 404, worker="nobody"))["error"] == "server_not_found"
        assert (await api.post("worker/stop", worker=server["id"]))["worker"]["asked"] == "stop"
        await worker.wait()
