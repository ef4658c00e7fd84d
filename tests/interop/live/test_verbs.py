"""Inspector, pause, cancel, groups and schedules of either side on tasks of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoError, GoPeer, Release, go_peer
from tests.interop.live.python_side import PythonSide, facts, same_listing
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until
from veredus import App, Job, QueueNotEmpty

pytestmark = VALKEY_ONLY
WAITING = ("pending", "scheduled", "retry", "archived", "completed", "aggregating")


async def _bring(state: str, app: App, peer: GoPeer, look: Look) -> list[str]:
    """Two tasks in this state, one sent by us and run by Go if need be, one the other way round."""
    ours: dict[str, Any] = {"queue": "shared", "max_retry": 0 if state == "archived" else 5}
    theirs = dict(ours)
    if state == "scheduled":
        ours["delay"], theirs["process_in_ms"] = 3600, 3_600_000
    elif state == "aggregating":
        ours["group"] = theirs["group"] = "g"
    elif state == "completed":
        ours["retention"], theirs["retention_ms"] = 600, 600_000
    payload = {"behave": "fail"} if state in ("retry", "archived") else {"result": "r"}
    handle = await app.enqueue("py:work", payload, **ours)
    if state in ("retry", "archived", "completed"):
        await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
        await look.ends(handle.id, state)
        await peer.do("stop")
    (sent,) = await peer.enqueue("py:work", payload, **theirs)
    if state in ("retry", "archived", "completed"):
        async with app.worker("shared", **FAST):
            await look.ends(sent["id"], state)
    return [handle.id, sent["id"]]


@pytest.mark.parametrize("state", WAITING)
async def test_both_inspectors_list_tasks_of_both_origins_alike(
    program: Path, url: str, redis_client: Any, state: str
) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        ids = await _bring(state, app, peer, look)
        listed = await same_listing(app, peer, "shared", state, "g" if state == "aggregating" else "")
        assert {row["id"] for row in listed} == set(ids)
        theirs = await peer.do("queue", queue="shared")
        ours = await app.inspector().queue("shared")
        for name in ("pending", "active", "scheduled", "retry", "archived", "completed", "aggregating", "groups"):
            assert getattr(ours, name) == theirs[name], name
        for name in ("processed", "failed", "processed_total", "failed_total", "paused", "size"):
            assert getattr(ours, name) == theirs[name], name
        assert await peer.do("queues") == sorted(await app.inspector().queues())
        for task_id in ids:
            mine = facts(await app.inspector().task("shared", task_id))
            go = await peer.task("shared", task_id)
            assert abs(mine.pop("next_at") - go.pop("next_at")) <= 2
            assert mine == go
    assert await check_invariant(redis_client) == []


async def test_both_inspectors_list_active_tasks_of_both_alike(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        slow = {"behave": "wait", "ms": 60_000}
        await peer.serve("py:work", queue="shared", concurrency=1)
        one = await app.enqueue("py:work", slow, queue="shared")
        await look.ends(one.id, "active")
        async with app.worker("shared", **{**FAST, "shutdown_timeout": 0.1}):
            (two,) = await peer.enqueue("py:work", slow, queue="shared")
            await look.ends(two["id"], "active")
            listed = await same_listing(app, peer, "shared", "active")
            assert {row["id"] for row in listed} == {one.id, two["id"]}

            async def both_are_shown() -> bool:  # a worker writes its record in a thread of its own
                return len(await peer.do("servers")) == 2

            await until(both_are_shown)
            servers = {server["PID"]: server for server in await peer.do("servers")}
            for server in await app.inspector().servers():
                assert servers[server.pid]["Queues"] == dict(server.queues)
                assert servers[server.pid]["Status"] == server.status
            assert len(servers) == 2
        await peer.do("cancel", id=one.id)
        await look.ends(one.id, "retry")
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("state", ["scheduled", "retry", "archived", "aggregating"])
@pytest.mark.parametrize("by", ["go", "us"])
async def test_run_makes_a_task_of_either_origin_pending_and_it_runs(
    program: Path, url: str, redis_client: Any, state: str, by: str
) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        ids = await _bring(state, app, peer, look)
        for task_id in ids:
            if by == "go":
                await peer.do("run", queue="shared", id=task_id)
            else:
                await app.inspector().run("shared", task_id)
        side.began.clear()
        async with app.worker("shared", **FAST):
            await until(lambda: {job.id for job in side.began} >= set(ids))
    assert await check_invariant(redis_client) == []


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "aggregating"])
@pytest.mark.parametrize("by", ["go", "us"])
async def test_archive_and_delete(program: Path, url: str, redis_client: Any, state: str, by: str) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        ids = await _bring(state, app, peer, look)
        for task_id in ids:
            if by == "go":
                await peer.do("archive", queue="shared", id=task_id)
            else:
                await app.inspector().archive("shared", task_id)
        listed = await same_listing(app, peer, "shared", "archived")
        assert {row["id"] for row in listed} == set(ids)
        if by == "go":
            assert await peer.do("delete_all", queue="shared", state="archived") == 2
        else:
            for task_id in ids:
                await app.inspector().delete("shared", task_id)
        for task_id in ids:
            assert await look.state(task_id) == "gone"
    assert await check_invariant(redis_client) == []


async def test_go_refuses_to_touch_what_we_run(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        handle = await app.enqueue("py:work", {"behave": "sleep", "ms": 600_000}, queue="shared")
        await until(lambda: side.began)
        for verb in ("run", "archive", "delete"):
            with pytest.raises(GoError, match=r"running|active"):
                await peer.do(verb, queue="shared", id=handle.id)
        with pytest.raises(GoError, match=r"running|active"):
            await peer.do("delete_queue", queue="shared", force=True)
        assert await look.state(handle.id) == "active"
        await app.inspector().cancel("shared", handle.id, then="delete")
        await look.ends(handle.id, "gone")
    assert await check_invariant(redis_client) == []


async def test_pause_and_resume_from_either_side_hold_for_both(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared")
        async with app.worker("shared", **FAST):
            for by_go in (True, False):
                await (peer.do("pause", queue="shared") if by_go else app.inspector().pause("shared"))
                handle = await app.enqueue("py:work", {}, queue="shared")
                await pause(1.5, proves="neither side takes a task of a paused queue")
                assert await look.state(handle.id) == "pending"
                assert (await app.inspector().queue("shared")).paused is True
                await (app.inspector().resume("shared") if by_go else peer.do("unpause", queue="shared"))
                await look.ends(handle.id, "gone")
    assert await check_invariant(redis_client) == []


async def test_go_cancels_an_attempt_of_ours_and_we_one_of_go(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    slow = {"behave": "wait", "ms": 60_000}
    async with side.app as app, go_peer(program, url) as peer:
        async with app.worker("shared", **FAST):
            (sent,) = await peer.enqueue("py:work", slow, queue="shared")
            await until(lambda: side.began)
            await peer.do("cancel", id=sent["id"])
            await look.ends(sent["id"], "retry")
        await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
        handle = await app.enqueue("py:work", slow, queue="shared")
        await until(lambda: peer.began)
        await app.inspector().cancel_processing(handle.id)
        await look.ends(handle.id, "retry")
        assert (await peer.task("shared", handle.id))["error"] == "context canceled"
    assert await check_invariant(redis_client) == []


async def test_a_payload_replaced_by_go_is_what_we_run(
    program: Path, release: Release, url: str, redis_client: Any
) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        handle = await app.enqueue("py:work", {"n": 1}, queue="shared", delay=3600)
        if not release.headers:
            with pytest.raises(GoError, match=r"0\.25 cannot"):
                await peer.do("update", queue="shared", id=handle.id, payload="")
            return
        await peer.do("update", queue="shared", id=handle.id, payload="eyJuIjoyfQ==")
        await app.inspector().run("shared", handle.id)
        async with app.worker("shared", **FAST):
            await look.ends(handle.id, "gone")
    assert [job.payload for job in side.ran] == [b'{"n":2}']
    assert await check_invariant(redis_client) == []


async def test_a_group_of_both_clients_is_aggregated_by_go(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("py:member", b"a", queue="shared", group="g")
        await peer.enqueue("py:member", b"b", queue="shared", group="g")
        await peer.serve("aggregated:g", queue="shared", group_grace_ms=1000)
        await until(lambda: peer.ran)
        (ran,) = peer.ran
        assert sorted(ran["payload"].split(b",")) == [b"a", b"b"]
        await look.ends(ran["id"], "gone")
        assert await app.inspector().groups("shared") == []
    assert await check_invariant(redis_client) == []


async def test_a_group_of_both_clients_is_aggregated_by_us(program: Path, url: str, redis_client: Any) -> None:
    app = App(url)
    members: list[bytes] = []

    @app.aggregate("g", queue="shared", max_size=2)
    def join(group: str, jobs: list[Job]) -> Any:
        members.extend(job.payload for job in jobs)
        return app.call("go:joined", b",".join(job.payload for job in jobs))

    async with app, go_peer(program, url) as peer:
        await peer.serve("go:joined", queue="shared")
        async with app.worker("shared", **FAST):
            await peer.enqueue("py:member", b"a", queue="shared", group="g")
            await app.enqueue("py:member", b"b", queue="shared", group="g")
            await until(lambda: peer.ran)
    assert sorted(members) == [b"a", b"b"]
    assert peer.ran[0]["payload"] in (b"a,b", b"b,a")
    assert await check_invariant(redis_client) == []


async def test_a_schedule_of_go_runs_with_us_and_both_list_it(program: Path, url: str, redis_client: Any) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        entry = await peer.schedule("@every 1s", "py:tick", b"{}", queue="shared", max_retry=2)
        await until(lambda: len(side.ran) >= 2)

        async def listed() -> Any:
            return await app.inspector().scheduler_entries()

        (ours,) = await until(listed)
        (theirs,) = await peer.do("entries")
        assert (ours.id, ours.spec, ours.task_type) == (entry, theirs["spec"], theirs["type"])
        assert sorted(ours.opts) == sorted(theirs["options"])
    assert await check_invariant(redis_client) == []


async def test_go_refuses_to_delete_a_queue_with_tasks_and_so_do_we(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("py:work", queue="shared")
        with pytest.raises(GoError, match="not empty"):
            await peer.do("delete_queue", queue="shared")
        with pytest.raises(QueueNotEmpty):
            await app.inspector().delete_queue("shared")
        await peer.do("delete_queue", queue="shared", force=True)
        assert await app.inspector().queues() == []
