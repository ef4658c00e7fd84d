"""Live Go beside us where more can go wrong: on a cluster, on a server that is killed, in queues with odd names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.interop.live.peer import GoError, go_peer
from tests.interop.live.python_side import PythonSide, same_listing
from tests.interop.live.rows import SLOW
from tests.support.clusters import Nodes
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import until
from veredus import App, current


async def test_both_work_on_a_cluster(newest_program: Path, nodes: Nodes) -> None:
    """Queues of each on every node: tasks of both, results, listings, cancels and a schedule of Go."""
    mine, theirs = nodes.spread(6)[::2], nodes.spread(6)[1::2]
    side = PythonSide(nodes.url)
    async with side.app as app, go_peer(newest_program, nodes.url) as peer, app.worker(mine, **FAST):
        await peer.serve("go:work", queues=dict.fromkeys(theirs, 1))
        for queue in mine:
            await peer.enqueue("py:work", {"result": "r"}, queue=queue, retention_ms=60_000)
            await peer.enqueue("py:work", queue=queue, process_in_ms=500)
        handles = [
            await app.enqueue("go:work", {"result": '"x"'}, queue=queue, retention=60, delay=0.3) for queue in theirs
        ]
        assert [await handle.result(timeout=20) for handle in handles] == ["x"] * 3
        await until(lambda: len(side.ran) == 6)
        for queue in (*mine, *theirs):
            assert len(await same_listing(app, peer, queue, "completed")) == 1
        assert await peer.do("queues") == sorted(await app.inspector().queues())
        await peer.schedule("@every 1s", "py:tick", queue=mine[0])
        await until(lambda: "py:tick" in {job.type for job in side.ran})
        (slow,) = await peer.enqueue("py:slow", SLOW, queue=mine[1])
        await until(lambda: side.attempts(slow["id"]))
        await peer.do("cancel", id=slow["id"])
        await until(lambda: slow["id"] in {job.id for job in side.ran})
        handle = await app.enqueue("go:work", SLOW, queue=theirs[1], max_retry=0)
        await until(lambda: handle.id in {began["id"] for began in peer.began})
        await app.inspector().cancel(theirs[1], handle.id)
        await until(lambda: handle.id in {ran["id"] for ran in peer.ran})


@pytest.mark.timeout(180)
async def test_nothing_is_lost_when_the_server_is_killed_and_comes_back(
    newest_program: Path, new_server: Callable[..., RealServer]
) -> None:
    server = new_server("--appendonly", "yes", "--appendfsync", "always")
    side, stored = PythonSide(server.url), set[str]()
    payload = {"behave": "sleep", "ms": 20}
    async with side.app as app, go_peer(newest_program, server.url) as peer:
        await peer.serve("py:work", queue="shared", retry_ms=300)
        async with app.worker("shared", **FAST):
            for _ in range(3):
                for number in range(40):
                    with contextlib.suppress(GoError):
                        (sent,) = await peer.enqueue("py:work", payload, queue="shared", process_in_ms=100)
                        stored.add(sent["id"])
                    handle = await app.enqueue("py:work", payload, queue="shared", order_key=f"k{number % 5}")
                    stored.add(handle.id)
                server.kill()
                server.start()
            await until(lambda: {job.id for job in side.ran} | {ran["id"] for ran in peer.ran} >= stored, seconds=120)
    assert len(stored) > 200


@VALKEY_ONLY
async def test_scripts_that_the_server_forgot_are_sent_again_by_both(
    newest_program: Path, url: str, redis_client: Any
) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(newest_program, url) as peer, app.worker("shared", **FAST):
        await peer.serve("go:work", queue="for-go")
        for _ in range(20):
            await redis_client.script_flush()
            await peer.enqueue("py:work", queue="shared")
            await app.enqueue("go:work", {}, queue="for-go")
        await until(lambda: len(side.ran) == 20 == len(peer.ran))
    assert await check_invariant(redis_client) == []


@VALKEY_ONLY
async def test_children_that_servers_of_two_releases_retry_come_back_to_their_parent(
    programs: list[Path], url: str, redis_client: Any
) -> None:
    """The older release forgets the headers of what it retries."""
    app = App(url)

    @app.task(name="parent", queue="shared")
    async def parent() -> list[int]:
        fails = {"behave": "fail", "times": 2}
        calls = [app.call("go:child", {**fails, "result": str(number)}, queue="for-go") for number in range(6)]
        return await current().gather("children", calls)

    async with app, go_peer(programs[0], url) as new, go_peer(programs[1], url) as old, app.worker("shared", **FAST):
        for peer in (new, old):
            await peer.serve("go:child", queue="for-go", retry_ms=100, concurrency=2)
        assert await (await parent.enqueue()).result(timeout=60) == list(range(6))
    assert len(new.ran) + len(old.ran) == 18
    assert await check_invariant(redis_client) == []


QUEUES = ["A:b", "t:x", "g:x", "漢字", "pending", "a b", "unique:x", "x:pending", "UPPER", "-", "%s"]


@VALKEY_ONLY
async def test_queues_whose_names_look_like_keys(newest_program: Path, url: str, redis_client: Any) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(newest_program, url) as peer:
        for queue in QUEUES:
            await app.enqueue("py:work", {}, queue=queue)
            await peer.enqueue("py:work", queue=queue)
            assert len(await same_listing(app, peer, queue, "pending")) == 2
        assert await peer.do("queues") == sorted(await app.inspector().queues()) == sorted(QUEUES)
        async with app.worker(QUEUES, **FAST):
            await until(lambda: len(side.ran) == 2 * len(QUEUES))
        for queue in QUEUES:
            await peer.do("delete_queue", queue=queue)
        assert await app.inspector().queues() == []
    assert await check_invariant(redis_client) == []
