"""The commands that look: tables as plain text in a pipe, JSON as the inspector's own fields, and empty states."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis.asyncio

from tests.cli.support import Command, fill, lasting
from tests.inspector.support import load_dump
from tests.support import golden
from tests.support.waiting import PATIENCE, forever, until
from veredus import App, current
from veredus.cli.common import STATES
from veredus.inspector.inspector import Inspector

NOT_PLAIN = re.compile(r"[\x1b\x07\u2500-\u259f]")
Ask = Callable[[Inspector], Coroutine[Any, Any, Any]]


async def _dicts(rows: Coroutine[Any, Any, Any]) -> list[Any]:
    return [row.as_dict() for row in await rows]


async def _one(row: Coroutine[Any, Any, Any]) -> Any:
    task = await row
    return task.as_dict() | ({"traceback": task.traceback} if task.traceback else {})


async def _searched(inspector: Inspector) -> list[Any]:
    return [task.as_dict() async for task in inspector.search("mail", "scheduled", type="sms:*")]


SAME: list[tuple[str, Ask, str]] = [
    ("queue list", lambda i: _dicts(i.stats()), "mail"),
    ("queue history mail --days 3", lambda i: _dicts(i.history("mail", 3)), "66.7%"),
    ("task inspect -q mail -i later", lambda i: _task(i, "later"), "2040-01-01T00:00:00Z"),
    ("task inspect -q mail -i [b]odd", lambda i: _task(i, "[b]odd"), "email:[bold]x[/bold]"),
    ("task inspect -q mail -i failed", lambda i: _task(i, "failed"), "timeout of [host] 1"),
    ("task inspect -q mail -i done", lambda i: _task(i, "done"), "42"),
    ("task list -q mail -s pending", lambda i: _dicts(i.tasks("mail", "pending")), "[b]odd"),
    (
        "task list -q mail -s pending --page 2 --size 1",
        lambda i: _dicts(i.tasks("mail", "pending", page=2, size=1)),
        "",
    ),
    ("task list -q mail -s scheduled", lambda i: _dicts(i.tasks("mail", "scheduled")), "later-sms"),
    ("task list -q mail -s scheduled --type sms:*", _searched, "later-sms"),
    ("task list -q mail -s retry", lambda i: _dicts(i.tasks("mail", "retry")), "timeout of [host] 1 second line"),
    ("task list -q mail -s archived --error TIMEOUT", lambda i: _dicts(i.tasks("mail", "archived")), "0/0"),
    ("task list -q mail -s completed", lambda i: _dicts(i.tasks("mail", "completed")), "42"),
    (
        "task list -q mail -s aggregating -g digest",
        lambda i: _dicts(i.tasks("mail", "aggregating", group="digest")),
        "member",
    ),
    ("group list -q mail", lambda i: _dicts(i.groups("mail")), "digest"),
    ("queue inspect mail other", lambda i: _both(i), "processed_total"),
]


async def _task(inspector: Inspector, task_id: str) -> dict[str, Any]:
    shown = await _one(inspector.task("mail", task_id))
    attempts, waits = await inspector.attempts("mail", task_id), await inspector.waits("mail", task_id)
    return {**shown, "attempts": [one.as_dict() for one in attempts], "waits": [one.as_dict() for one in waits]}


async def _both(inspector: Inspector) -> list[Any]:
    return [(await inspector.queue(name, memory=True)).as_dict() for name in ("mail", "other")]


def test_json_is_what_the_inspector_says_and_tables_are_plain(veredus: Command) -> None:
    fill(veredus.url)
    for line, ask, text in SAME:
        expected = lasting(veredus.look(ask))
        assert expected, line
        assert lasting(veredus.do(f"{line} --json").json) == expected, line
        shown = veredus.do(line)
        assert (shown.code, shown.err) == (0, ""), line
        assert text in shown.out, line
        assert not NOT_PLAIN.search(shown.out), line


def test_a_durable_run_is_shown_as_a_timeline(veredus: Command) -> None:
    app = App(veredus.url)

    async def charge() -> str:
        return "receipt"

    @app.task
    async def pack(n: int) -> int:
        return n

    @app.task(task_id="order-7")
    async def order() -> None:
        await current().step(charge)
        await current().gather("packing", [pack.call(n) for n in range(30)])
        await current().wait_for("approved:7")

    async def until_it_waits() -> None:
        async with app, app.worker(), app.inspector() as inspector:
            await order.enqueue()

            async def waits() -> bool:
                run = await inspector.durable_run("default", "order-7")
                return run is not None and run.waiting == "event approved:7"

            await until(waits)

    asyncio.run(until_it_waits())
    shown = veredus.do("task show order-7").out
    assert re.search(r"run \w+, waits for event approved:7\n", shown)
    time = r"\d\d-\d\d \d\d:\d\d:\d\d\.\d\d\d"
    assert re.search(rf'\n  {time} +[\d.]+ ms  done       step charge: "receipt"\n', shown)
    assert re.search(rf"\n  {time} +[\d.]+ m?s  done       children packing: 30 of 30 have ended\n", shown)
    assert re.search(r"\n +done       default/order-7:\w+:packing:19: 19\n +\.\.\. and 10 more\n", shown)
    assert re.search(rf"\n  {time} +waiting    event approved:7\n", shown)
    assert "waits: event approved:7, since" in shown
    assert "waiting for event approved:7" in veredus.do("task list -q default -s scheduled").out


def test_a_task_is_shown_with_its_attempts(veredus: Command) -> None:
    fill(veredus.url)
    key = "asynq:{mail}:t:failed"
    record = {
        "attempt": 1,
        "outcome": "timed out",
        "worker": "h:1:w",
        "start": 100.0,
        "end": 100.5,
        "class": "TaskTimeout",
    }
    record |= {
        "error": "ran\nover",
        "place": "shop.pay:3",
        "traceback": "Trace:\n  File \x1b[31m1",
        "log": [[100.1, "half"]],
    }
    veredus.redis.hset(key, mapping={"attempts": 1, "attempt:1": json.dumps(record)})
    shown = veredus.do("task show failed").out
    for text in (
        "attempt 1: timed out after 0.500 s",
        "worker   h:1:w",
        "error    TaskTimeout: ran over",
        "at       shop.pay:3",
    ):
        assert text in shown
    assert "half\n  Trace:\n    File  [31m1\n" in shown
    (attempt, *_) = veredus.do("task show -q mail -i failed --json").json["attempts"]
    assert (attempt["seconds"], attempt["log"][0]["text"]) == (0.5, "half")
    veredus.do("task show").refused(2, "ID", "one task")
    veredus.redis.hdel(key, "attempts")
    assert "no record. Go or an earlier version of Veredus ran it." in veredus.do("task show failed").out


def test_a_failed_task_is_shown_with_its_traceback(veredus: Command) -> None:
    fill(veredus.url)
    key, field = "asynq:{mail}:t:failed", "traceback"
    task = veredus.look(lambda inspector: inspector.task("mail", "failed"))
    veredus.redis.hset(key, field, f"{task.last_failed} {task.retried}\nTraceback:\n  File \x1b[31m1\nValueError: x")
    veredus.redis.hdel(key, "attempts")  # as a version without records left it
    lines = ["Traceback:", "  File  [31m1", "ValueError: x"]
    shown = veredus.do("task inspect -q mail -i failed").out
    assert shown.rstrip().split("\n")[-3:] == lines, "no terminal does what an error says"
    assert veredus.do("task inspect -q mail -i failed --json").json["traceback"].split("\n")[-1] == "ValueError: x"
    veredus.redis.hset(key, field, "1 0\nTraceback of another failure")
    assert "Traceback" not in veredus.do("task inspect -q mail -i failed").out


def test_stats(veredus: Command) -> None:
    fill(veredus.url)
    found = veredus("stats", "--json").json
    assert lasting(found["queues"]) == lasting(veredus.look(lambda i: _dicts(i.stats())))
    aggregate = dict.fromkeys(STATES, 1) | {"active": 0, "pending": 3, "scheduled": 2, "processed": 3, "failed": 2}
    assert found["aggregate"].pop("timestamp") == max(queue["timestamp"] for queue in found["queues"])
    assert found["aggregate"] == aggregate
    assert found["redis"]["redis_version"]
    shown = veredus("stats")
    assert re.search(r"^mail +0 +2 +1 +2 +1 +1 +1 .* 3 +2 *$", shown.out, re.MULTILINE)
    assert "total   3 pending, 1 aggregating, 2 scheduled, 1 retry, 1 archived, 1 completed, 3 processed" in shown.out
    assert "redis_version" in shown.out
    veredus("queue", "pause", "other")
    assert "other (paused)" in veredus("stats").out
    assert not NOT_PLAIN.search(shown.out)


def test_a_search_has_pages(veredus: Command) -> None:
    app = App(veredus.url)
    app.enqueue_many_sync(app.call("n", n, queue="mail", task_id=f"t{n}") for n in range(10))
    app.close_sync()
    words = ("task", "list", "-q", "mail", "-s", "pending", "--type", "n", "--json", "--size", "4")
    pages = [[task["id"] for task in veredus(*words, "--page", str(page)).json] for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [4, 4, 2, 0]
    assert len({task_id for page in pages for task_id in page}) == 10
    payload = veredus(*words, "--payload", "7").json
    assert [task["id"] for task in payload] == ["t7"]


@pytest.mark.parametrize("name", ["archived", "retry", "scheduled", "completed", "pending-variants", "headers"])
def test_json_is_what_gos_inspector_says(veredus: Command, name: str) -> None:
    scenario = golden.load(name)

    async def load() -> None:
        async with redis.asyncio.Redis(unix_socket_path=veredus.url.removeprefix("unix://")) as client:
            await load_dump(client, scenario["redis"])

    asyncio.run(load())
    compared = 0
    for queue, seen in scenario["go_inspector"]["by_queue"].items():
        for state, tasks in seen["tasks"].items():
            shown = veredus("task", "list", "-q", queue, "-s", state, "--size", "1000", "--json").json
            assert lasting(shown) == lasting(tasks)
            compared += len(tasks)
        (info,) = veredus("queue", "inspect", queue, "--json").json
        assert set(info) == set(seen["info"])
        assert info["size"] == seen["info"]["size"]
    assert compared


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("stats", "No queue yet. Enqueue a task, or try: veredus demo"),
        ("stats", "total   no tasks"),
        ("queue list", "No queue yet"),
        ("task leases", "No task is running"),
        ("server list", "No worker is running. Start one: veredus worker"),
        ("cron list", "No scheduler is running"),
        ("top --once", "no worker is running"),
    ],
)
def test_an_empty_server(veredus: Command, line: str, text: str) -> None:
    shown = veredus.do(line)
    assert (shown.code, shown.err) == (0, "")
    assert text in shown.out
    assert veredus.everything() == {}
    if line.split()[0] not in ("stats", "top"):
        assert veredus.do(f"{line} --json").json == []


def test_an_empty_queue(veredus: Command) -> None:
    fill(veredus.url)
    for state in ("active", "scheduled", "retry", "archived", "completed"):
        assert veredus("task", "list", "-q", "other", "-s", state).out == f"No {state} task in queue 'other'.\n"
        assert veredus("task", "list", "-q", "other", "-s", state, "--json").json == []
    assert veredus("group", "list", "-q", "other").out == "No group of queue 'other' has tasks.\n"


async def no_lease_is_left(run: Any) -> None:
    """Ticks of the other queue run for a moment each; between them there is no lease."""

    async def none() -> bool:
        return bool((await run("task leases -q other")).out == "No task is running.\n")

    await until(none, what="a moment without a lease")


async def test_workers_leases_and_schedules(veredus: Command) -> None:
    app = App(veredus.url)
    started = asyncio.Event()

    @app.task(name="slow", queue="mail")
    async def slow() -> None:
        started.set()
        await forever()

    app.schedule("@every 1s", app.call("tick", {"a": "[b]"}, queue="other"))

    async def run(line: str) -> Any:
        return await asyncio.to_thread(veredus.do, line)

    async def equal(line: str, found: Any) -> Any:
        shown = (await run(f"{line} --json")).json
        assert shown
        assert lasting(shown) == lasting([row.as_dict() for row in found])
        return shown

    async with app, app.worker(queues=["mail", "other"], concurrency=3, shutdown_timeout=0.1):
        handle = await slow.using(task_id="running").enqueue()
        await asyncio.wait_for(started.wait(), PATIENCE)
        inspector = app.inspector()

        async def shown_to_all() -> bool:
            servers, entries = await inspector.servers(), await inspector.scheduler_entries()
            busy = bool(servers and servers[0].active_workers)
            return busy and bool(entries and await inspector.scheduler_events(entries[0].id))

        await until(shown_to_all, what="the record of the worker and of a tick")
        servers, entries = await inspector.servers(), await inspector.scheduler_entries()
        (lease,) = await equal("task leases -q mail", await inspector.leases("mail"))
        assert (lease["task_id"], lease["ours"]) == ("running", True)
        assert re.search(r"mail +running +slow +\d+ s ", (await run("task leases -q mail")).out)
        await no_lease_is_left(run)
        (server,) = (await run("server list --json")).json
        assert [one["task_id"] for one in server["active_workers"]] == ["running"]
        assert (server["id"], server["queues"]) == (servers[0].id, {"mail": 1, "other": 1})
        for line in ("server list", "top --once"):
            assert re.search(r"active +1/3 +mail=1, other=1", (await run(line)).out)
        (entry,) = (await run("cron list --json")).json
        assert (entry["id"], entry["spec"], entry["task_type"]) == (entries[0].id, "@every 1s", "tick")
        shown = (await run("cron list")).out
        assert '{"a":"[b]"}' in shown
        assert entry["id"] in shown
        events = (await run(f"cron history {entry['id']} --json --size 1000")).json
        assert events[-1] == (await inspector.scheduler_events(entry["id"], size=1000))[-1].as_dict()
        assert events[0]["task_id"] in (await run(f"cron history {entry['id']}")).out
        refused = await run(f"cron history {entry['id']} --page 0")
        refused.refused(2, "page")
        (await run("task cancel nobody")).refused(1, "no task 'nobody' in any queue")
        (await run("task cancel runnin")).refused(1, "no task 'runnin'", "did you mean 'running'")
        (await run("task cancel -q mial running")).refused(1, "did you mean 'mail'")
        told = await run("task cancel running --then delete")
        assert told.out == "running: cancelling (then: delete)\n"

        async def is_gone() -> bool:
            return (await handle.status()).state == "gone"

        await until(is_gone)
        (one,) = (await run(f"server inspect {servers[0].id[:9]} --json")).json
        assert one["id"] == servers[0].id
        assert servers[0].host in (await run(f"server inspect {servers[0].host}:{servers[0].pid}")).out
        (await run(f"server inspect {servers[0].id[:-1]}x")).refused(1, "did you mean", servers[0].id)
        (await run(f"cron history {entry['id'][:-1]}")).refused(1, "no schedule", f"did you mean {entry['id']!r}")


def test_top_once(veredus: Command) -> None:
    fill(veredus.url)
    veredus("queue", "pause", "other")
    shown = veredus("top", "--once")
    assert shown.code == 0
    assert re.search(r"^mail +0 +2 +1 +2 +1 +1 +1 +\S+ ms +2$", shown.out, re.MULTILINE), shown.out
    assert "other (paused)" in shown.out
    assert not NOT_PLAIN.search(shown.out)


def test_names_that_are_no_text(veredus: Command) -> None:
    """Ids of damaged tasks may be any bytes: they are shown, not stumbled over."""
    veredus("task", "enqueue", "-t", "a", "-l", "1", "--id", "sound")
    veredus.redis.rpush("asynq:{default}:pending", b"\xff\x1b[31m")
    found = veredus("doctor", "--json")
    assert '"task_id": "\\udcff\\u001b[31m"' in found.out
    shown = veredus("doctor")
    assert "dangling" not in shown.err
    assert not NOT_PLAIN.search(shown.out)


def test_errors_and_statistics(veredus: Command) -> None:
    fill(veredus.url)
    errors = veredus.do("errors --last 1h --type email:* --queue mail --json").json
    (group,) = [one for one in errors if "timeout of" in one["error"]]
    assert (group["error_class"], group["queues"]) == ("ValueError", ["mail"])
    shown = veredus.do("errors").out
    assert group["id"] in shown
    assert "ValueError: timeout of [host]" in shown
    one = veredus.do(f"errors {group['id']}").out
    assert group["place"] in one
    assert veredus.do(f"errors {group['id']} --json").json["count"] == group["count"]
    veredus.do("errors nothing").refused(2, "error group", "nothing")
    veredus.do("errors --run").refused(2, "GROUP", "--run")
    veredus.do(f"errors {group['id']} --run").refused(2, "--yes")
    (stats,) = [row for row in veredus.do("stats --types --last 2h --json").json if row["type"] == group["type"]]
    assert stats["failed"] >= group["count"] > 0
    table = veredus.do("stats --types").out
    assert "wait p99" in table
    assert group["type"] in table
    before = veredus.look(lambda inspector: inspector.queue("mail"))
    done = veredus.do(f"errors {group['id']} --delete --yes").out
    after = veredus.look(lambda inspector: inspector.queue("mail"))
    gone = before.retry + before.archived - after.retry - after.archived
    assert gone > 0
    assert done.startswith(f"delete: {gone} of ")
    veredus.redis.flushall()
    assert veredus.do("errors").out.strip() == "No task failed in the last 24 h."
    assert veredus.do("stats --types --last 90s").out.strip() == "Nothing ran in the last 90 s."
