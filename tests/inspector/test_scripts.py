"""The inspecting scripts called directly: what they find, what they change, and what they leave as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.order.support import Bound, bound
from tests.support.keyspace import PARKED
from tests.support.queue import LEASE_END, NOW
from tests.support.timed import at
from veredus.store.connection.connection import Argument
from veredus.store.inspect import queues
from veredus.store.inspect.checkups import EXAMINE, QUARANTINE, REGROUP, RENAME_DAMAGED, REPAIR
from veredus.store.inspect.inspect_part import CONTAINERS
from veredus.store.inspect.moves import DELETE_ORIGINAL, STAGE_COPY
from veredus.store.inspect.queues import CLEAR, Queues
from veredus.store.inspect.tasks import LIST, _place
from veredus.store.store import Store
from veredus.wire import keys

SECOND = NOW // 1000


async def run(q: Bench | Bound, script: Any, *args: Any, more: tuple[str, ...] = ()) -> Any:
    names = [q.key(name) for name in CONTAINERS.split()]
    return await q.redis.run(script, [*names, *more], [keys.queue_prefix(q.name), *args, NOW])


async def repair(q: Bench, task_id: str, group: str = "") -> list[str]:
    """The kinds of what was wrong, and is mended."""
    found = await run(q, REPAIR, task_id, group, 1)
    assert await run(q, REPAIR, task_id, group, 1) == []
    return [item.decode() for item in found[::2]]


async def test_of_a_group_and_a_set_in_flight_the_set_keeps_the_member(q: Bench) -> None:
    await q.join("g", "a")
    staged = q.key("g:g:set")
    await q.client.zadd(staged, {"a": SECOND})
    await q.client.zadd(q.key("aggregation_sets"), {staged: SECOND + 60})
    assert await repair(q, "a") == ["two_places"]
    assert await q.client.zrange(staged, 0, -1) == [b"a"]
    assert await q.client.exists(q.key("g:g"), q.key("groups")) == 0


async def test_an_entry_among_the_active_without_a_lease_is_not_where_it_stays(q: Bench) -> None:
    await q.pend("a")
    await q.client.lpush(q.key("active"), "a")
    await q.client.hset(q.task("a"), "state", "odd")
    assert await repair(q, "a") == ["two_places", "wrong_state"]
    assert (await q.pending(), await q.active()) == (["a"], [])


async def test_a_task_that_does_not_run_is_nobodys(q: Bench) -> None:
    await q.pend("a")
    await q.client.hset(q.task("a"), mapping={"state": "active", "held": "w:1:5"})
    assert await repair(q, "a") == ["wrong_state"]
    fields = await q.fields("a")
    assert fields["state"] == "pending"
    assert "held" not in fields


@pytest.mark.parametrize("state", ["pending", "completed"])
async def test_a_task_that_is_nowhere_gets_all_that_its_place_needs(q: Bench, state: str) -> None:
    await q.client.hset(q.task("a"), mapping={"msg": q.message("a"), "state": state})
    assert await repair(q, "a") == ["orphan"]
    if state == "pending":
        assert (await q.fields("a"))["pending_since"] == f"{NOW}000000"
    else:
        assert await q.scores("completed") == {"a": SECOND + 86400}, "kept for one more day"


@pytest.mark.parametrize(("state", "score"), [("archived", SECOND), ("scheduled", 5), ("retry", 5)])
async def test_a_task_that_is_nowhere_goes_to_the_set_that_its_state_names(q: Bench, state: str, score: int) -> None:
    await q.client.hset(q.task("a"), mapping={"msg": q.message("a"), "state": state})
    if state != "archived":
        await q.client.zadd(q.key("due"), {"a": 4001})
    assert await repair(q, "a") == ["orphan"]
    assert await q.scores(state) == {"a": score}
    assert (await q.fields("a"))["state"] == state
    assert await q.pending() == []


async def test_a_waiting_task_that_is_nowhere_and_whose_time_is_unknown_runs_now(q: Bench) -> None:
    await q.client.hset(q.task("a"), mapping={"msg": q.message("a"), "state": "scheduled"})
    assert await repair(q, "a") == ["orphan"]
    assert await q.pending() == ["a"]


async def test_a_lease_with_a_fraction_stays_its_owners(q: Bench) -> None:
    await q.fill("active", "a")
    await q.client.zadd(q.key("lease"), {"a": LEASE_END - 0.5})
    await q.client.hset(q.task("a"), "held", f"w:1:{LEASE_END - 0.5}")
    assert await repair(q, "a") == ["fraction"]
    assert await q.scores("lease") == {"a": LEASE_END}
    assert (await q.fields("a"))["held"] == f"w:1:{LEASE_END}"
    assert await q.extend(("a", "w:1")) == []


async def test_an_unreadable_task_leaves_everything_that_it_waited_for(store: Store, redis_client: Any) -> None:
    async with bound(store.redis, redis_client) as q:
        await q.line_up(("a", "k"), ("b", "k"))
        lock = q.key("unique:x")
        await q.client.set(lock, "a")
        await q.client.hset(q.task("a"), mapping={"unique_key": lock, "limited_by": "task:t", "held": "w:1:5"})
        await q.client.zadd(q.key("waiting:task:t"), {"a": 1})
        await q.client.zadd(q.key("limited"), {"task:t": 1})
        assert await run(q, QUARANTINE, "a", "", b"m", b"readable") == 1
        assert await q.client.zscore(q.key("archived"), "a") == SECOND
        fields = await q.fields("a")
        assert (fields["msg"], fields["original"], fields["state"]) == ("readable", "m", "archived")
        assert {"pending_since", "held"}.isdisjoint(fields)
        assert await q.client.exists(lock, q.key("waiting:task:t"), q.key("limited")) == 0
        assert (await q.states())["b"] == "pending"


async def test_members_of_a_stale_set_go_home_and_strangers_are_struck_off(q: Bench) -> None:
    await q.join("g", "a")
    await q.pend("stranger")
    staged = q.key("g:g:set")
    await q.client.rename(q.key("g:g"), staged)
    await q.client.zadd(staged, {"stranger": 1})
    await q.client.zadd(q.key("aggregation_sets"), {staged: 1})
    await q.client.delete(q.key("groups"))
    assert await run(q, REGROUP, staged, "g", SECOND, 100, 1) == [2, 0, 2]
    assert await q.client.zrange(q.key("g:g"), 0, -1) == [b"a"]
    assert await q.client.exists(staged, q.key("aggregation_sets")) == 0


async def test_a_moved_task_waits_for_nothing_in_the_queue_it_left(q: Bench) -> None:
    await q.pend("a")
    await q.client.lrem(q.key("pending"), 0, "a")
    await q.client.zadd(q.key("scheduled"), {"a": PARKED})
    fields = {"state": "scheduled", "limited_by": "task:t", "held": "w:1:5"}
    await q.client.hset(q.task("a"), mapping=fields)
    await q.client.zadd(q.key("waiting:task:t"), {"a": 1})
    await q.client.zadd(q.key("limited"), {"task:t": 1})
    await q.inspector.move("q", "a", "other")
    other = Bench(q.redis, q.client, "other")
    assert await other.pending() == ["a"]
    assert {"held", "limited_by"}.isdisjoint(await other.fields("a"))
    assert await q.client.exists(q.key("waiting:task:t"), q.key("limited")) == 0


async def test_a_delayed_task_is_announced_where_it_was_moved_to(q: Bench) -> None:
    await q.fill("scheduled", "a")
    other = Bench(q.redis, q.client, "other")
    async with other.wakeups() as heard:
        await q.inspector.move("q", "a", "other")
    assert heard == [str(NOW + 1500)]


async def test_a_retry_that_is_put_off_keeps_its_place_in_its_lane(store: Store, redis_client: Any) -> None:
    async with bound(store.redis, redis_client) as q:
        await q.line_up(("a", "k"), ("b", "k"))
        await q.dequeue(1)
        await q.retry(("a", "w:1", b"m", 1000))
        await q.inspector.reschedule("q", "a", delay=60)
        assert await q.lane("k") == ["a", "b"]
        assert await q.states() == {"a": "retry", "b": "parked"}


async def test_the_latency_is_that_of_the_next_to_run(q: Bench) -> None:
    await q.pend("old")
    await q.enqueue(("new", q.message("new")), now=NOW + 5000)
    q.inspector = type(q.inspector)(at(q.redis, NOW + 9000))
    assert (await q.inspector.queue("q")).latency_ns == 9_000_000_000


async def test_a_task_whose_key_has_a_wrong_type_is_no_task(q: Bench) -> None:
    await q.pend("a")
    await q.client.set(q.task("bad"), "x")
    found = await q.inspector._tasks.info("q", ["bad", "a"])
    assert found[0] is None
    assert found[1] is not None


async def test_only_a_key_of_a_wrong_type_is_put_aside(q: Bench) -> None:
    await q.pend("a")
    pending, aside = q.key("pending"), q.key("damaged:pending")
    assert await q.redis.run(RENAME_DAMAGED, [pending, aside], ["list"]) == 0
    assert await q.redis.run(RENAME_DAMAGED, [pending, aside], ["zset"]) == 1
    assert await q.client.exists(pending, aside) == 1


async def test_a_queue_is_cleared_only_when_it_is_empty_and_loses_its_pause_last(q: Bench) -> None:
    await q.client.sadd(keys.QUEUES, "q")
    paused, odd = q.key("paused"), q.key("odd")

    async def clear(last: int) -> int:
        return int(await run(q, CLEAR, "q", last, 2, paused, odd, more=(paused, keys.QUEUES)))

    await q.client.set(paused, 1)
    await q.client.set(odd, 1)
    await q.client.zadd(q.key("aggregation_sets"), {"x": 1})
    await q.client.sadd(q.key("groups"), "g")
    before = await q.everything()
    assert await clear(1) == 0
    assert await q.everything() == before, "a group has members"
    await q.client.delete(q.key("groups"))
    assert await clear(0) == 1
    assert set(await q.everything()) == {paused, keys.QUEUES}
    assert await clear(1) == 1
    assert await q.everything() == {}


async def page(q: Bench, state: str, *anchors: str, start: int = 0, newest: int = 0, most: int = 1 << 20) -> list[Any]:
    """(id, place or score) of each row, after the start that was used."""
    _, _, at, rows = await run(q, LIST, state, "", newest, start, 10, most, len(anchors), *anchors)
    return [at, *[(rows[n].decode(), int(rows[n + 1])) for n in range(0, len(rows), 5)]]


async def test_a_page_is_counted_from_the_tail_goes_on_behind_an_anchor_and_ends_with_its_bytes(q: Bench) -> None:
    await q.pend("a", "b", "c")
    assert await page(q, "pending") == [0, ("a", 0), ("b", 1), ("c", 2)]
    assert await page(q, "pending", newest=1) == [0, ("c", 2), ("b", 1), ("a", 0)]
    assert await page(q, "pending", newest=1, start=1) == [1, ("b", 1), ("a", 0)]
    assert await page(q, "pending", most=1) == [0, ("a", 0)]
    size = len(q.message("a"))
    assert await page(q, "pending", most=size) == [0, ("a", 0), ("b", 1)], "one more as long as no byte is over"
    await q.fill("scheduled", "x", "y", "z")
    assert [row[0] for row in (await page(q, "scheduled", "gone", "x"))[1:]] == ["y", "z"]


@pytest.mark.parametrize(("spare", "count"), [(-1, 1), (0, 2)])
async def test_an_examination_ends_with_its_bytes(q: Bench, spare: int, count: int) -> None:
    await q.pend("a", "b", "c")
    names = [q.key(name) for name in CONTAINERS.split()]
    tasks: list[Argument] = [3, "a", "b", "c"]
    rows = await q.redis.run(EXAMINE, names, [keys.queue_prefix(q.name), 1, len(q.message("a")) + spare, *tasks])
    assert len(rows) == 5 * count
    rows = await q.redis.run(EXAMINE, names, [keys.queue_prefix(q.name), 0, 1, *tasks])
    assert len(rows) == 15, "without messages all of them fit"


async def test_a_key_that_is_no_lock_of_this_queue_is_not_deleted_as_one(q: Bench) -> None:
    await q.pend("a")
    await q.client.set("precious", "a")
    await q.client.hset(q.task("a"), "unique_key", "precious")
    await q.inspector.delete("q", "a")
    assert await q.client.get("precious") == b"a"


async def test_a_copy_is_not_taken_in_when_another_task_holds_its_lock(q: Bench) -> None:
    await q.client.set(q.lock(), "another")
    before = await q.everything()
    assert await run(q, STAGE_COPY, "a", "source", q.lock(), 1, "msg", q.message("a")) == -2
    assert await q.everything() == before
    await q.client.delete(q.lock())
    assert await run(q, STAGE_COPY, "a", "source", q.lock(), 1, "msg", q.message("a")) == 1


async def test_a_task_that_has_another_state_by_now_is_not_given_up_for_its_copy(q: Bench) -> None:
    await q.pend("a")
    before = await q.everything()
    assert await run(q, DELETE_ORIGINAL, "a", "", q.message("a"), "scheduled") == -5
    assert await q.everything() == before
    assert await run(q, DELETE_ORIGINAL, "a", "", q.message("a"), "pending") == 1


@pytest.mark.parametrize("page", [1, 2, 3, 4])
async def test_a_queue_is_cleared_page_by_page_and_its_pause_and_name_come_last(
    q: Bench, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(queues, "_PAGE", page)
    names = [q.key(name) for name in ("paused", "processed", "failed", "unique:x")]
    for name in names:
        await q.client.set(name, 1)
    await q.client.sadd(keys.QUEUES, q.name, "other")
    assert await Queues(q.redis).clear(q.name, [name.encode() for name in names])
    assert await q.client.keys("*") == [keys.QUEUES.encode()]
    assert await q.client.smembers(keys.QUEUES) == {b"other"}


@pytest.mark.parametrize(
    ("state", "score", "extra", "place"),
    [
        ("active", None, None, {"is_orphaned": True, "seen_at": -1}),
        ("active", 3, b"10", {"is_orphaned": True, "seen_at": 3}),
        ("active", 0, b"10.001", {"is_orphaned": False, "seen_at": 0}),
        ("pending", None, None, {"next_ms": 10_000, "seen_at": -1}),
        ("pending", 2, None, {"next_ms": 10_000, "seen_at": 2}),
        ("scheduled", b"5", b"4500", {"score": 5, "next_ms": 4500}),
        ("retry", b"5", b"5000", {"score": 5, "next_ms": 5000}),
        ("retry", b"5", b"5001", {"score": 5, "next_ms": 5000}),
        ("scheduled", b"5", None, {"score": 5, "next_ms": 5000}),
        ("scheduled", None, None, {"score": 0}),
        ("archived", b"7", b"6500", {"score": 7}),
        ("completed", None, None, {"score": 0}),
    ],
)
def test_what_the_place_of_a_task_says_of_it(state: str, score: Any, extra: Any, place: dict[str, Any]) -> None:
    assert _place(state, 10_000, score, extra) == place
