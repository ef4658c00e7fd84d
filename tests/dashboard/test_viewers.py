"""Viewers see no payloads and change nothing, by every address; names of hosts; wrong tokens."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Literal

import httpx
import pydantic
import pytest
from starlette.requests import Request

from tests.dashboard.conftest import ADDRESS, TOKEN, Making
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, current
from veredus.dashboard import DashboardConfig, asgi
from veredus.dashboard.auth import CSRF_HEADER
from veredus.dashboard.dashboard import CHANGES, READINGS
from veredus.dashboard.server import DashboardServer

VIEWER = "a-token-for-viewers"
SECRET = "hunter2-in-a-payload"
OWN = {"origin": ADDRESS}


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _has_secret(text: str) -> bool:
    encoded = [base64.b64encode(b" " * n + SECRET.encode()).decode()[4:-4] for n in range(3)]
    return any(part in text for part in (SECRET, *encoded))


async def _filled(app: App) -> Any:
    """A secret in every place where payloads and results are; returns the worker that runs one of the tasks."""

    @app.task(name="hold")
    async def hold(secret: str) -> None:
        await asyncio.Event().wait()

    @app.task(name="answer", retention=3600)
    async def answer(secret: str) -> str:
        return secret

    @app.task(name="durable", retention=3600)
    async def durable(secret: str) -> None:
        await current().step(_kept, secret, name="keep")
        await current().gather("children", [answer.call(secret)])
        await current().wait_for("never")

    app.schedule("@every 1h", answer.call(SECRET))
    await hold.using(task_id="held").enqueue(SECRET)
    await answer.using(task_id="answered").enqueue(SECRET)
    await durable.using(task_id="run").enqueue(SECRET)
    await app.enqueue("later", {"secret": SECRET}, delay=600, task_id="later")
    return app.worker(lease=1.5, shutdown_timeout=0.1)


async def _kept(secret: str) -> str:
    return secret


class Card(pydantic.BaseModel):
    number: int


QUERIES: dict[str, list[dict[str, str]]] = {
    "queue": [{"queue": "default"}],
    "tasks": [{"queue": "default", "state": state} for state in ("active", "scheduled", "completed")]
    + [{"queue": "default", "state": "scheduled", "type": "l*"}],
    "task": [{"queue": "default", "id": name} for name in ("held", "answered", "run", "later")],
    "children": [{"queue": "default", "id": "run", "gather": "children"}],
    "find": [{"id": "held"}],
    "schedule": [{"id": "x"}],
    **{name: [{"queue": "default"}] for name in ("groups", "order-keys", "limits")},
    **{name: [{"id": "x"}] for name in ("session", "job")},
}
"""What addresses need; all others are asked without anything."""


async def test_a_viewer_sees_no_payload_by_any_address(app: App, made: Making) -> None:
    worker = await _filled(app)
    async with worker:
        dashboard, client = await made(viewer_token=VIEWER)

        async def texts(token: str) -> dict[str, str]:
            found = {}
            for name in [*READINGS, "me"]:
                for query in QUERIES.get(name, [{}]):
                    answer = await client.get(f"/api/{name}", params=query, headers=_bearer(token))
                    found[f"{name} {query}"] = answer.text
            return found

        async def all_there() -> bool:
            seen = await texts(TOKEN)
            shown = {name.split()[0] for name, text in seen.items() if _has_secret(text)}
            run = json.loads(seen[f"task {QUERIES['task'][2]}"]).get("run")
            places = {"tasks", "task", "children", "servers", "schedules"}
            return shown == places and bool(run) and len(run["steps"]) == 3

        await until(all_there, what="the secret in every place")
        viewed = await texts(VIEWER)
        assert [name for name, text in viewed.items() if _has_secret(text)] == []
        task = json.loads(viewed[f"task {QUERIES['task'][1]}"])
        assert task["payload"]["utf8"] == task["result"]["utf8"] == "(hidden)"
        assert task["type"] == "answer", "all else is there"
        refused = await client.get(
            "/api/tasks",
            params={"queue": "default", "state": "scheduled", "payload": "hunter2"},
            headers=_bearer(VIEWER),
        )
        assert (refused.status_code, refused.json()["field"]) == (400, "payload")
        await dashboard.close()


async def test_a_viewer_sees_no_value_that_an_error_quotes(app: App, made: Making, valkey_server: RealServer) -> None:
    """Of a payload that does not fit its handler: msgspec and pydantic say which value it was."""

    @app.task(name="strict", max_retry=0)
    async def strict(secret: Literal["a", "b"]) -> None: ...

    @app.task(name="model", max_retry=0)
    async def model(card: Card) -> None: ...

    async with App(valkey_server.url) as stranger:
        await stranger.enqueue("strict", {"secret": SECRET}, task_id="strict", max_retry=0)
        await stranger.enqueue("model", {"card": {"number": SECRET}}, task_id="model", max_retry=0)
    async with app.worker(burst=True) as worker:
        await worker.wait()
    dashboard, client = await made(viewer_token=VIEWER)
    for name in ("strict", "model"):
        for place, query in (("task", {"id": name}), ("tasks", {"state": "archived"}), ("errors", {"type": name})):
            query = {"queue": "default"} | query
            full = await client.get(f"/api/{place}", params=query, headers=_bearer(TOKEN))
            assert _has_secret(full.text), (name, place)
            viewed = await client.get(f"/api/{place}", params=query, headers=_bearer(VIEWER))
            assert not _has_secret(viewed.text), (name, place)
            assert "does not fit: (hidden)" in viewed.text
            assert "Traceback" not in viewed.text
    for part, ours, theirs in ((SECRET, 2, 0), ("DOES not fit", 2, 2)):
        query = {"queue": "default", "state": "archived", "error": part}
        for token, count in ((TOKEN, ours), (VIEWER, theirs)):
            found = await client.get("/api/tasks", params=query, headers=_bearer(token))
            assert len(found.json()["tasks"]) == count, (part, token)
    await dashboard.close()


async def test_a_viewers_live_stream_has_no_payloads_though_others_watch_the_same(app: App) -> None:
    await app.enqueue("later", {"secret": SECRET}, delay=600)
    serving = DashboardServer(asgi(app, token=TOKEN, viewer_token=VIEWER, refresh=0.05), "127.0.0.1", 0)
    running = asyncio.create_task(serving.serve())
    address = f"{serving.address}api/live?of=tasks%3Fqueue%3Ddefault%26state%3Dscheduled"

    async def first(client: httpx.AsyncClient, token: str) -> str:
        async with client.stream("GET", address, headers=_bearer(token)) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    seen.append(line)
                    if token == TOKEN:
                        await asyncio.wait_for(viewed.wait(), PATIENCE)
                    return line
        raise AssertionError("the stream ended")

    seen: list[str] = []
    viewed = asyncio.Event()
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        full = asyncio.create_task(first(client, TOKEN))
        await until(lambda: bool(seen), what="the first message of the other stream")
        assert not _has_secret(await first(client, VIEWER))
        viewed.set()
        assert _has_secret(await full)
    serving.stop()
    await asyncio.wait_for(running, PATIENCE)


async def test_a_viewer_changes_nothing_by_any_address(app: App, made: Making, valkey_server: RealServer) -> None:
    await app.enqueue("later", {"secret": SECRET}, delay=600, task_id="later")
    _, client = await made(viewer_token=VIEWER)
    csrf = (await client.post("/api/login", json={"token": VIEWER}, headers=OWN)).json()["csrf"]
    before = valkey_server.client().dump("asynq:{default}:t:later")
    for headers in ({**OWN, CSRF_HEADER: csrf}, _bearer(VIEWER)):
        for name in CHANGES:
            body = {"queue": "default", "ids": ["later"], "id": "later", "type": "t", "worker": "x", "group": "x"}
            answer = await client.post(f"/api/{name}", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (403, "viewer"), name
    assert valkey_server.client().dump("asynq:{default}:t:later") == before
    me = (await client.get("/api/me")).json()
    assert (me["viewer"], me["read_only"]) == (True, True)
    assert (await client.get("/api/overview")).status_code == 200
    left = await client.post("/api/logout", json={}, headers={**OWN, CSRF_HEADER: csrf})
    assert left.status_code == 200


async def test_a_viewers_cookie_ends_with_its_token(made: Making) -> None:
    _, client = await made(viewer_token=VIEWER)
    await client.post("/api/login", json={"token": VIEWER}, headers=OWN)
    for settings, status in (({"viewer_token": VIEWER}, 200), ({"viewer_token": VIEWER + "2"}, 401), ({}, 401)):
        _, other = await made(**settings)
        other.cookies = client.cookies
        assert (await other.get("/api/overview")).status_code == status


async def test_the_mounting_app_decides_who_sees_and_who_changes(app: App, made: Making) -> None:
    await app.enqueue("later", {"secret": SECRET}, delay=600, task_id="later")

    async def access(request: Request) -> str | None:
        return {"boss": "full", "guest": "view", "odd": "everything"}.get(request.headers.get("x-user", ""))

    _, client = await made(access=access)
    task = {"queue": "default", "id": "later"}
    for user, status, secret in (("boss", 200, True), ("guest", 200, False), ("nobody", 401, False)):
        answer = await client.get("/api/task", params=task, headers={"x-user": user})
        assert (answer.status_code, _has_secret(answer.text)) == (status, secret), user
    csrf = (await client.get("/api/me", headers={"x-user": "boss"})).json()["csrf"]
    for user, more, status in (
        ("boss", {**OWN, CSRF_HEADER: csrf}, 200),
        ("boss", OWN, 403),
        ("boss", {"origin": "https://evil.test", CSRF_HEADER: csrf}, 403),
        ("guest", {**OWN, CSRF_HEADER: csrf}, 403),
    ):
        answer = await client.post("/api/queue/pause", json={"queue": "default"}, headers={"x-user": user, **more})
        assert answer.status_code == status, (user, more)
    assert (await client.get("/api/me", headers={"x-user": "odd"})).status_code == 500
    assert (await client.get("/api/me", headers=_bearer(TOKEN))).status_code == 200, "the token still works"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8787", True),
        ("[::1]:8787", True),
        ("localhost", True),
        ("dash.localhost:1", True),
        ("mine.test:8787", True),
        ("ops.example.com", True),
        ("evil.test", False),
        ("evil.test:8787", False),
        ("127.0.0.1.evil.test", False),
        ("evil.test/127.0.0.1", False),
        ("evil.test@127.0.0.1", False),
        ("", False),
    ],
)
async def test_a_name_that_is_not_its_own_is_refused(made: Making, host: str, allowed: bool) -> None:
    config = DashboardConfig.make(token=TOKEN, hosts=["Mine.test"], origins=["https://ops.example.com"])
    assert config.allows_host(host) is allowed
    _, client = await made(hosts=["mine.test"], origins=["https://ops.example.com"])
    if host:
        answer = await client.get("/", headers={"host": host})
        assert answer.status_code == (200 if allowed else 421)


async def test_wrong_tokens_are_slowed_down_and_few_at_once(made: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    go = asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await go.wait()

    _, client = await made()
    monkeypatch.setattr("veredus.dashboard.auth.asyncio.sleep", wait)
    tries = [client.get("/api/me", headers=_bearer(f"wrong-{n}")) for n in range(4)]
    tries.append(client.post("/api/login", json={"token": "wrong"}, headers=OWN))
    tasks = [asyncio.create_task(one) for one in tries]
    while len(waits) < 5:
        await asyncio.gather(_turn())
    right = await client.get("/api/me", headers=_bearer(TOKEN))
    assert (right.status_code, right.json()["error"]) == (429, "too_many_tokens"), "or it would be seen at once"
    go.set()
    assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [401] * 5
    assert (await client.get("/api/me", headers=_bearer(TOKEN))).status_code == 200
    assert min(waits) >= 0.3


async def _turn() -> None: ...


def test_tokens_of_viewers_are_checked() -> None:
    for given in ({"viewer_token": "short"}, {"viewer_token": TOKEN}, {"access": "view"}):
        with pytest.raises(Exception, match=r"viewer_token|access"):
            asgi("redis://localhost", **{"token": TOKEN, **given})  # type: ignore[arg-type]
