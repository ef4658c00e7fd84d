"""Rows of docs/asynq-differences.md beside live Go, of groups, order keys, limits and schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.interop.live.python_side import PythonSide
from tests.interop.live.rows import SLOW, key, locks, no_locks, now_of
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Job, Limit

pytestmark = VALKEY_ONLY


async def test_order_keys_and_limits_in_a_queue_that_go_serves(program: Path, url: str, redis_client: Any) -> None:
    """order-lanes, limits-keys: a Veredus worker of another queue is alive, and calls the next in."""
    side, look = PythonSide(url), Look(redis_client, "shared")
    side.app.limit("limited", Limit(concurrency=1))
    async with side.app as app, go_peer(program, url) as peer, app.worker(["elsewhere", "limited"], **FAST):
        handles = [
            await app.enqueue("go:work", {"behave": "sleep", "ms": 50}, queue="shared", order_key="k") for _ in range(3)
        ]
        rows = await peer.list("shared", "scheduled")
        assert {(row["id"], row["next_at"]) for row in rows} == {(one.id, 9_999_999_999) for one in handles[1:]}
        await peer.serve("go:work", queues={"shared": 1, "limited": 1})
        await until(lambda: len(peer.ran) == 3)
        assert [ran["id"] for ran in peer.ran] == [one.id for one in handles]
        starts = [began["at"] for began in peer.began]
        assert all(ran["at"] <= start for ran, start in zip(peer.ran, starts[1:], strict=False))
        assert await redis_client.exists(key("limits", "limited"))
        for _ in range(3):
            await app.enqueue("go:work", SLOW, queue="limited")
        await until(lambda: len(peer.began) == 6, what="three at once: Go is not limited")
        for row in await peer.list("limited", "active"):
            await app.inspector().cancel("limited", row["id"], then="delete")
        await look.ends(handles[-1].id, "gone")
        await until(lambda: _swept(redis_client))
    assert await check_invariant(redis_client) == []


async def _swept(client: Any) -> bool:
    return not await client.exists(key("lanes"), key("lane:k"))


async def test_groups_aggregated_by_go(program: Path, url: str, redis_client: Any) -> None:
    """scheduled-group, group-order, group-lock-released, group-reclaim, group-failure, group-unreadable,
    group-size-bound."""
    side = PythonSide(url)
    now = await now_of(redis_client)
    async with side.app as app, go_peer(program, url) as peer:
        await app.enqueue("m", b"first", queue="shared", group="order", task_id="b", unique_for=60)
        await app.enqueue("m", b"second", queue="shared", group="order", task_id="a")
        await redis_client.zadd(key("g:order"), {"a": now - 5, "b": now - 5})
        await app.enqueue("m", b"x", queue="shared", group="junk", task_id="junk")
        await app.enqueue("m", b"x", queue="shared", group="junk")
        await redis_client.hset(key("t:junk"), "msg", b"\xff")
        await app.enqueue("m", b"x", queue="shared", group="ghost", task_id="ghost")
        await redis_client.delete(key("t:ghost"))
        await app.enqueue("m", b"x", queue="shared", group="back", task_id="back")
        await redis_client.rename(key("g:back"), key("g:back:set"))
        await redis_client.zadd(key("aggregation_sets"), {key("g:back:set"): now - 60})
        await redis_client.srem(key("groups"), "back")
        await app.enqueue_many([app.call("m", b"", queue="shared", group="large") for _ in range(10_050)])
        (alone,) = await peer.enqueue("aggregated:order", queue="shared", group="later", process_in_ms=500)
        await peer.serve("aggregated:order", queue="shared", group_grace_ms=1000)
        await until(lambda: {fact["aggregated"] for fact in peer.aggregated} >= {"order", "ghost", "large"})
        found = {fact["aggregated"]: fact for fact in peer.aggregated}
        assert found["order"]["payload"] == b"second,first", "by their ids, not by arrival"
        assert len(found["large"]["types"]) == 10_050, "however many they are"
        assert found["ghost"]["types"] == [""], "an empty task"
        await until(lambda: redis_client.zscore(key("g:back"), "back"))
        assert not await redis_client.sismember(key("groups"), "back"), "nobody will look at it"
        await until(lambda: {ran["id"] for ran in peer.ran} > {alone["id"]})
        assert "later" not in found, "it has forgotten its group"
        assert len(await locks(redis_client)) == 1, "of a member that is gone"
        await app.enqueue("m", b"", queue="shared", group="nothing")
        await until(lambda: any(fact["aggregated"] == "nothing" for fact in peer.aggregated))
        await app.enqueue("m", b"", queue="shared", group="panic")
        await until(lambda: not peer.is_running, what="the end of the server")
        sets = [name.decode() for name in await redis_client.zrange(key("aggregation_sets"), 0, -1)]
        assert {name.split(":")[3] for name in sets} >= {"nothing", "panic", "junk"}, "left until their time is over"


async def test_groups_aggregated_by_us(program: Path, url: str, redis_client: Any) -> None:
    """The same groups."""
    app = App(url)
    got: dict[str, list[list[bytes]]] = {}
    now = await now_of(redis_client)

    @app.aggregate("*", queue="shared", grace=1)
    def join(group: str, jobs: list[Job]) -> Any:
        got.setdefault(group, []).append([job.payload for job in jobs])
        return []

    async with app, go_peer(program, url) as peer:
        await app.enqueue("m", b"first", queue="shared", group="order", task_id="b")
        await peer.enqueue("m", b"second", queue="shared", group="locked", unique_ms=60_000)
        await app.enqueue("m", b"third", queue="shared", group="order", task_id="a")
        await redis_client.zadd(key("g:order"), {"a": now - 5, "b": now - 5})
        await peer.enqueue("m", b"x", queue="shared", group="junk", task_id="junk")
        await redis_client.hset(key("t:junk"), "msg", b"\xff")
        await peer.enqueue("m", b"y", queue="shared", group="back", task_id="back")
        await redis_client.rename(key("g:back"), key("g:back:5e7"))
        await redis_client.zadd(key("aggregation_sets"), {key("g:back:5e7"): now - 60})
        await redis_client.srem(key("groups"), "back")
        async with app.worker("shared", **FAST):
            await until(lambda: set(got) == {"order", "locked", "back"})
            await until(lambda: Look(redis_client, "shared").ends("junk", "archived"))
            await until(lambda: no_locks(redis_client))
        assert got["order"] == [[b"first", b"third"]]
        (row,) = await peer.list("shared", "archived")
        assert row["type"] == "undecodable"
    assert await check_invariant(redis_client) == []


async def test_schedules_of_either_side(program: Path, url: str, redis_client: Any) -> None:
    """scheduler-entry-ids, scheduler-shown-at-once, scheduler-history-kept, scheduler-options-shown, scheduler-keys."""
    async with go_peer(program, url) as one, go_peer(program, url) as two:
        ids = [await peer.schedule("@every 1s", "tick", queue="go", max_retry=2) for peer in (one, two)]
        assert ids[0] != ids[1]
        assert await redis_client.keys("asynq:schedulers:*") == [], "shown after the first interval"
        await until(lambda: _history(redis_client, *ids))
        fired = [row["id"] for row in await one.list("go", "pending")]
        assert len(fired) >= 2, "each fires on its own"
        async with App(url) as app:
            app.schedule("@every 1s", app.call("tick", {"n": 1}, queue="ours", max_retry=3, headers={"h": "1"}))
            seen = []
            for _ in range(2):
                async with app.worker("ours", **FAST):

                    async def shown() -> Any:
                        return [row for row in await one.do("entries") if row["id"] not in ids]

                    (row,) = await until(shown)
                    seen.append(row["id"])
                    assert {'Queue("ours")', "MaxRetry(3)"} <= set(row["options"])
                    await until(lambda: _history(redis_client, seen[0]))
                    assert await redis_client.keys("asynq:veredus:scheduler_leader:*")
            assert seen[0] == seen[1], "the same after a restart"
        for peer in (one, two):
            await peer.do("stop")
        assert await redis_client.exists(*[f"asynq:scheduler_history:{entry}" for entry in ids]) == 0
        assert 29 * 86400 < await redis_client.ttl(f"asynq:scheduler_history:{seen[0]}") <= 30 * 86400


async def _history(client: Any, *entries: str) -> bool:
    return all([await client.exists(f"asynq:scheduler_history:{entry}") for entry in entries])
