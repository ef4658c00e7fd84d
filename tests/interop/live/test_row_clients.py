"""Rows of docs/asynq-differences.md beside live Go, of clients and inspectors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoError, Release, go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import fail, key, locks, no_locks, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, ConfigError, PayloadTooLarge, QueueClosed
from veredus.wire import keys

pytestmark = VALKEY_ONLY


async def test_what_either_client_writes(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        # due-rounded-up, due-index
        at = 4_000_000_000_700
        (theirs,) = await peer.enqueue("t", queue="shared", process_at=at)
        ours = await app.enqueue("t", queue="shared", at=datetime.fromtimestamp(at / 1000, UTC))
        scores = await look.scores("scheduled")
        assert (scores[theirs["id"]], scores[ours.id]) == (4_000_000_000, 4_000_000_001)
        assert await redis_client.zrange(key("due"), 0, -1, withscores=True) == [(ours.id.encode(), at)]
        # fractions-rounded-up, timeout-zero
        (cut,) = await peer.enqueue("t", queue="shared", timeout_ms=1500, retention_ms=500)
        (zero,) = await peer.enqueue("t", queue="shared", timeout_ms=0)
        up = await app.enqueue("t", queue="shared", timeout=1.5, retention=0.5)
        assert (cut["timeout"], cut["retention"], zero["timeout"]) == (1, 0, 1800)
        assert [(await peer.task("shared", up.id))[name] for name in ("timeout", "retention")] == [2, 1]
        with pytest.raises(ConfigError):
            await app.enqueue("t", queue="shared", timeout=0)
        # refused-arguments
        (odd,) = await peer.enqueue("t", b"x" * 2_000_000, queue="}shared", max_retry=-1, timeout_ms=-5000)
        assert (odd["max_retry"], odd["timeout"]) == (0, -5)
        for bad in ({"max_retry": -1}, {"timeout": -5}, {"queue": "}shared"}):
            with pytest.raises(ConfigError):
                await app.enqueue("t", **bad)
        with pytest.raises(PayloadTooLarge):
            await app.enqueue("t", b"x" * 2_000_000, queue="shared")
        # queue-registered-again: Go adds a queue once in the life of a client
        await redis_client.srem("asynq:queues", "shared")
        await peer.enqueue("t", queue="shared")
        assert not await redis_client.sismember("asynq:queues", "shared")
        await redis_client.sadd("asynq:queues", "shared")
        # sent-record: Go's inspector does not mind it
        records = await redis_client.keys(key("sent:*"))
        assert records
        assert all([0 < await redis_client.ttl(name) <= 40 for name in records])
        assert (await peer.do("queue", queue="shared"))["size"] == 6
        # closed-queue
        await app.inspector().close_queue("shared")
        with pytest.raises(QueueClosed):
            await app.enqueue("t", queue="shared")
        await peer.enqueue("t", queue="shared")
        await app.inspector().open_queue("shared")
    await redis_client.delete(*await redis_client.keys("asynq:{}shared}*"))
    await redis_client.srem("asynq:queues", "}shared")
    assert await check_invariant(redis_client) == []


async def test_ids_and_unique_locks(program: Path, url: str, redis_client: Any) -> None:
    side, look = PythonSide(url, retry_delay=3600), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        # id-conflict-lock: Go leaves a lock behind that protects no task
        await peer.enqueue("t", b"1", queue="shared", task_id="taken")
        with pytest.raises(GoError, match="conflicts"):
            await peer.enqueue("t", b"2", queue="shared", task_id="taken", unique_ms=60_000)
        (left,) = await locks(redis_client)
        await redis_client.delete(left)
        with pytest.raises(Exception, match="taken"):
            await app.enqueue("t", b"3", queue="shared", task_id="taken", unique_for=60)
        assert await locks(redis_client) == []
        # group-unique-key, group-lock-released, inspector-releases-locks
        (theirs,) = await peer.enqueue("t", b"4", queue="shared", group="g", unique_ms=60_000)
        ours = await app.enqueue("t", b"5", queue="shared", group="g", unique_for=60)
        assert "unique_key" not in await look.fields(theirs["id"])
        assert "unique_key" in await look.fields(ours.id)
        assert await peer.do("delete_all", queue="shared", state="aggregating", group="g") == 2
        assert len(await locks(redis_client)) == 2, "Go leaves the locks of members behind"
        await redis_client.delete(*await locks(redis_client))
        for state, verb in (("pending", "delete_all"), ("pending", "archive_all")):
            await peer.enqueue("t", b"6", queue="shared", unique_ms=60_000)
            await peer.do(verb, queue="shared", state=state)
            assert len(await locks(redis_client)) == 1
            await redis_client.delete(*await locks(redis_client))
        (mine,) = await peer.enqueue("t", b"7", queue="shared", unique_ms=60_000)
        await app.inspector().archive("shared", mine["id"])
        assert await locks(redis_client) == []
        # replace-ended
        with pytest.raises(GoError, match="conflicts"):
            await peer.enqueue("t", queue="shared", task_id=mine["id"])
        replaced = await app.enqueue("t", b"8", queue="shared", task_id=mine["id"], replace=True)
        assert (await peer.task("shared", replaced.id))["payload"] == b"8"
        await peer.do("delete", queue="shared", id=replaced.id)
        # archive-releases-lock, lock-kept
        fails = {"behave": "fail"}
        await peer.serve("py:work", queue="shared")
        kept = await app.enqueue("py:work", fails, queue="shared", max_retry=0, unique_for=60)
        await look.ends(kept.id, "archived")
        assert len(await locks(redis_client)) == 1, "Go keeps the lock of what it archived"
        await redis_client.delete(*await locks(redis_client))
        brief = await app.enqueue("py:work", {"behave": "sleep", "ms": 2500}, queue="shared", unique_for=1)
        await until(lambda: no_locks(redis_client))
        assert await look.state(brief.id) == "active", "Go lets a lock end while its task runs"
        await look.ends(brief.id, "gone")
        await peer.do("stop")
        async with app.worker("shared", **FAST):
            await peer.enqueue("py:work", fails, queue="shared", max_retry=0, unique_ms=60_000)
            await until(lambda: side.ran)
            await until(lambda: no_locks(redis_client))
            (held,) = await peer.enqueue("py:work", {"behave": "sleep", "ms": 500}, queue="shared", unique_ms=1000)
            await until(lambda: side.attempts(held["id"]))
            (lock,) = await locks(redis_client)
            assert await redis_client.ttl(lock) > 30
            await look.ends(held["id"], "gone")
    assert await check_invariant(redis_client) == []


async def test_verbs_of_either_inspector(program: Path, release: Release, url: str, redis_client: Any) -> None:
    """run-pending-since, payload-edit, queue-deleted-whole."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer:
        by_go, by_us = [await app.enqueue("py:work", queue="shared", delay=3600) for _ in range(2)]
        await peer.do("run", queue="shared", id=by_go.id)
        await app.inspector().run("shared", by_us.id)
        assert "pending_since" not in await look.fields(by_go.id)
        assert "pending_since" in await look.fields(by_us.id)
        if release.headers:  # 0.25 cannot replace a payload at all
            with pytest.raises(GoError):
                await peer.do("update", queue="shared", id=by_us.id, payload="Mg==")
            locked = await app.enqueue("py:work", b"1", queue="shared", delay=3600, unique_for=60)
            (lock,) = await locks(redis_client)
            await peer.do("update", queue="shared", id=locked.id, payload="Mg==")
            assert await locks(redis_client) == [lock], "the lock of the old payload"
            await app.inspector().delete("shared", locked.id)
        edited = await app.enqueue("py:work", b"1", queue="shared", delay=3600, unique_for=60)
        (lock,) = await locks(redis_client)
        await app.inspector().edit_payload("shared", edited.id, b"3")
        assert await locks(redis_client) == [keys.unique("shared", "py:work", b"3").encode()] != [lock]
        await app.inspector().delete("shared", edited.id)
        await app.inspector().edit_payload("shared", by_us.id, b"2")
        assert (await peer.task("shared", by_us.id))["payload"] == b"2"
        # what DeleteQueue leaves behind, and ours does not
        async with app.worker("shared", **FAST):
            (done,) = await peer.enqueue("py:work", {"result": "r"}, queue="shared", unique_ms=60_000)
            await look.ends(done["id"], "completed")
            await look.ends(by_us.id, "gone")
            await look.ends(by_go.id, "gone")
        await app.enqueue("py:work", queue="shared", group="g")
        await peer.do("pause", queue="shared")
        await peer.do("delete_queue", queue="shared", force=True)
        left = {name.decode() for name in await redis_client.keys("asynq:{shared}:*")}
        assert {key("paused"), key("g:g"), key("groups"), key("processed")} <= left
        await redis_client.sadd("asynq:queues", "shared")
        await app.inspector().delete_queue("shared", force=True)
        assert await redis_client.keys("asynq:{shared}:*") == []


async def test_an_archive_above_its_limits(program: Path, url: str, redis_client: Any) -> None:
    """archive-trim-bounded, archive-limits."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    app = App(url, archive_size=100)
    app.handler("py:*", queue="shared")(fail)
    now = await now_of(redis_client)
    async with side.app, app, go_peer(program, url) as peer:
        for by in ("us", "go"):
            await redis_client.zadd(key("archived"), {f"{by}-{n}": now - 1000 for n in range(10_500)})
            (sent,) = await peer.enqueue("py:work", {"behave": "fail"}, queue="shared", max_retry=0)
            if by == "us":
                async with side.app.worker("shared", **FAST):
                    await look.ends(sent["id"], "archived")
                assert 10_380 <= await redis_client.zcard(key("archived")) <= 10_450, "at most 100 more than came in"
            else:
                await peer.serve("py:work", queue="shared")
                await look.ends(sent["id"], "archived")
                assert await redis_client.zcard(key("archived")) in (9_999, 10_000), "all in one go, to Go's limit"
                await peer.do("stop")
            await redis_client.delete(key("archived"))
        await redis_client.zadd(key("archived"), {f"own-{n}": now - 1000 for n in range(150)})
        (sent,) = await peer.enqueue("py:work", {}, queue="shared", max_retry=0)
        async with app.worker("shared", **FAST):
            await look.ends(sent["id"], "archived")
        assert await redis_client.zcard(key("archived")) <= 101
