"""Who may enter and what they may do: token, cookie, proof of origin, read-only, and the headers of every answer."""

from __future__ import annotations

import httpx
import pytest

from tests.dashboard.conftest import ADDRESS, TOKEN, Api, Making
from veredus import App
from veredus.dashboard import DashboardConfig, asgi
from veredus.dashboard.auth import CSRF_HEADER, Authenticator
from veredus.dashboard.dashboard import CHANGES, READINGS
from veredus.errors import ConfigError

OWN = {"origin": ADDRESS}


async def test_without_the_token_nothing_is_readable_and_nothing_is_writable(app: App, made: Making) -> None:
    await app.enqueue("secret:type", {"password": "hunter2"}, queue="secret-queue")
    _, client = await made()
    for name in [*READINGS, "me", "live", "no-such-address"]:
        answer = await client.get(f"/api/{name}")
        assert answer.status_code == 401, name
        assert "secret" not in answer.text
    for name in [*CHANGES, "logout", "no-such-address"]:
        answer = await client.post(f"/api/{name}", json={"queue": "secret-queue"}, headers=OWN)
        assert answer.status_code == 401, name
    for path in ("/", "/static/x/main.js"):  # the page itself has no data
        answer = await client.get(path)
        assert answer.status_code == 200
        assert "secret" not in answer.text.replace("secrets", "")


@pytest.mark.parametrize(
    "given", ["Bearer wrong", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
async def test_a_wrong_bearer_is_refused(made: Making, given: str) -> None:
    _, client = await made()
    assert (await client.get("/api/overview", headers={"authorization": given})).status_code == 401
    right = {"authorization": f"bearer {TOKEN}"}
    assert (await client.get("/api/overview", headers=right)).status_code == 200


async def test_logging_in_gives_a_cookie_that_scripts_cannot_read(made: Making) -> None:
    _, client = await made()
    wrong = await client.post("/api/login", json={"token": "not-the-token-at-all"}, headers=OWN)
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    answer = await client.post("/api/login", json={"token": TOKEN}, headers=OWN)
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "secure" not in cookie.lower()  # it came over http, and has to go back the same way
    assert TOKEN not in cookie
    assert (await client.get("/api/overview")).status_code == 200
    me = (await client.get("/api/me")).json()
    assert me["csrf"] == answer.json()["csrf"]
    left = await client.post("/api/logout", json={}, headers={**OWN, CSRF_HEADER: me["csrf"]})
    assert left.status_code == 200
    assert (await client.get("/api/overview")).status_code == 401


async def test_a_cookie_that_was_given_over_https_never_travels_in_the_clear(made: Making) -> None:
    _, client = await made()
    secure = ADDRESS.replace("http:", "https:")
    client.base_url = httpx.URL(secure)
    answer = await client.post("/api/login", json={"token": TOKEN}, headers={"origin": secure})
    assert answer.status_code == 200
    assert "; secure" in answer.headers["set-cookie"].lower()


async def test_another_site_cannot_log_anybody_in(made: Making) -> None:
    _, client = await made()
    answer = await client.post("/api/login", json={"token": TOKEN}, headers={"origin": "https://evil.test"})
    assert answer.status_code == 403


def test_cookies_end_and_cannot_be_made_up() -> None:
    entry = Authenticator(DashboardConfig.make(token=TOKEN))
    cookie = entry.cookie(1_000_000)

    def holder(value: str, now: float) -> str | None:
        found = entry.by_cookie({"cookie": f"{entry.cookie_name}={value}"}, now)
        return None if found is None else found.holder

    assert holder(cookie, 1_000_001) == cookie
    assert holder(cookie, 1_000_000 + 7 * 86_400) is None
    ends, _, signature = cookie.partition(".")
    assert holder(f"{int(ends) + 1}.{signature}", 1_000_001) is None
    assert holder(f"{ends}.", 1_000_001) is None
    assert holder("x", 1_000_001) is None
    other = Authenticator(DashboardConfig.make(token=TOKEN + "2"))
    assert other.cookie_name != entry.cookie_name  # two dashboards on one machine keep apart
    assert other.by_cookie({"cookie": f"{other.cookie_name}={cookie}"}, 1_000_001) is None


async def test_every_write_with_a_cookie_needs_the_token_header_and_the_own_origin(app: App, made: Making) -> None:
    await app.enqueue("t", queue="mail")
    _, client = await made()
    csrf = (await client.post("/api/login", json={"token": TOKEN}, headers=OWN)).json()["csrf"]
    good = {**OWN, CSRF_HEADER: csrf}
    bad: list[dict[str, str]] = [
        {},
        OWN,
        {CSRF_HEADER: csrf},  # no origin at all
        {**OWN, CSRF_HEADER: "wrong"},
        {**OWN, CSRF_HEADER: ""},
        {"origin": "https://evil.test", CSRF_HEADER: csrf},
        {"origin": "http://dash.test:81", CSRF_HEADER: csrf},
        {"origin": "null", CSRF_HEADER: csrf},
        {"sec-fetch-site": "cross-site", CSRF_HEADER: csrf},
        {"sec-fetch-site": "same-site", CSRF_HEADER: csrf},
    ]
    for name in [*CHANGES, "logout"]:
        for headers in bad:
            answer = await client.post(f"/api/{name}", json={"queue": "mail"}, headers=headers)
            assert answer.status_code == 403, (name, headers)
    assert not (await app.inspector().queue("mail")).paused
    assert (await client.post("/api/queue/pause", json={"queue": "mail"}, headers=good)).status_code == 200
    fetched = {"sec-fetch-site": "same-origin", CSRF_HEADER: csrf}
    assert (await client.post("/api/queue/resume", json={"queue": "mail"}, headers=fetched)).status_code == 200


async def test_a_form_of_another_site_cannot_write_whatever_it_sends(app: App, made: Making) -> None:
    await app.enqueue("t", queue="mail")
    _, client = await made()
    csrf = (await client.post("/api/login", json={"token": TOKEN}, headers=OWN)).json()["csrf"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {**OWN, CSRF_HEADER: csrf, "content-type": kind}
        answer = await client.post("/api/queue/pause", content=b'{"queue": "mail"}', headers=headers)
        assert answer.status_code == 400
        assert "application/json" in answer.json()["message"]
    assert not (await app.inspector().queue("mail")).paused


async def test_a_bearer_needs_no_second_proof_but_no_foreign_page_may_use_it(app: App, made: Making) -> None:
    await app.enqueue("t", queue="mail")
    _, client = await made(origins=["https://ops.example.com"])
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for headers, status in [
        (bearer, 200),
        ({**bearer, "origin": "https://ops.example.com"}, 200),
        ({**bearer, "origin": "https://evil.test"}, 403),
    ]:
        assert (await client.post("/api/queue/pause", json={"queue": "mail"}, headers=headers)).status_code == status


async def test_read_only_refuses_every_write_at_the_api(app: App, made: Making) -> None:
    handle = await app.enqueue("t", queue="mail", delay=600)
    _, client = await made(read_only=True)
    client.headers["authorization"] = f"Bearer {TOKEN}"
    before = await app.inspector().task("mail", handle.id)
    refused = []
    for name, change in CHANGES.items():
        if not change.writes:
            continue
        answer = await client.post(f"/api/{name}", json={"queue": "mail", "ids": [handle.id], "id": handle.id})
        assert answer.status_code == 403, name
        assert answer.json()["error"] == "read_only"
        refused.append(name)
    assert {name for name, change in CHANGES.items() if not change.writes} == {
        "errors/count",
        "jobs/count",
        "jobs/stop",
        "doctor/diagnose",
    }
    assert len(refused) == 28
    assert await app.inspector().task("mail", handle.id) == before
    me = await Api(client).get("me")
    assert me["read_only"] is True


async def test_every_answer_has_the_strict_headers(made: Making) -> None:
    _, client = await made()
    for path in ("/", "/api/overview", "/nowhere", "/static/x/main.js"):
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        for part in (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ):
            assert part in policy.split("; ")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert (await client.get("/api/overview")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"token": "short"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "with\nlines and more"}, "token"),
        ({"refresh": 0}, "refresh"),
        ({"refresh": "1"}, "refresh"),
        ({"read_only": "yes"}, "read_only"),
        ({"origins": ["ops.example.com"]}, "origins"),
        ({"origins": ["https://ops.example.com/path"]}, "origins"),
    ],
)
def test_wrong_settings_are_named_and_the_token_is_not_told(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        asgi("redis://localhost", **settings)  # type: ignore[arg-type]
    assert error.value.field == field
    if field == "token" and settings["token"]:
        assert str(settings["token"]) not in str(error.value)


def test_a_token_is_made_up_when_none_is_given(caplog: pytest.LogCaptureFixture) -> None:
    one, two = asgi("redis://localhost"), asgi("redis://localhost")
    assert one.config.token != two.config.token
    assert len(one.config.token) >= 32
    assert one.config.token in caplog.text
    with pytest.raises(ConfigError, match="app_or_url"):
        asgi(42, token=TOKEN)  # type: ignore[arg-type]
