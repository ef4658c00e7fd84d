"""The app as others hold it: mounted under a path, its files, its command, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import veredus.dashboard
from tests.dashboard.conftest import ADDRESS, TOKEN, Api, Making
from tests.support.processes import running
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until_sync
from veredus import App
from veredus.dashboard import asgi
from veredus.dashboard.assets import assets
from veredus.dashboard.server import DashboardServer
from veredus.errors import ConfigError
from veredus.model.hosts import is_loopback

STATIC = Path(veredus.dashboard.__file__).parent / "static"


async def test_it_can_be_mounted_under_a_path(app: App) -> None:
    await app.enqueue("t", queue="mail")
    dashboard = asgi(app, token=TOKEN)
    outer = Starlette(routes=[Mount("/ops/queues", dashboard)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url=ADDRESS) as client:
        page = await client.get("/ops/queues/")
        assert page.status_code == 200
        for path in re.findall(r'(?:href|src)="(static/[^"]+)"', page.text):
            assert (await client.get(f"/ops/queues/{path}")).status_code == 200
        assert (await client.get("/ops/queues", follow_redirects=True)).text == page.text
        origin = {"origin": ADDRESS}
        entered = await client.post("/ops/queues/api/login", json={"token": TOKEN}, headers=origin)
        assert "path=/ops/queues;" in entered.headers["set-cookie"].lower()
        assert (await client.get("/ops/queues/api/overview")).json()["aggregate"]["pending"] == 1
        headers = {**origin, "x-veredus-csrf": entered.json()["csrf"]}
        paused = await client.post("/ops/queues/api/queue/pause", json={"queue": "mail"}, headers=headers)
        assert paused.json() == {"changed": True}
    await dashboard.close()


async def test_it_can_stand_beside_another_asgi_app_that_hands_over_by_path(app: App) -> None:
    """As in Django's asgi.py: a function that looks at the path, with the prefix as root_path."""
    dashboard = asgi(app, token=TOKEN)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/veredus")
        await dashboard({**scope, "root_path": "/veredus"}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=ADDRESS) as client:
        assert "<title>Veredus</title>" in (await client.get("/veredus/")).text
        moved = await client.get("/veredus")
        assert (moved.status_code, moved.headers["location"]) == (307, "veredus/")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/veredus/api/overview", headers=bearer)).status_code == 200
    await dashboard.close()


async def test_files_are_kept_by_browsers_until_they_change(made: Making) -> None:
    _, client = await made()
    page = await client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    digest = assets().digest
    assert f"static/{digest}/main.js" in page.text
    script = await client.get(f"/static/{digest}/main.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"]
    again = await client.get(f"/static/{digest}/main.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/static/old/main.js")).headers["cache-control"] == "no-cache"
    for path in ("/static/x/../site.py", "/static/x/nope.js", "/static/", "/static/x/index.html", "/etc/passwd"):
        assert (await client.get(path)).status_code == 404
    assert (await client.post("/")).status_code == 405


def test_the_page_is_made_without_markup_from_data_and_names_no_other_host() -> None:
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/2000/svg)"
    )
    files = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")]
    assert len(files) > 15
    for path in files:
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert banned.search(text) is None, (path, banned.search(text))
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert " style=" not in page
    assert re.search(r"<script(?![^>]* src=)", page) is None
    assert re.search(r"\son\w+=", page) is None


async def test_it_says_what_went_wrong_and_nothing_more(made: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard, client = await made()
    client.headers["authorization"] = f"Bearer {TOKEN}"

    async def breaks(*_: Any) -> Any:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(type(dashboard.backend.opened.inspector), "stats", breaks)
    told = await Api(client).get("overview", 500)
    assert "secret" not in told["message"]


async def test_it_ends_with_streams_open(app: App) -> None:
    serving = DashboardServer(asgi(app, token=TOKEN), "127.0.0.1", 0)
    running = asyncio.create_task(serving.serve())
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=20) as client,
        client.stream("GET", f"{serving.address}api/live?of=overview") as answer,
    ):
        assert answer.status_code == 200
        serving.stop()
        await asyncio.wait_for(running, 8)


def test_another_event_loop_gets_a_connection_of_its_own(valkey_server: RealServer) -> None:
    """Test clients of web frameworks and reloading servers run one app in several loops, one after the other."""
    dashboard = asgi(valkey_server.url, token=TOKEN)

    async def look() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url=ADDRESS) as client:
            answer = await client.get("/api/overview", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200, answer.text

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(look())
        opened = dashboard.backend._opened
        second.run(look())
        second.run(dashboard.close())
        assert opened is not None
        first.run(opened.redis.close())


def test_a_port_in_use_is_named(app: App) -> None:
    first = DashboardServer(asgi(app, token=TOKEN), "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{first.port}"):
        DashboardServer(asgi(app, token=TOKEN), "127.0.0.1", first.port)
    first._socket.close()


def test_the_address_of_an_ipv6_host_has_brackets(app: App) -> None:
    try:
        serving = DashboardServer(asgi(app, token=TOKEN), "::1", 0)
    except ConfigError as exc:
        pytest.skip(f"no IPv6 on this machine: {exc}")
    assert serving.address == f"http://[::1]:{serving.port}/"
    serving._socket.close()


def test_what_is_this_machine_only() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com")] == [False] * 4


def test_the_command_prints_an_address_that_logs_in(valkey_server: RealServer) -> None:
    command = [sys.executable, "-m", "veredus", "dash", "--port", "0"]
    env = os.environ | {"VEREDUS_REDIS_URL": valkey_server.url}
    with running(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+/)#token=(\S+)", line)
        assert found is not None, line
        answer = httpx.get(f"{found[1]}api/overview", headers={"authorization": f"Bearer {found[2]}"})
        assert answer.status_code == 200
        assert httpx.get(f"{found[1]}api/overview").status_code == 401
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err


def test_the_command_listens_where_it_is_told_and_knows_the_proxys_address(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    """And opens a browser when asked to: with the program that the system has for it."""
    opened = tmp_path / "opened"
    browser = tmp_path / "xdg-open"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "veredus", "dash", "--redis", valkey_server.url, "--port", "0", "--open"]
    command += ["--host", "127.0.0.2", "--origin", "https://ops.example.com", "--viewer-token", "a-token-for-viewers"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VEREDUS_REDIS_URL": "unix:///nowhere/s"}
    with valkey_server.client() as client:
        client.sadd("asynq:queues", "mail")
    with running(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.2:\d+/)#token=(\S+)", process.stdout.readline())
        assert found is not None
        until_sync(opened.exists, what="the browser")
        assert opened.read_text() == found[0]
        bearer = {"authorization": f"Bearer {found[2]}"}
        for origin, status in (("https://ops.example.com", 200), ("https://evil.test", 403)):
            answer = httpx.post(
                f"{found[1]}api/queue/pause", json={"queue": "mail"}, headers={**bearer, "origin": origin}
            )
            assert answer.status_code == status, answer.text
        viewer = {"authorization": "Bearer a-token-for-viewers"}
        for host, status in (("ops.example.com", 200), ("evil.test", 421)):
            assert httpx.get(f"{found[1]}api/me", headers={**viewer, "host": host}).status_code == status
        assert httpx.post(f"{found[1]}api/queue/resume", json={"queue": "mail"}, headers=viewer).status_code == 403
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
