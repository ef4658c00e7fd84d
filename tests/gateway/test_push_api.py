"""The push API, the list of sessions and health, over real HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import PATIENCE, forever, until
from veredus import App
from veredus.errors import ConfigError
from veredus.gateway.gateway import Gateway

TOKEN = "http secret"
JSON = {"content-type": "application/json"}
EIGHT = {
    "session_id", "queue_size", "pending_count", "max_queue_size", "next_expected_seq", "last_sent_seq",
    "last_acked_seq", "stopped",
}  # fmt: skip


@pytest.fixture
async def gw(app: App) -> AsyncIterator[Gateway]:
    @app.action("answer", where="gateway")
    async def answer() -> str:
        return "response"

    @app.action("wait", where="gateway")
    async def wait() -> None:
        await forever()

    async with gateway(app, http="127.0.0.1:0", http_token=TOKEN) as gw:
        yield gw


@pytest.fixture
async def http(gw: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"http://{gw.http_address}", headers=headers, timeout=PATIENCE) as client:
        yield client


async def test_n5_every_field_of_a_unicast_push_reaches_the_client_on_every_path(
    gw: Gateway, http: httpx.AsyncClient
) -> None:
    client = await JsonClient.open(gw, "ada")
    fields = {"msg_type": "m", "title": "T", "content": "C", "data": {"n": 1}, "metadata": {"k": "v"}}
    for hint, rid in (("AFTER_RESPONSE", 123), (1, 123), (0, 0)):
        push = {"target_type": "session", "target_id": client.sid, "sync_hint": hint, **fields}
        if rid:
            push["bind_client_seq_id"] = rid
        answer = (await http.post("/push", json=push)).json()
        assert answer["success"], answer
        assert answer["results"][0]["status"] == ("held" if rid else "queued")
    await client.request(123, "answer")
    immediate, before, response, after = await client.take(4)
    assert (response["rid"], response["body"]) == (123, "response")
    for message, hint in ((immediate, 0), (before, 1), (after, 2)):
        assert (message["type"], message["title"], message["content"]) == ("m", "T", "C")
        assert (message["body"], message["metadata"]) == ({"n": 1}, {"k": "v"})
        assert message.get("sync_hint", 0) == hint
    late = {"target_type": "session", "target_id": client.sid, "sync_hint": 1, "bind_client_seq_id": 123}
    assert (await http.post("/push", json=late)).json()["results"][0]["status"] == "late"
    answer = (await http.post("/push", json={**late, "late": "reject"})).json()
    assert (answer["success"], answer["error_code"]) == (False, "BIND_TOO_LATE")


async def test_every_target_and_each_its_own_result(gw: Gateway, http: httpx.AsyncClient, app: App) -> None:
    ada, bob = await JsonClient.open(gw, "ada"), await JsonClient.open(gw, "bob")
    await app.join(bob.sid, "news")
    raw = base64.b64encode(b"\x00\xff").decode()
    answers = (
        await http.post(
            "/push",
            json=[
                {"target_type": "session", "target_id": ada.sid, "data": 1},
                {"target_type": "user", "target_id": "ada", "data": 2},
                {"target_type": "openid", "target_id": "bob", "data": 3},
                {"target_type": "group", "target_id": "news", "data": 4},
                {"target_type": "everyone", "data": 5},
                {"target_type": "session", "target_id": "p000-aaaaaaaaaaaaaaaaaaaa", "data": 6},
                {"target_type": "user", "target_id": "nobody", "data": 7},
                {"target_type": "user", "target_id": "later", "data": 8, "wait": 60},
                {"target_type": "session", "target_id": "nonsense", "data": 9},
                {"target_type": "session", "target_id": ada.sid, "data64": raw},
            ],
        )
    ).json()
    assert [answer["success"] for answer in answers] == [True] * 5 + [False, False, True, False, True]
    codes = [answer["error_code"] for answer in answers]
    assert codes == ["", "", "", "", "", "TARGET_GONE", "TARGET_GONE", "", "BAD_REQUEST", ""]
    assert (answers[3]["sent_count"], answers[4]["sent_count"]) == (1, 2)
    assert sorted(str(one.get("body", one.get("body64"))) for one in await ada.take(4)) == ["1", "2", "5", raw]
    assert sorted(one["body"] for one in await bob.take(3)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "body: not JSON"),
        (b'{"data":' + b"[" * 500 + b"]" * 500 + b"}", "body: nested more than 500 deep"),
        (b"7", "body: expected an object, got int"),
        ({"target_type": "sesion", "target_id": "x"}, "target_type: got 'sesion', expected one of session"),
        ({"target_type": "session"}, "target_id: got None, expected the session's id"),
        ({"target_type": "user", "target_id": 7}, "target_id: got 7"),
        ({"target_type": "everyone", "titel": "x"}, "did you mean 'title'"),
        ({"target_type": "everyone", "title": 7}, "title: got 7, expected a string"),
        ({"target_type": "everyone", "metadata": {"k": 1}}, "metadata: got {'k': 1}, expected an object of strings"),
        ({"target_type": "everyone", "data64": "?"}, "data64: expected bytes as base64"),
        ({"target_type": "everyone", "ttl": "1"}, "ttl: got '1', expected a number"),
        ({"target_type": "everyone", "sync_hint": 1}, "sync_hint: got 1, expected 0 for target_type everyone"),
        ({"target_type": "session", "target_id": "x", "sync_hint": 3}, "sync_hint: got 3, expected 0, 1, 2 or one of"),
        ({"target_type": "session", "target_id": "x", "sync_hint": 1}, "bind_client_seq_id: got None"),
        ([{"target_type": "everyone"}, {"target_type": "x"}], "[1].target_type: got 'x'"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_sent(http: httpx.AsyncClient, body: Any, problem: str) -> None:
    given: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await http.post("/push", **given)
    assert answer.status_code == 400
    assert problem in answer.json()["message"]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"target_type": "everyone", "ttl": 10**400}, "ttl"),
        ({"target_type": "user", "target_id": "ada", "wait": 10**400}, "wait"),
        ({"target_type": "user", "target_id": "\ud800"}, "user"),
        ({"target_type": "group", "target_id": "\ud800"}, "group"),
        ({"target_type": "user", "target_id": "ada", "dedupe_key": "\ud800"}, "dedupe_key"),
    ],
    ids=["ttl", "wait", "user", "group", "dedupe_key"],
)
async def test_a_value_that_no_push_may_have_is_named(http: httpx.AsyncClient, row: Any, field: str) -> None:
    """A number beyond every float; a text that UTF-8 cannot hold."""
    answer = (await http.post("/push", content=json.dumps(row), headers=JSON)).json()
    assert (answer["success"], answer["error_code"]) == (False, "BAD_REQUEST")
    assert answer["message"].startswith(field)


async def test_too_much_at_once_is_refused_as_a_whole(
    gw: Gateway, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veredus.gateway.push_api.MAX_PUSHES", 2)
    monkeypatch.setattr("veredus.gateway.http_forms.MAX_BODY", 1000)
    client = await JsonClient.open(gw, "ada")
    row = {"target_type": "session", "target_id": client.sid}
    for body, problem in (([row] * 3, "3 pushes, at most 2"), ({**row, "title": "x" * 1000}, "more than 1,000 bytes")):
        answer = await http.post("/push", json=body)
        assert answer.status_code == 400
        assert problem in answer.json()["message"]
    answers = (await http.post("/push", json=[{**row, "data": n} for n in (1, 2)])).json()
    assert [one["success"] for one in answers] == [True, True]
    assert [one["body"] for one in await client.take(2)] == [1, 2]


async def test_a_body_of_the_largest_size_is_delivered(app: App) -> None:
    async with gateway(app, http="127.0.0.1:0") as gw:
        client = await JsonClient.connect(gw, max_size=None)
        await client.hello("ada")
        body = b"x" * (1024 * 1024)
        async with httpx.AsyncClient(base_url=f"http://{gw.http_address}", timeout=PATIENCE) as http:
            row = {"target_type": "session", "target_id": client.sid, "data64": base64.b64encode(body).decode()}

            async def pushed() -> bool:
                return bool((await http.post("/push", json=row)).json()["success"])

            for _ in range(2):
                await until(pushed, what="room, once the one before is acknowledged")
                (message,) = await client.take(1)
                assert base64.b64decode(message["body64"]) == body
                await client.ack()


async def test_a_push_to_a_user_succeeds_if_one_session_takes_it(app: App) -> None:
    async with gateway(app, http="127.0.0.1:0", quota_entries=1) as gw:
        full, free = [await JsonClient.open(gw, "ada") for _ in range(2)]
        await app.push("first", session=full.sid)
        async with httpx.AsyncClient(base_url=f"http://{gw.http_address}", timeout=10) as http:
            row = {"target_type": "user", "target_id": "ada", "data": "second"}
            answer = (await http.post("/push", json=row)).json()
            assert (answer["success"], answer["error_code"]) == (True, "")
            assert {one["session"]: one["status"] for one in answer["results"]} == {
                full.sid: "full",
                free.sid: "queued",
            }
            answer = (await http.post("/push", json=row)).json()
            assert (answer["success"], answer["error_code"]) == (False, "OUTBOX_FULL")


async def test_what_is_bound_may_be_dropped_with_a_failed_request(
    gw: Gateway, http: httpx.AsyncClient, app: App
) -> None:
    client = await JsonClient.open(gw, "ada")
    row = {"target_type": "session", "target_id": client.sid, "sync_hint": "AFTER_RESPONSE", "bind_client_seq_id": 1}
    for data, more in (("dropped", {"on_fail": "drop"}), ("kept", {})):
        assert (await http.post("/push", json={**row, "data": data, **more})).json()["success"]
    await client.request(1, "wait", deadline_ms=1)
    assert (await client.frame("msg"))["code"] == 408
    assert (await client.frame("msg"))["body"] == "kept"
    await app.push("end", session=client.sid)
    assert (await client.frame("msg"))["body"] == "end"


async def test_the_token_is_needed_for_all_but_health(gw: Gateway, http: httpx.AsyncClient) -> None:
    for given in ("", "Bearer wrong", TOKEN, f"Basic {TOKEN}"):
        headers = {"authorization": given}
        posts = [("POST", path) for path in ("/push", "/disconnect", "/revoke")]
        for method, path in (*posts, ("GET", "/sessions"), ("GET", "/members"), ("GET", "/node")):
            answer = await http.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/healthz", headers=headers)).status_code == 200
        assert (await http.get("/readyz", headers=headers)).json() == {"ok": True, "problems": []}


async def test_sessions_are_listed_with_the_eight_statistics(gw: Gateway, http: httpx.AsyncClient, app: App) -> None:
    client = await JsonClient.open(gw, "ada")
    for number in range(5):
        await app.push(number, session=client.sid)
    await client.take(5)
    await client.ack(2)

    async def acked() -> bool:
        return bool((await http.get("/sessions")).json()[0]["last_acked_seq"] == 2)

    await until(acked)
    (row,) = (await http.get("/sessions")).json()
    assert set(row) >= EIGHT
    assert {name: row[name] for name in EIGHT} == {
        "session_id": client.sid,
        "queue_size": 0,
        "pending_count": 3,
        "max_queue_size": 1000,
        "next_expected_seq": 6,
        "last_sent_seq": 5,
        "last_acked_seq": 2,
        "stopped": False,
    }
    assert (row["user"], row["transport"]) == ("ada", "websocket")
    node = (await http.get("/node")).json()
    assert (node["connections"], node["sessions"]) == (1, 1)


async def test_nothing_else_is_served(http: httpx.AsyncClient) -> None:
    assert (await http.get("/debug")).status_code == 404
    assert (await http.get("/push")).status_code == 405


async def test_sessions_are_ended_over_http(gw: Gateway, http: httpx.AsyncClient) -> None:
    one, two, three = [await JsonClient.open(gw, "ada") for _ in range(3)]
    other = await JsonClient.open(gw, "bob")
    answer = await http.post("/disconnect", json={"session": one.sid, "reason": "spam"})
    assert (answer.status_code, answer.json()) == (200, {"ended": 1})
    closed = await one.frame("close")
    assert (closed["code"], closed["reason"]) == (4504, "spam")
    assert (await http.post("/disconnect", json={"session": one.sid})).json() == {"ended": 0}
    old = {"user": "ada", "before": "2020-01-01T00:00:00Z"}
    assert (await http.post("/revoke", json=old)).json() == {"ended": 0}
    assert (await http.post("/revoke", json={"user": "ada", "before": None})).json() == {"ended": 2}
    for client in (two, three):
        assert await client.close_code() == 4501
    assert (await http.post("/disconnect", json={"user": "bob"})).json() == {"ended": 1}
    assert await other.close_code() == 4504


async def test_the_members_of_a_group_are_listed_page_by_page(gw: Gateway, http: httpx.AsyncClient, app: App) -> None:
    clients = [await JsonClient.open(gw, user) for user in ("ada", "bob", "cem")]
    for client in clients[:2]:
        await app.join(client.sid, "lobby")
    sids = sorted(client.sid for client in clients[:2])
    first = (await http.get("/members", params={"group": "lobby", "limit": 1})).json()
    assert [row["session"] for row in first["members"]] == sids[:1]
    assert first["members"][0]["state"] == "attached"
    assert first["members"][0]["node"] == gw.node
    rest = (await http.get("/members", params={"group": "lobby", "after": first["after"]})).json()
    assert [row["session"] for row in rest["members"]] == sids[1:]
    assert rest["after"] == ""
    assert (await http.get("/members", params={"group": "nobody"})).json() == {"members": [], "after": ""}
    assert [row.sid for row in await app.members("lobby")] == sids
    assert [row.sid for row in await app.members("lobby", after=sids[0])] == sids[1:]
    await app.leave(sids[0], "lobby")
    assert [row.sid for row in await app.members("lobby")] == sids[1:]
    for wrong in (0, 10_001, True, "5"):
        with pytest.raises(ConfigError, match="limit"):
            await app.members("lobby", limit=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/disconnect", [], "body"),
        ("/disconnect", {}, "either session or user"),
        ("/disconnect", {"session": "p000-abcdef", "user": "ada"}, "either session or user"),
        ("/disconnect", {"session": 5}, "session"),
        ("/disconnect", {"user": ""}, "user"),
        ("/disconnect", {"user": "ada", "reason": "x" * 101}, "reason"),
        ("/disconnect", {"user": "ada", "raeson": "x"}, "did you mean 'reason'"),
        ("/revoke", {}, "user"),
        ("/revoke", {"user": "ada", "before": "tomorrow"}, "before"),
        ("/revoke", {"user": "ada", "before": "2020-01-01T00:00:00"}, "before"),
        ("/revoke", {"user": "ada", "before": True}, "before"),
        ("/revoke", {"user": "ada", "keep": 0}, "keep"),
        ("/revoke", {"user": "ada", "keep": 10**400}, "keep"),
        ("/revoke", {"user": "\ud800"}, "user"),
        ("/disconnect", {"user": "\ud800"}, "user"),
    ],
)
async def test_wrong_fields_of_an_end_are_named(http: httpx.AsyncClient, path: str, body: Any, problem: str) -> None:
    answer = await http.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code == 400
    assert problem in answer.json()["message"]


@pytest.mark.parametrize("query", [{}, {"group": ""}, {"group": "g", "limit": "x"}, {"group": "g", "after": "x"}])
async def test_a_wrong_question_for_members_is_refused(http: httpx.AsyncClient, query: dict[str, str]) -> None:
    assert (await http.get("/members", params=query)).status_code == 400
