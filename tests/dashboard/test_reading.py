"""What can be read: the inspector's own fields, pages, searches, clear refusals, and text that stays text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import veredus.dashboard.read_routes
from tests.dashboard.conftest import Api
from tests.outbox.support import Log
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, TaskFailed, current
from veredus.dashboard.dashboard import CHANGES
from veredus.dashboard.task_views import row_of
from veredus.inspector.inspector import Inspector
from veredus.model.info import TaskInfo
from veredus.model.lifecycle import State
from veredus.model.limits import Limit
from veredus.store.store import Store, connect

SCRIPT = '<script>alert("x")</script><img src onerror><b>'


async def rows_of(api: Api, name: str, **query: Any) -> Any:
    """What the address of this name lists."""
    return (await api.get(name, **query))[name]


async def test_the_overview_has_the_fields_of_stats(app: App, api: Api, inspector: Inspector) -> None:
    assert (await api.get("overview"))["queues"] == []
    await app.enqueue_many(app.call("t", {"n": n}, queue="mail") for n in range(3))
    await app.enqueue("t", queue="slow", delay=60)
    await inspector.close_queue("slow")
    seen = await api.get("overview")
    assert seen["aggregate"]["pending"] == 3
    assert seen["aggregate"]["size"] == 4
    assert [queue["queue"] for queue in seen["queues"]] == ["mail", "slow"]
    assert [queue["closed"] for queue in seen["queues"]] == [False, True]
    expected = (await inspector.queue("mail")).as_dict()
    assert set(expected) <= set(seen["queues"][0])
    for name in ("pending", "size", "processed", "failed", "paused"):
        assert seen["queues"][0][name] == expected[name]
    assert seen["servers"] == {"processes": 0, "busy": 0, "concurrency": 0}


async def test_history_is_read_from_redis_so_it_survives_restarts(
    app: App, api: Api, valkey_server: RealServer
) -> None:
    await app.enqueue("t", queue="mail")
    await app.enqueue("t", queue="other")
    today = (await app.inspector().history("mail", 1))[0].date
    for queue in ("mail", "other"):
        valkey_server.client().set(f"asynq:{{{queue}}}:processed:{today}", 40)
        valkey_server.client().set(f"asynq:{{{queue}}}:failed:{today}", 3)
    one = await api.get("history", queue="mail", days=7)
    assert len(one["days"]) == 7
    assert one["days"][-1] == {"date": today, "processed": 40, "failed": 3}
    assert (await api.get("history", days=7))["days"][-1] == {"date": today, "processed": 80, "failed": 6}


async def test_a_page_is_a_page_whatever_the_queue_has(app: App, api: Api) -> None:
    await app.enqueue_many(app.call("t", {"n": n}, queue="mail", task_id=f"t{n:03}") for n in range(120))
    first = await api.get("tasks", queue="mail", state="pending", size=50)
    assert [task["id"] for task in first["tasks"]] == [f"t{n:03}" for n in range(50)]  # the next to run first
    assert (first["page"], first["size"], first["total"], first["counts"]["pending"]) == (1, 50, 120, 120)
    third = await api.get("tasks", queue="mail", state="pending", size=50, page=3)
    assert [task["id"] for task in third["tasks"]] == [f"t{n:03}" for n in range(100, 120)]
    assert (await api.get("tasks", queue="mail", state="pending", page=9))["tasks"] == []


@pytest.mark.parametrize("state", ["pending", "scheduled"])
async def test_the_newest_come_first_when_asked_for(app: App, api: Api, state: str) -> None:
    options: list[dict[str, Any]] = [{"delay": 60 + n} if state == "scheduled" else {} for n in range(120)]
    await app.enqueue_many(app.call("t", queue="mail", task_id=f"t{n:03}", **given) for n, given in enumerate(options))
    pages = [await api.get("tasks", queue="mail", state=state, newest=True, page=page) for page in (1, 3, 4)]
    ids = [[task["id"] for task in page["tasks"]] for page in pages]
    assert ids == [[f"t{n:03}" for n in range(119, 69, -1)], [f"t{n:03}" for n in range(19, -1, -1)], []]


async def test_what_needs_attention_is_flagged(app: App, api: Api) -> None:
    @app.task(name="book", queue="ledger", order_hold=True, max_retry=0)
    async def book() -> None:
        raise ValueError("closed")

    for account in (1, 1, 2):
        await book.using(order_key=f"account-{account}").enqueue()
    await app.enqueue("nobody", queue="idle")
    async with app.worker(["ledger"], burst=True) as worker:
        await worker.wait()
        flags = [one for one in (await api.get("flags"))["flags"] if one["queue"]]
    assert {(one["kind"], one["queue"]) for one in flags} >= {("unserved", "idle"), ("held", "ledger")}
    (held,) = [one for one in flags if one["kind"] == "held"]
    assert "account-1" in held["text"]
    assert "account-2" not in held["text"], "nothing waits behind it"
    found = {one["kind"] for one in (await api.get("flags"))["flags"]}
    assert "persistence" in found, "the server of tests stores nothing"
    assert "version" not in found


async def test_a_type_that_no_worker_knows_is_flagged_and_the_worst_comes_first(app: App, api: Api) -> None:
    @app.task(name="known", queue="mail")
    async def known() -> None: ...

    await app.enqueue("forgotten", queue="mail")
    async with app.worker(["mail"]):

        async def about() -> Any:
            flags = (await api.get("flags"))["flags"]
            return flags if any("'mail'" in one["text"] for one in flags) else None

        flags = await until(about)
    (unknown,) = [one for one in flags if one["queue"] == "mail" and one["kind"] == "unserved"]
    assert "tasks of type forgotten wait" in unknown["text"]
    levels = [one["level"] for one in flags]
    assert levels == sorted(levels, key=["bad", "warn"].index), "bad before warn"


async def test_a_running_task_says_who_runs_it_and_since_when(app: App, api: Api) -> None:
    gate = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        await gate.wait()

    handle = await wait.enqueue()
    async with app.worker(lease=1.5):

        async def shown() -> Any:
            return (await api.get("task", queue="default", id=handle.id))["running"]

        running = await until(shown)
        (server,) = (await api.get("servers"))["servers"]
        assert running["worker"] == f"{server['host']}:{server['pid']}:{server['id'][:13]}", "as in its attempts"
        assert running["started"] == server["active_workers"][0]["started"]
        gate.set()
    waiting = await wait.using(delay=60).enqueue()
    assert (await api.get("task", queue="default", id=waiting.id))["running"] is None


async def test_a_search_goes_on_from_its_cursor(app: App, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.dashboard.read_routes.SCAN", 250)
    await app.enqueue_many(
        app.call("email:send" if n % 100 == 0 else "other", {"n": n}, queue="mail", delay=60 + n) for n in range(1000)
    )
    found: list[str] = []
    cursor, steps = "", 0
    while True:
        step = await api.get("tasks", queue="mail", state="scheduled", type="email:*", cursor=cursor)
        found += [task["payload"]["utf8"] for task in step["tasks"]]
        cursor, steps = step["cursor"], steps + 1
        assert step["scanned"] <= 250
        if not cursor:
            break
    assert found == [f'{{"n":{n}}}' for n in range(0, 1000, 100)]
    assert steps >= 4
    by_payload = await api.get("tasks", queue="mail", state="scheduled", payload='"n":7}')
    assert len(by_payload["tasks"]) == 1


async def test_a_failed_task_with_its_traceback(app: App, api: Api) -> None:
    @app.task(name="fail", queue="reports", max_retry=0)
    async def fail() -> None:
        raise ValueError("boom")

    handle = await fail.enqueue()
    async with app.worker("reports"):
        with pytest.raises(TaskFailed) as caught:
            await handle.result(timeout=PATIENCE)
    seen = await api.get("task", queue="reports", id=handle.id)
    assert (seen["last_err"], seen["traceback"]) == ("ValueError: boom", caught.value.traceback)
    assert 'raise ValueError("boom")' in seen["traceback"]


async def test_one_task_with_everything_that_is_known_of_it(app: App, api: Api, inspector: Inspector) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="report:build", queue="reports", retention=60, max_retry=4)
    async def build(month: int) -> dict[str, int]:
        await current().progress(0.25, "first quarter")
        begun.set()
        await go_on.wait()
        return {"pages": month}

    handle = await build.using(headers={"trace": "abc"}, order_key="k").enqueue(6)
    async with app.worker("reports", concurrency=2):
        await asyncio.wait_for(begun.wait(), PATIENCE)
        seen = await api.get("task", queue="reports", id=handle.id)
        expected = (await inspector.task("reports", handle.id)).as_dict()
        assert {name: seen[name] for name in expected if name not in ("payload", "result")} == {
            name: value for name, value in expected.items() if name not in ("payload", "result")
        }
        assert seen["state"] == "active"
        assert seen["payload"]["utf8"] == '{"month":6}'
        assert seen["headers"] == {"trace": "abc"}
        assert seen["order_key"] == "k"
        assert seen["progress"]["share"] == 0.25
        assert seen["progress"]["note"] == "first quarter"
        assert seen["lease"]["ours"] is True
        assert seen["lease"]["seconds_left"] > 0
        assert seen["actions"] == ["cancel", "requeue"]
        servers = await until(lambda: rows_of(api, "servers"))
        assert [server["concurrency"] for server in servers] == [2]
        assert [lease["task_id"] for lease in (await api.get("leases"))["leases"]] == [handle.id]
        go_on.set()
        await handle.result(timeout=PATIENCE)
        done = await api.get("task", queue="reports", id=handle.id)
    assert (done["state"], done["result"]["utf8"], done["lease"]) == ("completed", '{"pages":6}', None)
    assert done["kept_until"] > done["completed_at"]
    assert await api.get("find", id=handle.id) == {"id": handle.id, "queues": ["reports"]}


async def test_markup_in_payloads_types_and_ids_travels_as_json_text(app: App, api: Api) -> None:
    await app.enqueue(SCRIPT, {"html": SCRIPT}, queue=SCRIPT, task_id=SCRIPT, headers={SCRIPT: SCRIPT}, delay=60)
    answer = await api.client.get("/api/task", params={"queue": SCRIPT, "id": SCRIPT})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    task = answer.json()
    assert (task["id"], task["type"], task["queue"]) == (SCRIPT, SCRIPT, SCRIPT)
    assert SCRIPT in task["payload"]["utf8"].replace('\\"', '"')
    assert (await api.get("overview"))["queues"][0]["queue"] == SCRIPT
    missing = await api.client.get("/api/queue", params={"queue": SCRIPT + "?"})
    assert missing.headers["content-type"] == "application/json"


async def test_names_that_are_no_utf8_come_and_go_as_they_are(app: App, api: Api, valkey_server: RealServer) -> None:
    handle = await app.enqueue("t", {"n": 1}, queue="mail", delay=60)
    client = valkey_server.client()
    key = f"asynq:{{mail}}:t:{handle.id}".encode()
    client.rename(key, b"asynq:{mail}:t:odd\xff\xfe")
    client.zrem("asynq:{mail}:scheduled", handle.id)
    client.zadd("asynq:{mail}:scheduled", {b"odd\xff\xfe": 9e9})
    (row,) = (await api.get("tasks", queue="mail", state="scheduled"))["tasks"]
    assert row["id"] == "odd\udcff\udcfe"
    answer = await api.client.get("/api/task?queue=mail&id=odd%ff%fe")
    assert answer.json()["id"] == row["id"]
    told = await api.post("tasks/delete", queue="mail", ids=[row["id"]])
    assert told["done"] == [row["id"]]
    assert client.zcard("asynq:{mail}:scheduled") == 0


async def test_long_bytes_are_shortened_and_say_so(app: App, api: Api) -> None:
    text = await app.enqueue("t", ("ü" * 1_000_000).encode(), queue="mail", delay=60)
    raw = await app.enqueue("t", b"\xff\x00" * 400, queue="mail", delay=61)
    rows = (await api.get("tasks", queue="mail", state="scheduled"))["tasks"]
    assert [(row["payload"]["size"], row["payload"]["truncated"]) for row in rows] == [(2_000_000, True), (800, True)]
    assert rows[0]["payload"]["utf8"] == "ü" * 120
    assert "utf8" not in rows[1]["payload"]
    one = await api.get("task", queue="mail", id=text.id)
    assert one["payload"]["truncated"] is True
    assert len(one["payload"]["utf8"].encode()) == 1024 * 1024
    assert (await api.get("task", queue="mail", id=raw.id))["payload"]["truncated"] is False


def test_a_line_of_a_list_has_the_beginning_of_a_long_error_and_no_half_character() -> None:
    long = TaskInfo(
        id="a", queue="q", type="t", state="retry", payload=("a" + "ü" * 200).encode(), last_error="x" * 500
    )
    row = row_of(long)
    assert row["last_err"] == "x" * 240
    assert row["payload"]["utf8"] == "a" + "ü" * 119  # the 240th byte is the first half of one more
    assert row["payload"]["size"] == 401


async def test_the_throughput_is_what_workers_recorded(app: App, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    app.handler("good", queue="mail")(_nothing)
    app.handler("bad", queue="slow", max_retry=0)(_broken)
    for _ in range(3):
        await app.enqueue("good", queue="mail")
    await app.enqueue("bad", queue="slow")
    async with app.worker(["mail", "slow"], burst=True) as worker:
        await worker.wait()
    seen = await api.get("throughput", minutes=5)
    assert sum(one["processed"] for one in seen["total"]) == 4
    assert sum(one["failed"] for one in seen["total"]) == 1
    assert {queue: sum(series) for queue, series in seen["queues"].items()} == {"mail": 3, "slow": 1}
    assert len(seen["total"]) == len(seen["queues"]["mail"]) == 5, "minutes without any are there too"
    assert seen["total"][0]["at"] == seen["window"]["start"]
    assert seen["window"]["span_s"] == 60
    one = await api.get("throughput", queue="mail")
    assert (list(one["queues"]), sum(span["processed"] for span in one["total"])) == (["mail"], 3)
    listed = (await api.get("types"))["types"]
    assert [(row["type"], row["processed"], row["failed"]) for row in listed] == [("good", 3, 0), ("bad", 1, 1)]
    assert "run_s" not in listed[0]["series"][0]
    (own,) = (await api.get("types", type="good"))["types"]
    assert sum(span["run_s"]["count"] for span in own["series"]) == 3
    monkeypatch.setattr(veredus.dashboard.read_routes, "MANY_QUEUES", 1)
    assert (await api.get("throughput"))["queues"] == {}


async def _nothing() -> None: ...


async def _broken() -> None:
    raise ValueError("broken")


async def test_of_many_groups_the_largest_are_shown(app: App, api: Api) -> None:
    for group, size in (("a", 1), ("b", 3), ("c", 2), ("d", 2)):
        for _ in range(size):
            await app.enqueue("t", queue="mail", group=group)
    shown = await api.get("groups", queue="mail", limit=3)
    assert shown["total"] == 4
    assert [(one["group"], one["size"]) for one in shown["groups"]] == [("b", 3), ("c", 2), ("d", 2)]


async def test_groups_lanes_limits_and_schedules(app: App, api: Api, inspector: Inspector) -> None:
    for n in range(3):
        await app.enqueue("t", {"n": n}, queue="mail", group="digest")
    for n in range(4):
        await app.enqueue("t", {"n": n}, queue="mail", order_key=f"k{n % 2}")
    app.limit("mail", Limit(concurrency=3, rate="10/s"))

    @app.cron("@every 1h", name="hourly", queue="mail")
    async def hourly() -> None: ...

    async with app.worker("other", concurrency=1):
        rows = await until(lambda: rows_of(api, "schedules"))
    assert rows[0]["task_type"] == "hourly"
    assert rows[0]["next"] > rows[0]["prev"] if rows[0]["prev"] else rows[0]["next"]
    assert await api.get("groups", queue="mail") == {"total": 1, "groups": [{"group": "digest", "size": 3}]}
    members = await api.get("tasks", queue="mail", state="aggregating", group="digest")
    assert (members["total"], len(members["tasks"])) == (3, 3)
    lanes = (await api.get("order-keys", queue="mail"))["order_keys"]
    assert {lane["order_key"]: lane["size"] for lane in lanes} == {"k0": 2, "k1": 2}
    async with app.worker("mail", concurrency=1):
        limits = await until(lambda: rows_of(api, "limits", queue="mail"))
    assert (limits[0]["scope"], limits[0]["concurrency"], limits[0]["rate"]) == ("queue", 3, "10/s")


async def test_the_server_and_the_gateway(app: App, api: Api) -> None:
    seen = await api.get("server")
    assert seen["info"]["redis_version"]
    assert {finding["kind"] for finding in seen["findings"]} >= {"version", "persistence", "memory"}
    assert await api.get("gateway") == {"nodes": [], "sessions": 0}
    assert await api.get("sessions") == {"sessions": [], "after": ""}


async def test_sessions_come_page_by_page_or_all_of_one_user(api: Api, valkey_server: RealServer) -> None:
    store = Store(connect(valkey_server.url))
    log = Log(store, None)
    sids = sorted([(await log.create(user)).sid for user in ("ann", "bob", "bob", "cem")])
    first = await api.get("sessions", limit=3)
    assert [row["session_id"] for row in first["sessions"]] == sids[:3]
    assert first["after"] == sids[2]
    second = await api.get("sessions", limit=3, after=first["after"])
    assert [row["session_id"] for row in second["sessions"]] == sids[3:]
    assert second["after"] == ""
    assert [row["user"] for row in (await api.get("sessions", user="bob"))["sessions"]] == ["bob", "bob"]
    for sid in sids[1:]:
        await store.sessions.join(sid, "lobby")
    members = await api.get("sessions", group="lobby", limit=2)
    assert [row["session_id"] for row in members["sessions"]] == sids[1:3]
    members = await api.get("sessions", group="lobby", limit=2, after=members["after"])
    assert [row["session_id"] for row in members["sessions"]] == sids[3:]
    await store.close()


@pytest.mark.parametrize(
    ("name", "query", "status", "parts"),
    [
        ("queue", {"queue": "mial"}, 404, ["no queue 'mial'", "did you mean 'mail'"]),
        ("tasks", {"queue": "mial", "state": "pending"}, 404, ["mail"]),
        ("task", {"queue": "mail", "id": "nope"}, 404, ["no task 'nope'"]),
        ("find", {"id": "nope"}, 404, ["no task"]),
        ("tasks", {"queue": "mail", "state": "pendign"}, 400, ["state", "pending"]),
        ("tasks", {"queue": "mail", "state": "pending", "page": 0}, 400, ["page"]),
        ("tasks", {"queue": "mail", "state": "pending", "size": 5000}, 400, ["size", "200"]),
        ("tasks", {"queue": "mail", "state": "pending", "type": "x", "cursor": "}"}, 400, ["cursor"]),
        ("tasks", {"queue": "mail", "state": "aggregating"}, 400, ["group"]),
        ("tasks", {"queue": "mail", "state": "aggregating", "group": "g"}, 404, ["group 'g'"]),
        ("tasks", {"queue": "mail", "state": "pending", "pgae": 2}, 400, ["pgae", "page"]),
        ("tasks", {"state": "pending"}, 400, ["queue"]),
        ("history", {"days": 0}, 400, ["days"]),
        ("schedule", {"id": "nope"}, 404, ["no schedule"]),
        ("session", {"id": "nope"}, 400, ["session"]),
        ("session", {"id": "p000-abcdef"}, 404, ["no session 'p000-abcdef'"]),
        ("job", {"id": "nope"}, 404, ["no job 'nope'"]),
        ("live", {"of": "overveiw"}, 400, ["of", "overview"]),
        ("live", {"what": "overview"}, 400, ["what"]),
        ("live", {}, 400, ["of"]),
        ("tasks", {f"f{n}": n for n in range(60)}, 400, ["query", "50"]),
        ("quues", {}, 404, ["api/quues", "queue"]),
        ("queue/pause", {}, 405, ["POST"]),
    ],
)
async def test_refusals_say_what_is_wrong(
    app: App, api: Api, name: str, query: dict[str, Any], status: int, parts: list[str]
) -> None:
    await app.enqueue("t", queue="mail")
    told = await api.get(name, status, **query)
    assert told["error"]
    for part in parts:
        assert part in told["message"]


async def test_a_server_that_is_gone_is_said_in_one_line(app: App, new_server: Any) -> None:
    import httpx

    from veredus.dashboard import asgi

    server = new_server()
    dashboard = asgi(server.url, token="a-token-for-the-tests")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url="http://dash.test")
    client.headers["authorization"] = "Bearer a-token-for-the-tests"
    assert (await client.get("/api/overview")).status_code == 200
    server.kill()
    answer = await client.get("/api/overview")
    assert answer.status_code == 503
    assert answer.json()["error"] == "redis_unreachable"
    await client.aclose()
    await dashboard.close()


async def test_me_lists_the_actions_that_each_state_allows(api: Api) -> None:
    me = await api.get("me")
    states = {str(state) for state in State}
    assert me["actions"].keys() == me["bulk_actions"].keys() == states
    assert {verb for verbs in me["actions"].values() for verb in verbs} == {
        name.removeprefix("tasks/").removeprefix("task/") for name in CHANGES if name.startswith(("tasks/", "task/"))
    }
    assert me["bulk_actions"] == {
        "active": ["cancel"],
        "pending": ["archive", "delete"],
        "archived": ["run", "delete"],
        **{key: ["run", "archive", "delete"] for key in ("scheduled", "retry", "completed", "aggregating")},
    }
