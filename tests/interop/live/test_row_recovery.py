"""Rows of docs/asynq-differences.md beside live Go, of leases that are lost and of what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoPeer, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import key, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause, until

pytestmark = VALKEY_ONLY


async def _leased(client: Any, peer: GoPeer, queue: str, score: int | None) -> str:
    """A task in active, as a Go server that died has left it."""
    (sent,) = await peer.enqueue("py:work", {}, queue=queue)
    task_id = str(sent["id"])
    await client.lrem(key("pending", queue), 0, task_id)
    await client.lpush(key("active", queue), task_id)
    await client.hset(key(f"t:{task_id}", queue), "state", "active")
    if score is not None:
        await client.zadd(key("lease", queue), {task_id: score})
    return task_id


@pytest.mark.parametrize("by", ["go", "us"])
async def test_what_is_recovered(program: Path, url: str, redis_client: Any, by: str) -> None:
    """own-leases-have-no-slack, losses-field, recovery-at-once, every-queue-kept, active-without-lease."""
    side, look = PythonSide(url, types="other:*"), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        now = await now_of(redis_client)
        over = await _leased(redis_client, peer, "shared", now - 31)
        within = await _leased(redis_client, peer, "shared", now - 5)
        naked = await _leased(redis_client, peer, "shared", None)
        elsewhere = await _leased(redis_client, peer, "elsewhere", now - 31)
        if by == "go":
            await peer.serve("other", queue="shared", retry_ms=3_600_000)
            await look.ends(over, "retry")
            await pause(1.0, proves="Go touches neither the others nor other queues")
            assert (await look.scores("retry"))[over] >= now + 3600
            assert "losses" not in await look.fields(over)
            assert await look.of("elsewhere").state(elsewhere) == "active"
            assert naked not in await look.scores("lease")
        else:
            async with app.worker("shared", **FAST):
                await look.of("elsewhere").ends(elsewhere, "retry")
                await look.ends(over, "pending")
                await until(lambda: _has_lease(look, naked))
            assert (await look.fields(over))["losses"] == b"1"
            message = await look.message(over)
            assert (message.retried, message.error_msg) == (1, "asynq: task lease expired")
            assert (await peer.task("shared", over))["error"] == "asynq: task lease expired"
        assert await look.state(within) == "active"


async def _has_lease(look: Look, task_id: str) -> bool:
    return task_id in await look.scores("lease")


async def test_go_ends_a_task_that_we_have_taken_over(program: Path, url: str, redis_client: Any) -> None:
    """fenced-settlement: Go's outcome is not held back; ours, which comes later, changes nothing."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        await peer.serve("py:work", queue="shared", concurrency=1)
        side.may_end.clear()
        (sent,) = await peer.enqueue("py:work", {"behave": "sleep", "ms": 1500}, queue="shared")
        await until(lambda: peer.began)
        peer.freeze()
        try:
            await redis_client.zadd(key("lease"), {sent["id"]: await now_of(redis_client) - 31})
            async with app.worker("shared", **FAST):
                await until(lambda: side.began)
                peer.thaw()
                await look.ends(sent["id"], "gone")
                side.may_end.set()
                await until(lambda: side.ran)
        finally:
            peer.thaw()
    assert await look.state(sent["id"]) == "gone"
    assert await check_invariant(redis_client) == []


async def test_what_is_damaged(program: Path, url: str, redis_client: Any) -> None:
    """pending-tidied, undecodable-archived."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:

        async def damage() -> None:
            await redis_client.sadd("asynq:queues", "shared")
            await redis_client.lpush(key("pending"), "ghost", "junk")
            await redis_client.hset(key("t:junk"), mapping={"msg": b"\xff\x01", "state": "pending"})

        await damage()
        await peer.serve("py:work", queue="shared")
        await until(lambda: _active(redis_client, 2))
        await peer.do("stop")
        assert await redis_client.llen(key("active")) == 2, "Go leaves both active"
        await redis_client.flushall()
        await damage()
        async with app.worker("shared", **FAST):
            await look.ends("junk", "archived")
        assert await redis_client.llen(key("active")) == await redis_client.llen(key("pending")) == 0
        (row,) = await peer.list("shared", "archived")
        assert (row["id"], row["type"], row["payload"]) == ("junk", "undecodable", b"\xff\x01")
        await peer.do("delete", queue="shared", id="junk")
    assert await check_invariant(redis_client) == []


async def _active(client: Any, number: int) -> bool:
    return bool(await client.llen(key("active")) == number)
