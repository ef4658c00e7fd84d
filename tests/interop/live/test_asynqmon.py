"""asynqmon's JSON API lists tasks of both origins, servers, schedules and groups as our inspector does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.compile import MONITOR
from tests.interop.live.peer import compiled, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.test_verbs import _bring
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.model.info import TaskInfo

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("go")]

SLOW = {"behave": "wait", "ms": 60_000}
COUNTS = "size groups pending active scheduled retry archived completed aggregating processed failed paused"


@pytest.fixture(scope="session")
def monitor_program(go: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One release of it exists that has all states; it is built with the newest Asynq."""
    return compiled(MONITOR, tmp_path_factory.mktemp("monitor") / "monitor")


@contextmanager
def asynqmon(program: Path, url: str) -> Iterator[httpx.Client]:
    command = (program, url.replace("unix://", "redis-socket://"))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with httpx.Client(base_url=f"http://{process.stdout.readline().strip()}", timeout=PATIENCE) as client:
            yield client
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def asked(monitor: httpx.Client, path: str) -> Any:
    answer = monitor.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def seconds(text: str) -> int:
    """Unix seconds of what Go writes; 0 for no instant."""
    return 0 if text in ("", "-") or text.startswith("0001-") else int(datetime.fromisoformat(text).timestamp())


def common(info: TaskInfo) -> dict[str, Any]:
    return {
        "id": info.id, "type": info.type, "payload": info.payload.decode(), "queue": info.queue,
        "max_retry": info.max_retry, "retried": info.retried, "error_message": info.last_error,
    }  # fmt: skip


def compare(state: str, their: dict[str, Any], our: TaskInfo) -> None:
    expected = common(our)
    assert {name: their[name] for name in expected} == expected
    if state in ("scheduled", "retry"):  # ours to the millisecond, theirs rounded up
        assert seconds(their["next_process_at"]) - our.next_ms // 1000 in (0, 1)
    elif state == "archived":
        assert seconds(their["last_failed_at"]) == our.last_failed
    elif state == "completed":
        assert (seconds(their["completed_at"]), their["result"]) == (our.completed, our.result.decode())
        assert 0 < their["ttl_seconds"] <= our.retention
    elif state == "aggregating":
        assert their["group"] == our.group
    elif state == "active":
        assert their["is_orphaned"] == our.is_orphaned


async def same_listing(app: App, monitor: httpx.Client, queue: str, state: str) -> set[str]:
    place = f"groups/g/{state}_tasks" if state == "aggregating" else f"{state}_tasks"
    answer = asked(monitor, f"queues/{queue}/{place}?size=100")
    ours = await app.inspector().tasks(queue, state, group="g" if state == "aggregating" else None, size=100)
    assert [row["id"] for row in answer["tasks"]] == [info.id for info in ours]
    for their, our in zip(answer["tasks"], ours, strict=True):
        compare(state, their, our)
        one = asked(monitor, f"queues/{queue}/tasks/{our.id}")
        assert (one["state"], one["timeout_seconds"]) == (our.state, our.timeout)
        assert seconds(one["deadline"]) == our.deadline
    return {info.id for info in ours}


async def same_numbers(app: App, monitor: httpx.Client) -> None:
    theirs = {row["queue"]: row for row in asked(monitor, "queues")["queues"]}
    ours = {info.queue: info for info in await app.inspector().stats()}
    assert set(theirs) == set(ours)
    for queue, info in ours.items():
        for name in COUNTS.split():
            assert theirs[queue][name] == getattr(info, name), (queue, name)
        (today,) = asked(monitor, f"queues/{queue}")["history"][:1]
        (mine,) = await app.inspector().history(queue, 1)
        assert (today["date"], today["processed"], today["failed"]) == (mine.date, mine.processed, mine.failed)


async def test_listings_of_every_state_and_the_numbers_of_queues_and_groups(
    monitor_program: Path, newest_program: Path, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(newest_program, url) as peer:
        brought = {}
        for state in ("retry", "archived", "completed", "scheduled", "aggregating", "pending"):
            brought[state] = set(await _bring(state, app, peer, look))
        with asynqmon(monitor_program, url) as monitor:
            for state, ids in brought.items():
                assert await same_listing(app, monitor, "shared", state) == ids, state
            await same_numbers(app, monitor)
            groups = asked(monitor, "queues/shared/groups")["groups"]
            assert groups == [info.as_dict() for info in await app.inspector().groups("shared")]
            assert groups == [{"group": "g", "size": 2}]
            assert monitor.get("/").headers["content-type"].startswith("text/html")
    assert await check_invariant(redis_client) == []


async def test_active_tasks_servers_and_schedules(
    monitor_program: Path, newest_program: Path, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    side.app.schedule("@every 1s", side.app.call("tick", {"n": 1}, queue="ticks", max_retry=3))
    async with side.app as app, go_peer(newest_program, url) as peer:
        await peer.serve("py:work", queue="shared", concurrency=1)
        one = await app.enqueue("py:work", SLOW, queue="shared")
        await look.ends(one.id, "active")
        async with app.worker("shared", **{**FAST, "shutdown_timeout": 0.1}):
            (two,) = await peer.enqueue("py:work", SLOW, queue="shared")
            await look.ends(two["id"], "active")
            entry = await peer.schedule("@every 2h", "tick", b'{"n":2}', queue="ticks", max_retry=2)

            async def all_shown() -> bool:
                shown = {w.task_id for s in await app.inspector().servers() for w in s.active_workers}
                entries = await app.inspector().scheduler_entries()
                return {one.id, two["id"]} <= shown and len(entries) == 2 and any(e.prev_ns for e in entries)

            await until(all_shown)
            with asynqmon(monitor_program, url) as monitor:
                assert await same_listing(app, monitor, "shared", "active") == {one.id, two["id"]}
                await same_servers(app, monitor, {one.id, two["id"]})
                await same_entries(app, monitor, entry)
            await app.inspector().cancel("shared", two["id"], then="delete")
            await look.ends(two["id"], "gone")
        await peer.do("cancel", id=one.id)
        await look.ends(one.id, "retry")
    assert await check_invariant(redis_client) == []


async def same_servers(app: App, monitor: httpx.Client, ids: set[str]) -> None:
    theirs = {row["pid"]: row for row in asked(monitor, "servers")["servers"]}
    ours = {info.pid: info for info in await app.inspector().servers()}
    assert set(theirs) == set(ours)
    for pid, info in ours.items():
        their = theirs[pid]
        assert (their["id"], their["host"], their["concurrency"]) == (info.id, info.host, info.concurrency)
        assert (their["queue_priorities"], their["status"]) == (dict(info.queues), info.status)
        assert their["strict_priority_enabled"] == info.strict_priority
        assert seconds(their["start_time"]) == info.started_ns // 10**9
        shown = {row["task_id"]: row for row in their["active_workers"] if row["task_id"] in ids}
        for worker in info.active_workers:
            if worker.task_id in ids:
                row = shown.pop(worker.task_id)
                assert (row["queue"], row["task_type"]) == (worker.queue, worker.task_type)
                assert row["task_payload"] == worker.task_payload.decode()
                assert seconds(row["start_time"]) == worker.started_ns // 10**9
        assert shown == {}


async def same_entries(app: App, monitor: httpx.Client, entry: str) -> None:
    theirs = {row["id"]: row for row in asked(monitor, "scheduler_entries")["entries"]}
    ours = {info.id: info for info in await app.inspector().scheduler_entries()}
    assert set(theirs) == set(ours)
    assert entry in ours
    for entry_id, info in ours.items():
        their = theirs[entry_id]
        assert (their["spec"], their["task_type"]) == (info.spec, info.task_type)
        assert their["task_payload"] == info.task_payload.decode()
        assert sorted(their["options"]) == sorted(info.opts)
        events = asked(monitor, f"scheduler_entries/{entry_id}/enqueue_events?size=100")["events"]
        assert bool(events) == bool(info.prev_ns)
