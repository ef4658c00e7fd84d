"""What can be changed: every verb in every state, many at once, jobs that tell how far they are and can be stopped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

import veredus.dashboard.forms
from tests.dashboard.conftest import ADDRESS, TOKEN, Api, Making
from tests.gateway.support import JsonClient
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, forever, until
from veredus import App
from veredus.dashboard import asgi
from veredus.dashboard.jobs import BackgroundJob
from veredus.dashboard.task_views import ACTIONS
from veredus.inspector.inspector import Inspector
from veredus.store.inspect.tasks import Tasks


async def is_in(inspector: Inspector, task_id: str, state: str) -> bool:
    return (await inspector.task("mail", task_id)).state == state


async def _in_state(app: App, inspector: Inspector, state: str) -> str:
    """A task in any state but active, brought there by real work."""

    @app.task(name="works", queue="mail", retention=600, max_retry=3, retry_delay=lambda *_: 600.0)
    async def works(fail: bool) -> None:
        if fail:
            raise RuntimeError("boom")

    if state in ("retry", "completed"):
        handle = await works.enqueue(state == "retry")
        async with app.worker("mail", concurrency=1):
            await until(lambda: is_in(inspector, handle.id, state), what=state)
        return handle.id
    delayed, grouped = {"delay": 600}, {"group": "g"}
    options: dict[str, dict[str, Any]] = {"scheduled": delayed, "archived": delayed, "aggregating": grouped}
    handle = await app.enqueue("works", {"fail": False}, queue="mail", **options.get(state, {}))
    if state == "archived":
        await inspector.archive("mail", handle.id)
    return handle.id


GIVEN: dict[str, dict[str, Any]] = {"reschedule": {"delay": 300}, "move": {"target": "other"}, "run": {"front": True}}


@pytest.mark.parametrize(("state", "verb"), [(s, v) for s, verbs in ACTIONS.items() if s != "active" for v in verbs])
async def test_whatever_a_task_says_can_be_done_can_be_done(
    app: App, api: Api, inspector: Inspector, state: str, verb: str
) -> None:
    task_id = await _in_state(app, inspector, state)
    assert verb in (await api.get("task", queue="mail", id=task_id))["actions"]
    if verb == "edit":
        await api.post("task/edit", queue="mail", id=task_id, payload='{"fail": true}')
        assert (await inspector.task("mail", task_id)).payload == b'{"fail": true}'
        return
    given = {} if verb == "run" and state != "pending" else GIVEN.get(verb, {})
    told = await api.post(f"tasks/{verb}", queue="mail", ids=[task_id], **given)
    assert told["done"] == [task_id]
    if verb == "delete":
        assert (await api.get("task", 404, queue="mail", id=task_id))["error"] == "task_not_found"
        return
    task = await inspector.task("other" if verb == "move" else "mail", task_id)
    expected = {
        "run": "pending",
        "requeue": "pending",
        "archive": "archived",
        "cancel": "archived",
        "reschedule": "retry" if state == "retry" else "scheduled",
        "move": state,
    }
    assert task.state == expected[verb]


async def test_cancel_and_requeue_a_running_task(app: App, api: Api, inspector: Inspector) -> None:
    begun: asyncio.Queue[int] = asyncio.Queue()

    @app.task(name="long", queue="mail", max_retry=3, retry_delay=lambda *_: 0.01)
    async def long(n: int) -> None:
        begun.put_nowait(n)
        await forever()

    one, two = await long.enqueue(1), await long.enqueue(2)
    async with app.worker("mail", concurrency=2), asyncio.timeout(2 * PATIENCE):
        assert {await begun.get(), await begun.get()} == {1, 2}
        refused = await api.post("tasks/delete", 409, queue="mail", ids=[one.id])
        assert refused["error"] == "wrong_state"
        assert "running" in refused["message"]
        told = await api.post("tasks/requeue", queue="mail", ids=[one.id])
        assert told["outcomes"] == {one.id: "cancelling"}
        assert await begun.get() == 1  # it was begun again
        told = await api.post("tasks/cancel", queue="mail", ids=[two.id], then="delete")
        assert told["outcomes"] == {two.id: "cancelling"}

        async def is_gone() -> bool:
            answer = await api.client.get("/api/task", params={"queue": "mail", "id": two.id})
            return answer.status_code == 404

        await until(is_gone)
        await api.post("tasks/cancel", queue="mail", ids=[one.id])
        await until(lambda: is_in(inspector, one.id, "archived"))


async def test_many_at_once_each_with_its_own_result(app: App, api: Api, inspector: Inspector) -> None:
    handles = await app.enqueue_many(app.call("t", {"n": n}, queue="mail", delay=600) for n in range(45))
    ids = [handle.id for handle in handles]
    told = await api.post("tasks/archive", queue="mail", ids=[*ids, "nope", ids[0]])
    assert told["done"] == ids
    assert [one["id"] for one in told["failed"]] == ["nope"]
    assert told["failed"][0]["error"] == "task_not_found"
    assert (await inspector.queue("mail")).archived == 45


async def test_due_times_are_exact(app: App, api: Api, inspector: Inspector) -> None:
    handle = await app.enqueue("t", queue="mail", delay=600)
    at = datetime.now(UTC) + timedelta(hours=5)
    await api.post("tasks/reschedule", queue="mail", ids=[handle.id], at=at.isoformat())
    due = (await inspector.task("mail", handle.id)).next_process_at
    assert due is not None
    assert abs((due - at).total_seconds()) < 0.002


async def test_queues_are_paused_closed_and_deleted(app: App, api: Api, inspector: Inspector) -> None:
    await app.enqueue_many(app.call("t", {"n": n}, queue="mail") for n in range(600))
    assert await api.post("queue/pause", queue="mail") == {"changed": True}
    assert await api.post("queue/pause", queue="mail") == {"changed": False}
    assert (await api.get("queue", queue="mail"))["paused"] is True
    assert await api.post("queue/resume", queue="mail") == {"changed": True}
    assert await api.post("queue/close", queue="mail") == {"changed": True}
    assert (await api.get("queue", queue="mail"))["closed"] is True
    assert await api.post("queue/open", queue="mail") == {"changed": True}
    refused = await api.ended((await api.post("queue/delete", queue="mail"))["id"])
    assert (refused["status"], refused["error"]["error"]) == ("failed", "queue_not_empty")
    assert (await inspector.queue("mail")).pending == 600
    done = await api.ended((await api.post("queue/delete", queue="mail", force=True))["id"])
    assert done["status"] == "done", done
    assert await inspector.queues() == []


async def test_a_job_tells_how_far_it_is_and_stops_when_told(
    app: App, api: Api, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.enqueue_many(app.call("t", {"n": n}, queue="mail", delay=600) for n in range(5_000))
    portions, told = 0, asyncio.Event()
    delete_all = Tasks.delete_all

    async def in_portions(self: Tasks, *args: Any) -> Any:
        nonlocal portions
        portions += 1
        if portions > 1:
            await told.wait()  # the stop comes between two portions
        return await delete_all(self, *args)

    monkeypatch.setattr(Tasks, "delete_all", in_portions)
    job = await api.post("jobs/start", verb="delete", queue="mail", state="scheduled")
    assert job["status"] == "running"

    async def begun() -> Any:
        seen = await api.get("job", id=job["id"])
        return seen if seen["done"] else None

    assert (await until(begun))["total"] == 5_000
    assert (await api.post("jobs/stop", id=job["id"]))["status"] == "stopping"
    told.set()
    ended = await api.ended(job["id"])
    assert ended["status"] == "stopped"
    left = (await inspector.queue("mail")).scheduled
    assert 0 < ended["result"]["done"] < 5_000
    assert left == 5_000 - ended["result"]["done"]
    assert [one["id"] for one in (await api.get("jobs"))["jobs"]] == [job["id"]]


async def test_jobs_run_archive_delete_and_cancel_what_fits(app: App, api: Api, inspector: Inspector) -> None:
    await app.enqueue_many(
        app.call("email:send" if n % 3 else "sms:send", {"n": n}, queue="mail", delay=600) for n in range(900)
    )
    counted = await api.ended((await api.post("jobs/count", queue="mail", state="scheduled", type="sms:*"))["id"])
    assert counted["result"] == {"count": 300, "scanned": 900, "stopped": False}
    ran = await api.ended(
        (await api.post("jobs/start", verb="run", queue="mail", state="scheduled", type="sms:*"))["id"]
    )
    assert ran["result"]["done"] == 300
    archived = await api.ended((await api.post("jobs/start", verb="archive", queue="mail", state="pending"))["id"])
    assert archived["result"]["done"] == 300
    gone = await api.ended(
        (await api.post("jobs/start", verb="delete", queue="mail", state="scheduled", payload='"n":1}'))["id"]
    )
    assert gone["result"]["done"] == 1
    info = await inspector.queue("mail")
    assert (info.pending, info.archived, info.scheduled) == (0, 300, 599)
    cancelled = await api.ended((await api.post("jobs/start", verb="cancel", queue="mail"))["id"])
    assert cancelled["result"]["done"] == 0


async def test_a_full_archive_is_a_question_not_a_loss(valkey_server: RealServer) -> None:
    import httpx

    from veredus.dashboard import asgi

    async with App(valkey_server.url, archive_size=10) as app:
        await app.enqueue_many(app.call("t", {"n": n}, queue="mail", delay=600) for n in range(25))
        dashboard = asgi(app, token="a-token-for-the-tests")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url="http://dash.test") as client:
            client.headers["authorization"] = "Bearer a-token-for-the-tests"
            api = Api(client)
            job = await api.ended((await api.post("jobs/start", verb="archive", queue="mail", state="scheduled"))["id"])
            assert job["status"] == "failed"
            assert (job["error"]["error"], job["error"]["tasks"]) == ("archive_full", 25)
            assert (await app.inspector().queue("mail")).scheduled == 25
            job = await api.post("jobs/start", verb="archive", queue="mail", state="scheduled", drop_excess=True)
            assert (await api.ended(job["id"]))["status"] == "done"
        await dashboard.close()


async def test_the_doctor_repairs(app: App, api: Api, inspector: Inspector, valkey_server: RealServer) -> None:
    handles = await app.enqueue_many(app.call("t", {"n": n}, queue="mail") for n in range(4))
    client = valkey_server.client()
    client.lrem("asynq:{mail}:pending", 0, handles[0].id)
    client.lrem("asynq:{mail}:pending", 0, handles[1].id)
    found = await api.ended((await api.post("doctor/diagnose"))["id"])
    assert found["result"]["total"] == 2
    assert {row["kind"] for row in found["result"]["findings"]} == {"orphan"}
    assert await api.post("doctor/repair", job=found["id"], number=0) == {"repaired": True}
    assert await api.post("doctor/repair", job=found["id"], number=0) == {"repaired": False}
    assert "number" in (await api.post("doctor/repair", 400, job=found["id"], number=7))["message"]
    repaired = await api.ended((await api.post("doctor/repair", queue="mail"))["id"])
    assert repaired["result"] == {"repaired": 1}
    assert (await inspector.queue("mail")).pending == 4


async def test_lanes_are_released_and_limits_removed(app: App, api: Api, inspector: Inspector) -> None:
    from veredus import SkipRetry
    from veredus.model.limits import Limit

    @app.task(name="book", queue="mail", order_hold=True)
    async def book(n: int) -> None:
        raise SkipRetry("no")

    app.limit("mail", Limit(concurrency=2))
    first = await book.using(order_key="k").enqueue(1)
    await book.using(order_key="k").enqueue(2)

    async def held_lanes() -> Any:
        return (await api.get("order-keys", queue="mail", held="true"))["order_keys"]

    async with app.worker("mail", concurrency=1):
        held = await until(held_lanes)
    assert held[0]["order_key"] == "k"
    assert (await api.post("order-key/release", 409, queue="mail", order_key="kk"))["error"] == "order_key_not_held"
    assert await api.post("order-key/release", queue="mail", order_key="k") == {"task_id": first.id}
    assert (await api.post("limit/remove", 400, queue="mail", scope="queu"))["field"] == "limit"
    assert await api.post("limit/remove", queue="mail", scope="queue") == {"changed": True}
    assert await inspector.limits("mail") == []


async def test_clients_are_disconnected_and_their_tokens_revoked(app: App, api: Api) -> None:
    async with app.gateway(ws="127.0.0.1:0", quic="off", http="off") as gateway:
        one, two, three = [await JsonClient.open(gateway, "ada") for _ in range(3)]
        other = await JsonClient.open(gateway, "bob")
        assert await api.post("session/close", id=one.sid, reason="spam") == {"changed": True}
        closed = await one.frame("close")
        assert (closed["code"], closed["reason"]) == (4504, "spam")
        assert await api.post("session/close", id=one.sid) == {"changed": False}
        assert await api.post("user/revoke", user="ada", before="2020-01-01T00:00:00Z") == {"ended": 0}
        assert await api.post("user/revoke", user="ada") == {"ended": 2}
        for client in (two, three):
            assert await client.close_code() == 4501
        assert await api.post("user/disconnect", user="bob") == {"ended": 1}
        assert await other.close_code() == 4504


@pytest.mark.parametrize(
    ("name", "body", "status", "field"),
    [
        ("tasks/run", {"queue": "mail"}, 400, "ids"),
        ("tasks/run", {"queue": "mail", "ids": []}, 400, "ids"),
        ("tasks/run", {"queue": "mail", "ids": [1]}, 400, "ids"),
        ("tasks/run", {"queue": "mail", "ids": ["a"] * 1001}, 400, "ids"),
        ("tasks/run", {"ids": ["a"]}, 400, "queue"),
        ("tasks/run", {"queue": "mail", "ids": ["a"], "front": "maybe"}, 400, "front"),
        ("tasks/cancel", {"queue": "mail", "ids": ["a"], "then": "explode"}, 400, "then"),
        ("tasks/reschedule", {"queue": "mail", "ids": ["a"]}, 400, "at"),
        ("tasks/reschedule", {"queue": "mail", "ids": ["a"], "at": "tomorrow"}, 400, "at"),
        ("tasks/reschedule", {"queue": "mail", "ids": ["a"], "at": "2026-11-16T09:30:00"}, 400, "at"),
        ("tasks/reschedule", {"queue": "mail", "ids": ["a"], "delay": -1}, 400, "delay"),
        ("tasks/move", {"queue": "mail", "ids": ["a"]}, 400, "target"),
        ("task/edit", {"queue": "mail", "id": "a", "payload": 7}, 400, "payload"),
        ("task/edit", {"queue": "mail", "id": "a", "payload64": "%%"}, 400, "payload64"),
        ("jobs/start", {"queue": "mail", "verb": "explode", "state": "retry"}, 400, "verb"),
        ("jobs/start", {"queue": "mail", "verb": "run", "state": "retyr"}, 400, "state"),
        ("jobs/start", {"queue": "mail", "verb": "cancel", "state": "retry"}, 400, "state"),
        ("jobs/stop", {"id": "nope"}, 404, None),
        ("session/close", {"id": "nope"}, 400, "session"),
        ("user/disconnect", {"reason": "x"}, 400, "user"),
        ("user/disconnect", {"user": "ada", "reason": "x" * 101}, 400, "reason"),
        ("user/revoke", {"user": "ada", "before": "tomorrow"}, 400, "before"),
        ("queue/pause", {"queue": "mail", "forec": True}, 400, "field"),
        ("queue/pause", {"queue": "mial"}, 404, None),
        ("queue/close", {"queue": "mial"}, 404, None),
        ("tasks/run", {"queue": "mail", "ids": ["nope"]}, 404, None),
        ("jobs/start", {"queue": "mial", "verb": "run", "state": "retry"}, 404, None),
    ],
)
async def test_refusals_name_the_field(
    app: App, api: Api, name: str, body: dict[str, Any], status: int, field: str | None
) -> None:
    await app.enqueue("t", queue="mail")
    told = await api.post(name, status, **body)
    assert told.get("field") == field


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff"])
async def test_a_body_that_is_no_object_is_refused(api: Api, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = await api.client.post("/api/queue/pause", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["field"] in ("body", "queue")


async def test_a_body_that_is_nested_too_deep_is_refused(api: Api) -> None:
    deep = b'{"queue":"mail","id":' + b"[" * 500 + b"]" * 500 + b"}"
    answer = await api.client.post("/api/queue/pause", content=deep, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (400, "body")
    assert "at most 500 levels" in answer.text


async def test_a_body_that_is_too_long_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(veredus.dashboard.forms, "MAX_BODY", 1000)
    told = await api.post("queue/pause", 400, queue="m" * 1000)
    assert (told["field"], told["message"]) == ("body", "body: got 'too long', expected at most 1,000 bytes")


async def test_a_server_that_is_lost_is_an_error_of_the_call_not_of_each_task(new_server: Any) -> None:
    server = new_server()
    async with App(server.url) as app:
        ids = [(await app.enqueue("t", queue="mail", delay=600)).id for _ in range(2)]
    dashboard = asgi(server.url, token=TOKEN)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url=ADDRESS) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        server.kill()
        told = await Api(client).post("tasks/run", 503, queue="mail", ids=ids)
    assert told["error"] == "redis_unreachable"
    await dashboard.close()


async def test_a_dashboard_that_closes_lets_its_jobs_end_by_themselves(made: Making) -> None:
    dashboard, _ = await made()

    async def works(job: BackgroundJob) -> dict[str, Any]:
        await job.stop.wait()
        return {"stopped": True}

    job = dashboard.backend.opened.jobs.start(BackgroundJob(verb="run", title="run"), works)
    await dashboard.close()
    assert (job.status, job.error) == ("stopped", None)


async def test_the_tasks_of_a_group_of_errors_are_counted_run_and_deleted_in_every_queue(app: App, api: Api) -> None:
    @app.task(name="pay", max_retry=0)
    async def pay(n: int) -> None:
        raise KeyError(n) if n % 2 else ValueError(n)

    for queue in ("mail", "other"):
        await app.enqueue_many(pay.using(queue=queue).call(n) for n in range(4))
    async with app.worker(["mail", "other"], burst=True) as worker:
        await worker.wait()
    found = {one["error_class"]: one for one in (await api.get("errors"))["errors"]}
    assert {name: (one["count"], one["queues"]) for name, one in found.items()} == dict.fromkeys(
        ("KeyError", "ValueError"), (4, ["mail", "other"])
    )
    keys, values = found["KeyError"]["id"], found["ValueError"]["id"]
    counted = await api.ended((await api.post("errors/count", group=keys))["id"])
    assert counted["result"] == {"count": 4, "scanned": 8, "stopped": False}
    shown = await api.get("tasks", queue="mail", state="archived", error_group=keys)
    assert len(shown["tasks"]) == 2
    ran = await api.ended((await api.post("errors/run", group=keys))["id"])
    assert ran["result"]["done"] == 4
    deleted = await api.ended((await api.post("errors/delete", group=values))["id"])
    assert deleted["result"]["done"] == 4
    for queue in ("mail", "other"):
        info = await app.inspector().queue(queue)
        assert (info.pending, info.archived) == (2, 0)
    refused = await api.post("errors/run", 400, group="nothing")
    assert "nothing" in refused["message"]


async def test_a_job_that_breaks_says_so_and_keeps_the_details_to_the_log(
    app: App, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await app.enqueue("t", queue="mail", delay=600)

    async def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(Tasks, "delete_all", breaks)
    ended = await api.ended((await api.post("jobs/start", verb="delete", queue="mail", state="scheduled"))["id"])
    assert ended["status"] == "failed"
    assert "secret" not in ended["error"]["message"]
    assert "a secret detail" in caplog.text


async def test_only_so_many_jobs_run_at_once(app: App, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.enqueue("t", queue="mail", delay=600)
    gate = asyncio.Event()

    async def waits(*_: Any, **__: Any) -> Any:
        await gate.wait()
        return 0, 0, 0

    monkeypatch.setattr(Tasks, "delete_all", waits)
    jobs = [await api.post("jobs/start", verb="delete", queue="mail", state="scheduled") for _ in range(8)]
    refused = await api.post("jobs/start", 429, verb="delete", queue="mail", state="scheduled")
    assert refused["error"] == "too_many_jobs"
    gate.set()
    for job in jobs:
        assert (await api.ended(job["id"]))["status"] == "done"
    for _ in range(40):  # ended ones are forgotten in time
        await api.ended((await api.post("jobs/start", verb="delete", queue="mail", state="scheduled"))["id"])
    assert len((await api.get("jobs"))["jobs"]) <= 31
