"""Queues that only live Go serves, and what Go's tools leave behind: our options must not strand a task there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.interop.live.python_side import PythonSide, same_listing
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Limit, QueueClosed, QueueUnserved

pytestmark = VALKEY_ONLY


async def test_a_delayed_task_of_a_group_that_go_forwards_runs_alone(
    program: Path, url: str, redis_client: Any
) -> None:
    """scheduled-group: as Go's own do. With the field that Go reads, it would be in a group that nobody has listed."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        handle = await app.enqueue("go:work", {}, queue="for-go", group="g", delay=0.5)
        (listed,) = await same_listing(app, peer, "for-go", "scheduled")
        assert listed["group"] == "g"
        await peer.serve("go:work", queue="for-go", group_grace_ms=1000)
        await until(lambda: peer.ran)
        assert [fact["id"] for fact in peer.ran] == [handle.id]
        assert peer.aggregated == []
    assert await check_invariant(redis_client) == []


async def test_a_delayed_task_of_a_group_that_we_forward_is_aggregated_by_go(
    program: Path, url: str, redis_client: Any
) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("go:work", b"1", queue="shared", group="g", delay=0.2)
        async with app.worker("shared", **FAST):
            await until(lambda: redis_client.zcard("asynq:{shared}:g:g"))
        assert await peer.do("groups", queue="shared") == [{"Group": "g", "Size": 1}]
        await peer.serve("aggregated:g", queue="shared", group_grace_ms=1000)
        await until(lambda: peer.ran)
    assert [fact["type"] for fact in peer.ran] == ["aggregated:g"]
    assert await check_invariant(redis_client) == []


async def test_a_member_that_was_rescheduled_is_not_lost_in_a_group_that_go_does_not_list(
    program: Path, url: str, redis_client: Any
) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        (sent,) = await peer.enqueue("go:work", b"1", queue="for-go", group="g", unique_ms=60_000)
        await app.inspector().reschedule("for-go", sent["id"], delay=0.2)
        await peer.serve("go:work", queue="for-go")
        await until(lambda: peer.ran)
    assert await redis_client.keys("asynq:{for-go}:unique:*") == []
    assert await check_invariant(redis_client) == []


async def test_the_first_task_of_an_order_key_runs_after_go_deleted_the_queue(
    program: Path, url: str, redis_client: Any
) -> None:
    """Go leaves the lane of the deleted tasks; no Veredus worker is there to sweep it."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        for _ in range(3):
            await app.enqueue("go:work", {}, queue="for-go", order_key="k")
        await app.enqueue("go:work", {}, queue="for-go", delay=60)
        await peer.do("delete_queue", queue="for-go", force=True)
        left = {key.decode().removeprefix("asynq:{for-go}:") for key in await redis_client.keys("asynq:{for-go}:*")}
        assert {"lane:k", "lanes", "due"} <= left
        await peer.serve("go:work", queue="for-go")
        handle = await app.enqueue("go:work", {}, queue="for-go", order_key="k")
        await until(lambda: peer.ran)
        assert [fact["id"] for fact in peer.ran] == [handle.id]


async def test_tasks_with_a_limit_run_after_go_deleted_the_queue(program: Path, url: str, redis_client: Any) -> None:
    """Those that waited for the limit are gone, and nobody waits behind them."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await redis_client.hset("asynq:{shared}:limits", "queue-key", "1 0 0")
        await redis_client.zadd("asynq:{shared}:waiting:queue-key:k", {f"gone{n}": n for n in range(300)})
        await app.enqueue("py:work", {}, queue="shared", delay=60)
        await peer.do("delete_queue", queue="shared", force=True)
        async with app.worker("shared", **FAST):
            await app.enqueue("py:work", {}, queue="shared", limit_key="k")
            await until(lambda: side.ran)
    assert await redis_client.exists("asynq:{shared}:waiting:queue-key:k") == 0


async def test_the_room_of_a_task_that_go_deleted_is_free_at_once(program: Path, url: str, redis_client: Any) -> None:
    """It was let in by the end of the one before it, and Go deleted the queue before a worker took it."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    side.app.limit("shared", Limit(concurrency=1, per="key"))
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        side.may_end.clear()
        first = await app.enqueue("py:work", {}, queue="shared", limit_key="k")
        await until(lambda: side.began)
        called = await app.enqueue("py:work", {}, queue="shared", limit_key="k")
        await until(lambda: redis_client.exists("asynq:{shared}:waiting:queue-key:k"))
        await app.inspector().pause("shared")
        side.may_end.set()
        await look.ends(first.id, "gone")
        assert await redis_client.zrange("asynq:{shared}:called:queue-key:k", 0, -1) == [called.id.encode()]
        await peer.do("delete_queue", queue="shared", force=True)
        await redis_client.delete("asynq:{shared}:paused")
        began = time.monotonic()
        await app.enqueue("py:work", {}, queue="shared", limit_key="k")
        await until(lambda: len(side.ran) == 2)
        assert time.monotonic() - began < 8, "its room is not kept for ten seconds"


async def test_a_queue_that_was_closed_stays_closed_when_go_deletes_it(program: Path, url: str) -> None:
    """As a pause does: somebody decided it, and only `open_queue` takes it back."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("go:work", {}, queue="for-go")
        await app.inspector().close_queue("for-go")
        await peer.do("delete_queue", queue="for-go", force=True)
        with pytest.raises(QueueClosed, match="for-go"):
            await app.enqueue("go:work", {}, queue="for-go")
        await app.inspector().open_queue("for-go")
        assert (await app.enqueue("go:work", {}, queue="for-go")).state == "pending"


async def test_an_order_key_on_a_queue_that_only_go_serves_is_told(
    program: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Go runs the first and leaves the others where they are."""
    async with App(url) as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        for _ in range(2):
            await app.enqueue("go:work", {}, queue="for-go", order_key="k")
    told = [record.getMessage() for record in caplog.records if record.name == "veredus.client"]
    assert len(told) == 1
    assert "queue for-go: a task was sent with order_key, but no Veredus worker is alive on this Redis" in told[0]


@pytest.mark.parametrize("options", [{"order_key": "k"}, {"limit_key": "k"}, {"group": "g", "delay": 1}], ids=str)
async def test_what_only_veredus_keeps_is_refused_on_a_queue_that_only_go_serves(
    program: Path, url: str, options: dict[str, Any]
) -> None:
    async with App(url, unserved="refuse") as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        await until(app.inspector().servers)
        refused = f"queue 'for-go': a task with {next(iter(options))} was refused"
        with pytest.raises(QueueUnserved, match=refused):
            await app.enqueue("go:work", {}, queue="for-go", **options)
        with pytest.raises(QueueUnserved, match=refused):
            await app.enqueue_many([app.call("go:work", {}, queue="for-go", **options)] * 2)
        assert await app.inspector().queues() == []
        await app.enqueue("go:work", {}, queue="for-go")
        await until(lambda: peer.ran)


async def test_an_order_key_is_kept_in_go_while_any_veredus_worker_is_alive(
    program: Path, url: str, redis_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another queue: it lets the next one go when Go has finished the one before."""
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("go:work", queue="for-go")
        async with app.worker("shared", **FAST):
            await until(lambda: _both(app))
            handles = [await app.enqueue("go:work", {}, queue="for-go", order_key="k") for _ in range(3)]
            await until(lambda: len(peer.ran) == 3, seconds=60)
            await until(lambda: _is_gone(redis_client, "asynq:{for-go}:lanes"))
    assert [fact["id"] for fact in peer.ran] == [handle.id for handle in handles]
    assert [record for record in caplog.records if record.name == "veredus.client"] == []
    assert await check_invariant(redis_client) == []


async def _both(app: App) -> bool:
    return len(await app.inspector().servers()) == 2


async def _is_gone(client: Any, key: str) -> bool:
    return not await client.exists(key)
