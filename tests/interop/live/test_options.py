"""Every option of enqueue, sent by either client and read by the other side: its inspector and its handler."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.interop.live.peer import GoError, Release, go_peer
from tests.interop.live.python_side import PythonSide, facts, same_listing
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import ConfigError, TaskIdConflict

pytestmark = VALKEY_ONLY
LATER = int(time.time()) + 7200

# name -> (our options, Go's options, fields that both inspectors must show)
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}, {"max_retry": 25, "timeout": 1800, "deadline": 0, "retention": 0, "state": "pending"}),
    "max_retry": ({"max_retry": 3}, {"max_retry": 3}, {"max_retry": 3}),
    "no retry": ({"max_retry": 0}, {"max_retry": 0}, {"max_retry": 0}),
    "timeout": ({"timeout": 45}, {"timeout_ms": 45_000}, {"timeout": 45}),
    "deadline": (
        {"deadline": datetime.fromtimestamp(LATER, UTC)},
        {"deadline_at": LATER},
        {"deadline": LATER, "timeout": 0},
    ),
    "task id": ({"task_id": "an id of its own"}, {"task_id": "an id of its own"}, {"id": "an id of its own"}),
    "unique": ({"unique_for": 60}, {"unique_ms": 60_000}, {}),
    "delay": ({"delay": 3600}, {"process_in_ms": 3_600_000}, {"state": "scheduled"}),
    "at": (
        {"at": datetime.fromtimestamp(LATER, UTC)},
        {"process_at": LATER * 1000},
        {"state": "scheduled", "next_at": LATER},
    ),
    "retention": ({"retention": 90}, {"retention_ms": 90_000}, {"retention": 90}),
    "group": ({"group": "g:1"}, {"group": "g:1"}, {"group": "g:1", "state": "aggregating"}),
    "headers": ({"headers": {"a": "1", "": "x"}}, {"headers": {"a": "1", "": "x"}}, {"headers": {"a": "1", "": "x"}}),
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_both_inspectors_read_what_either_client_sent(
    program: Path, release: Release, url: str, redis_client: Any, name: str
) -> None:
    ours, theirs, expected = OPTIONS[name]
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        handle = await app.enqueue("py:option", b"\x00\xff", queue="shared", **ours)
        by_us = facts(await app.inspector().task("shared", handle.id))
        if release.headers or name != "headers":
            by_go = await peer.task("shared", handle.id)
            assert _alike(by_us, by_go)
            assert {key: by_go[key] for key in expected} == expected
        await app.inspector().delete("shared", handle.id)

        if name == "headers" and not release.headers:
            return
        (sent,) = await peer.enqueue("go:option", b"\x00\xff", queue="shared", **theirs)
        by_us = facts(await app.inspector().task("shared", sent["id"]))
        assert _alike(by_us, await peer.task("shared", sent["id"]))
        assert {key: by_us[key] for key in expected} == expected
    assert await check_invariant(redis_client) == []


def _alike(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Instants that are "now" or rounded to the second may differ by one."""
    near = abs(ours["next_at"] - theirs["next_at"]) <= 2
    return near and {**ours, "next_at": 0} == {**theirs, "next_at": 0}


async def test_either_handler_gets_what_the_other_client_sent(
    program: Path, release: Release, url: str, redis_client: Any
) -> None:
    headers: dict[str, Any] = {"headers": {"trace": "1"}} if release.headers else {}
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:to-go", queue="for-go")
        ours = await app.enqueue("py:to-go", {"n": 1}, queue="for-go", max_retry=3, timeout=45, **headers)
        (theirs,) = await peer.enqueue(
            "py:from-go", b'{"n":2}', queue="shared", max_retry=4, timeout_ms=50_000, **headers
        )
        async with app.worker("shared"):
            await until(lambda: side.ran and peer.ran)
        (ran,), (job,) = peer.ran, side.ran
    assert (ran["id"], ran["payload"], ran["max_retry"], ran["retried"]) == (ours.id, b'{"n":1}', 3, 0)
    assert abs(ran["deadline"] - ran["at"] - 45) < 5
    assert ran["headers"] == (headers.get("headers") if release.headers else None)
    assert (job.id, job.payload, job.max_retry, job.retried) == (theirs["id"], b'{"n":2}', 4, 0)
    assert dict(job.headers) == headers.get("headers", {})
    assert await check_invariant(redis_client) == []


async def test_a_unique_task_of_either_side_locks_out_the_other(program: Path, url: str, redis_client: Any) -> None:
    """duplicate-not-an-error."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        first = await app.enqueue("py:unique", b'{"n":1}', queue="shared", unique_for=60)
        with pytest.raises(GoError, match="task already exists"):
            await peer.enqueue("py:unique", b'{"n":1}', queue="shared", unique_ms=60_000)
        async with app.worker("shared"):
            await until(lambda: side.attempts(first.id))

            async def sent() -> Any:  # as soon as the lock is free
                try:
                    return (await peer.enqueue("py:unique", b'{"n":1}', queue="shared", unique_ms=60_000))[0]
                except GoError:
                    return None

            second = await until(sent)
            await until(lambda: side.attempts(second["id"]))
        await peer.enqueue("py:unique", b'{"n":2}', queue="shared", unique_ms=60_000)
        assert (await app.enqueue("py:unique", b'{"n":2}', queue="shared", unique_for=60)).created is False
        await peer.do("delete_all", queue="shared", state="pending")
    assert await check_invariant(redis_client) == []


async def test_an_id_that_the_other_side_has_taken_is_refused(program: Path, url: str) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("py:one", queue="shared", task_id="mine")
        with pytest.raises(GoError, match="task ID conflicts"):
            await peer.enqueue("go:two", queue="shared", task_id="mine")
        await peer.enqueue("go:two", queue="shared", task_id="theirs")
        with pytest.raises(TaskIdConflict, match="theirs"):
            await app.enqueue("py:one", queue="shared", task_id="theirs")


NAMES = ("a\nb", "a\0b", " a ", "a,b", "{x}", "漢字", "é" * 600, "%s", "*", "[a]")


async def test_names_that_only_go_allows_can_be_worked_with(program: Path, url: str, redis_client: Any) -> None:
    """refused-arguments: ids, types and groups of any text."""
    side = PythonSide(url, types="*")
    async with side.app as app, go_peer(program, url) as peer:
        inspector = app.inspector()
        for name in NAMES:
            await peer.enqueue(f"py:{name}", name.encode(), queue="shared", task_id=name)
            await peer.enqueue("py:member", queue="shared", task_id=f"in {name}", group=name)
        assert [row["id"] for row in await same_listing(app, peer, "shared", "pending")] == list(NAMES)
        assert {info.group for info in await inspector.groups("shared")} == set(NAMES)
        for name in NAMES:
            (member,) = await same_listing(app, peer, "shared", "aggregating", name)
            await inspector.run("shared", member["id"])
            await inspector.archive("shared", name)
            await inspector.run("shared", name)
        async with app.worker("shared", **FAST):
            await until(lambda: len(side.ran) == 2 * len(NAMES))
        assert {job.payload for job in side.ran if job.payload} == {name.encode() for name in NAMES}
        (odd,) = await peer.enqueue("py:work", queue="q{1}, of Go")
        assert [row["id"] for row in await same_listing(app, peer, "q{1}, of Go", "pending")] == [odd["id"]]
        with pytest.raises(ConfigError, match="queue"):
            app.worker("q{1}, of Go")
        await inspector.delete("q{1}, of Go", odd["id"])
        await inspector.delete_queue("q{1}, of Go")
        assert await inspector.queues() == ["shared"]
    assert await check_invariant(redis_client) == []
