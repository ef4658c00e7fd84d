"""What Asynq's command line prints beside tasks comes from calls of Go's inspector: their answers equal ours."""

from __future__ import annotations

import base64
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import SLOW
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until

pytestmark = VALKEY_ONLY


def nanoseconds(text: str) -> int:
    """Go's text of an instant."""
    head, _, rest = text.partition(".")
    digits, zone = (rest[:-1], "+00:00") if rest.endswith("Z") else (rest[:-6], rest[-6:])
    if not rest:
        head, digits, zone = (text[:-1], "", "+00:00") if text.endswith("Z") else (text[:-6], "", text[-6:])
    return int(datetime.fromisoformat(head + zone).timestamp()) * 10**9 + int(digits.ljust(9, "0") or 0)


async def test_servers_and_what_they_run(program: Path, url: str, redis_client: Any) -> None:
    """`asynq server ls`, with one of each kind."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queues={"for-go": 3, "other": 1}, concurrency=4)
        theirs = await app.enqueue("go:work", SLOW, queue="for-go")
        async with app.worker({"shared": 2, "other": 5}, concurrency=7, strict=True, **FAST):
            (ours,) = await peer.enqueue("py:work", SLOW, queue="shared")

            async def shown() -> bool:
                servers = await app.inspector().servers()
                return {one.task_id for server in servers for one in server.active_workers} == {theirs.id, ours["id"]}

            await until(shown)
            by_go = {server["PID"]: server for server in await peer.do("servers")}
            by_us = {server.pid: server for server in await app.inspector().servers()}
            assert set(by_go) == set(by_us)
            for pid, server in by_us.items():
                row = by_go[pid]
                assert (row["ID"], row["Host"], row["Status"]) == (server.id, server.host, server.status)
                assert (row["Concurrency"], row["Queues"]) == (server.concurrency, dict(server.queues))
                assert row["StrictPriority"] == server.strict_priority == (server.concurrency == 7)
                assert nanoseconds(row["Started"]) == server.started_ns
                (worker,), (running,) = row["ActiveWorkers"], server.active_workers
                assert (worker["TaskID"], worker["TaskType"]) == (running.task_id, running.task_type)
                assert (worker["Queue"], base64.b64decode(worker["TaskPayload"])) == (
                    running.queue,
                    running.task_payload,
                )
                assert nanoseconds(worker["Started"]) == running.started_ns
                assert nanoseconds(worker["Deadline"]) == running.deadline_ns
            await app.inspector().cancel("shared", ours["id"], then="delete")
            await look.ends(ours["id"], "gone")
        await app.inspector().cancel("for-go", theirs.id, then="delete")
        await look.of("for-go").ends(theirs.id, "retry")
    assert await check_invariant(redis_client) == []


async def test_counts_per_day_and_the_events_of_schedules(program: Path, url: str, redis_client: Any) -> None:
    """`asynq queue inspect` and `asynq cron history`, of what both sides ran and fired."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    side.app.schedule("@every 1s", side.app.call("tick", {"n": 1}, queue="ticks"))
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=3_600_000)
        for behave in ("ok", "fail"):
            handle = await app.enqueue("py:work", {"behave": behave}, queue="shared")
            await look.ends(handle.id, "gone" if behave == "ok" else "retry")
        await peer.do("stop")
        await peer.schedule("@every 1s", "tick", queue="ticks")
        async with app.worker("shared", **FAST):
            (sent,) = await peer.enqueue("py:work", {}, queue="shared")
            await look.ends(sent["id"], "gone")

            async def fired() -> Any:
                entries = await app.inspector().scheduler_entries()
                found = [one.id for one in entries if one.prev_ns]
                return found if len(found) == 2 else []

            for schedule in await until(fired):
                theirs = await peer.do("events", id=schedule)
                ours = await app.inspector().scheduler_events(schedule, size=100)
                assert theirs[-1] == {"task_id": ours[-1].task_id, "at": ours[-1].enqueued_ns // 10**9}
        by_go = await peer.do("history", queue="shared")
        assert by_go == [day.as_dict() for day in await app.inspector().history("shared", 3)]
        assert (by_go[0]["processed"], by_go[0]["failed"]) == (3, 1)
    assert await check_invariant(redis_client) == []
