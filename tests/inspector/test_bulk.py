"""run_all, archive_all, delete_all, cancel_all: small portions, order, progress, stop, the archive's limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import check_invariant
from tests.support.queue import NOW
from tests.support.servers import VALKEY_ONLY
from tests.support.sizes import FULL
from veredus.errors import ArchiveFull, ConfigError
from veredus.inspector.inspector import Inspector
from veredus.inspector.search import Query
from veredus.model.archive import ArchiveLimits
from veredus.store.inspect.tasks import CHUNK, Tasks

MANY = 1_000_000 if FULL else 20_000
STALL_US = 50_000


def _ids(count: int) -> list[str]:
    return [f"t{n:07d}" for n in range(count)]


async def _many(q: Bench, state: str, count: int, *, lock_every: int = 0) -> list[str]:
    """Tasks written directly, since the scripts would take long; the ids in the order in which they come first."""
    ids = _ids(count)
    data = q.message("x")
    for start in range(0, count, 2000):
        pipe = q.client.pipeline(transaction=False)
        for n in range(start, min(start + 2000, count)):
            fields: dict[str, Any] = {"msg": data, "state": state}
            if lock_every and n % lock_every == 0:
                fields["unique_key"] = q.lock(str(n))
                pipe.set(q.lock(str(n)), ids[n])
            if state == "aggregating":
                fields["group"] = "g"
            pipe.hset(q.task(ids[n]), mapping=fields)
        part = ids[start : start + 2000]
        if state == "pending":
            pipe.lpush(q.key("pending"), *part)
        else:
            place = "g:g" if state == "aggregating" else state
            pipe.zadd(q.key(place), {one: NOW // 1000 + start + n for n, one in enumerate(part)})
            if state in ("scheduled", "retry"):
                pipe.zadd(q.key("due"), {one: NOW - NOW % 1000 + (start + n) * 1000 for n, one in enumerate(part)})
        await pipe.execute()
    if state == "aggregating":
        await q.client.sadd(q.key("groups"), "g")
    await q.client.sadd("asynq:queues", "q")
    return ids


async def _no_stall(client: Any, prepare: Callable[[], Awaitable[Any]], act: Callable[[], Awaitable[Any]]) -> Any:
    """What `act` gives; no call of it takes so long. On a busy machine the server itself may be held up in the midst of
    a call. At full size, what comes from that does not come three times in a row, what comes from us does; at the small
    size it is the server's CPU time that is looked at, per call."""
    await client.config_set("slowlog-log-slower-than", STALL_US)
    for _ in range(3 if FULL else 1):
        await client.flushall()
        await prepare()
        await client.slowlog_reset()
        await client.config_resetstat()
        before = await _cpu_us(client)
        result = await act()
        used = await _cpu_us(client) - before
        slow = await client.slowlog_get(100)
        if not slow:
            break
    calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert not slow if FULL else used / calls < STALL_US
    return result


async def _cpu_us(client: Any) -> float:
    info = await client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6


@pytest.mark.timeout(1800 if FULL else 120)
@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("run_all", "scheduled"),
        ("run_all", "archived"),
        ("archive_all", "pending"),
        ("delete_all", "pending"),
        ("delete_all", "completed"),
        ("delete_all", "aggregating"),
    ],
)
async def test_very_many_without_a_stall(q: Bench, inspector: Inspector, verb: str, state: str) -> None:
    steps: list[tuple[int, int]] = []
    given = {"drop_excess": True} if verb == "archive_all" else {}

    async def prepare() -> None:
        await _many(q, state, MANY, lock_every=100)

    async def act() -> Any:
        steps.clear()
        report = lambda done, total: steps.append((done, total))  # noqa: E731
        return await getattr(inspector, verb)("q", state, progress=report, **given)

    result = await _no_stall(q.client, prepare, act)
    assert (result.done, result.total, result.stopped) == (MANY, MANY, False)
    assert steps[-1] == (MANY, MANY)
    assert steps == sorted(steps)
    assert len(steps) >= MANY // CHUNK
    locks = [key async for key in q.client.scan_iter(q.key("unique:*"), count=5000)]
    if verb == "run_all":
        assert await q.pending() == _ids(MANY)
        assert len(locks) == MANY // 100
        assert not await q.client.exists(q.key(state), q.key("due"))
    else:
        assert locks == []
        kept = 9_999 if verb == "archive_all" else 0
        assert await q.client.zcard(q.key("archived")) == kept
        assert result.dropped == (MANY - kept if kept else 0)
        hashes = [key async for key in q.client.scan_iter(q.task("*"), count=5000)]
        assert len(hashes) == kept
    if not FULL:
        assert await check_invariant(q.client) == []


@pytest.mark.timeout(1800 if FULL else 120)
@VALKEY_ONLY
async def test_what_fits_a_search_in_a_very_long_list(q: Bench, inspector: Inspector) -> None:
    ids = _ids(MANY)
    hits = ids[:: MANY // 1000]

    async def prepare() -> None:
        await _many(q, "pending", MANY)
        for one in hits:
            await q.client.hset(q.task(one), "msg", q.message(one, type="hit"))

    async def act() -> Any:
        result = await inspector.delete_all("q", "pending", where=Query(type="hit"))
        await inspector.delete("q", ids[MANY // 2 + 1])
        return result

    result = await _no_stall(q.client, prepare, act)
    assert result.done == len(hits)
    gone = {*hits, ids[MANY // 2 + 1]}
    assert await q.pending() == [one for one in ids if one not in gone]


async def test_a_search_works_in_lists_that_are_worked_on(q: Bench, inspector: Inspector) -> None:
    ids = await _many(q, "pending", 3000)
    taken: list[str] = []

    async def work() -> None:
        for n in range(40):
            got, _ = await q.dequeue(7, worker="z", number=n + 1)
            taken.extend(got)
            await asyncio.sleep(0.001)

    worker = asyncio.create_task(work())
    result = await inspector.archive_all("q", "pending", where=Query(type="t"))
    await worker
    assert result.done + len(taken) + await q.client.llen(q.key("pending")) == len(ids)
    assert await check_invariant(q.client) == []


@pytest.mark.parametrize("where", [None, Query(type="t")])
async def test_a_stop_ends_it_between_two_portions(q: Bench, inspector: Inspector, where: Query | None) -> None:
    await _many(q, "retry", 4 * CHUNK)
    stop = threading.Event()

    def progress(done: int, total: int) -> None:
        if done >= 2 * CHUNK:
            stop.set()

    result = await inspector.delete_all("q", "retry", where=where, progress=progress, stop=stop)
    assert result == type(result)(2 * CHUNK, 4 * CHUNK, 0, True)
    assert await q.client.zcard(q.key("retry")) == 2 * CHUNK
    assert await check_invariant(q.client) == []


@VALKEY_ONLY
async def test_a_stop_that_comes_with_the_last_portion_has_stopped_nothing(q: Bench, inspector: Inspector) -> None:
    await q.fill("retry", "a", "b")
    stop = threading.Event()
    result = await inspector.delete_all("q", "retry", progress=lambda done, total: stop.set(), stop=stop)
    assert (result.done, result.total, result.stopped) == (2, 2, False)


@VALKEY_ONLY
async def test_a_stop_ends_it_between_two_groups(q: Bench, inspector: Inspector) -> None:
    for group in ("g", "h", "i"):
        await q.join(group, f"{group}1")
    stop = threading.Event()
    result = await inspector.delete_all("q", "aggregating", progress=lambda done, total: stop.set(), stop=stop)
    assert (result.done, result.total, result.stopped) == (1, 3, True)
    assert len(await inspector.groups("q")) == 2


@VALKEY_ONLY
async def test_what_others_add_meanwhile_is_not_chased_after(
    q: Bench, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.fill("retry", "a", "b")
    count = Tasks.count

    async def count_and_add(self: Tasks, queue: str, state: str, *, group: str = "") -> int:
        counted = await count(self, queue, state, group=group)
        await q.fill("retry", "c", "d", "e")
        return counted

    monkeypatch.setattr(Tasks, "count", count_and_add)
    result = await inspector.delete_all("q", "retry")
    assert (result.done, result.total) == (2, 2)
    assert await q.client.zcard(q.key("retry")) == 3


@pytest.mark.parametrize("where", [None, Query(type="t")])
async def test_an_archive_without_room_refuses_and_says_how_many(q: Bench, where: Query | None) -> None:
    inspector = q.inspector
    inspector._tasks.limits = ArchiveLimits(size=100)
    await q.fill("archived", *[f"old{n}" for n in range(60)])
    await q.pend(*[f"p{n}" for n in range(50)])
    before = await q.everything()
    with pytest.raises(ArchiveFull, match="would delete 10") as caught:
        await inspector.archive_all("q", "pending", where=where)
    assert (caught.value.tasks, caught.value.excess, caught.value.limit) == (50, 10, 100)
    assert await q.everything() == before
    result = await inspector.archive_all("q", "pending", where=where, drop_excess=True)
    assert result.done == 50
    kept = await q.scores("archived")
    assert len(kept) == 100
    assert not {f"old{n}" for n in range(10)} & set(kept)
    assert await check_invariant(q.client) == []


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "archived", "completed", "aggregating"])
@pytest.mark.parametrize("verb", ["run", "archive", "delete"])
async def test_all_at_once_have_the_effects_of_one_by_one(q: Bench, verb: str, state: str) -> None:
    """Every key, field and score, whether all are asked for or those that fit a search."""
    if state == {"run": "pending", "archive": "archived"}.get(verb):
        return  # they are there already

    async def filled() -> None:
        await q.client.flushall()
        q.number = 0
        await q.fill(state, "a", "b", "c", type="x")
        await q.client.hset(q.task("b"), "unique_key", q.lock())
        await q.client.set(q.lock(), "b", ex=600)

    await filled()
    for one in await q.inspector.tasks("q", state, group="g" if state == "aggregating" else None):
        await getattr(q.inspector, verb)("q", one.id)
    expected = await q.everything()
    for where in (None, Query(type="x")):
        await filled()
        result = await getattr(q.inspector, f"{verb}_all")("q", state, where=where)
        assert (result.done, await q.everything()) == (3, expected)


@pytest.mark.parametrize("state", ["scheduled", "retry", "archived", "completed", "aggregating"])
async def test_all_groups_or_one_and_all_that_fit(q: Bench, inspector: Inspector, state: str) -> None:
    await q.fill(state, "a1", "a2", type="x", lock="")
    await q.fill(state, "b1", type="y")
    if state == "aggregating":
        await q.join("h", "h1", type="x")
        assert (await inspector.run_all("q", state, group="h")).done == 1
    assert (await inspector.run_all("q", state, where=Query(type="x"))).done == 2
    assert (await inspector.run_all("q", state)).done == 1
    assert await q.client.llen(q.key("pending")) == (4 if state == "aggregating" else 3)
    assert await check_invariant(q.client) == []


@pytest.mark.parametrize("verb", ["run_all", "archive_all", "delete_all"])
async def test_damaged_entries_are_dropped_and_stop_nothing(q: Bench, inspector: Inspector, verb: str) -> None:
    await q.fill("retry", "a", "gone", "stub", "wrong", "elsewhere", "misnamed", "z")
    await q.client.delete(q.task("gone"), q.task("wrong"))
    await q.client.hdel(q.task("stub"), "msg")
    await q.client.set(q.task("wrong"), "x")
    await q.client.hset(q.task("elsewhere"), "state", "scheduled")
    await q.client.zadd(q.key("scheduled"), {"elsewhere": 5_000_000_000})
    await q.client.hset(q.task("misnamed"), "state", "completed")
    result = await getattr(inspector, verb)("q", "retry")
    assert (result.done, result.total) == (3, 7)
    assert await q.scores("scheduled") == {"elsewhere": 5_000_000_000}
    assert not await q.client.exists(q.key("retry"), q.task("stub"))
    assert await q.client.get(q.task("wrong")) == b"x"


async def test_cancel_all_tells_of_every_running_task(q: Bench, inspector: Inspector) -> None:
    await q.fill("active", "a", "b", "c")
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("asynq:cancel")
        assert await pubsub.get_message(timeout=10)
        assert (await inspector.cancel_all("q")).done == 3
        heard = {(await pubsub.get_message(timeout=10))["data"] for _ in "abc"}
    assert heard == {b"a", b"b", b"c"}
    assert [(await q.fields(one))["cancel"] for one in "abc"] == ["archive"] * 3
    assert (await inspector.cancel_all("q", then="delete", where=Query(payload='"b"'))).done == 1
    assert (await q.fields("b"))["cancel"] == "delete"


async def test_states_for_which_it_makes_no_sense_are_refused(q: Bench, inspector: Inspector) -> None:
    await q.pend("a")
    for verb, state in (
        ("run_all", "pending"),
        ("run_all", "active"),
        ("archive_all", "archived"),
        ("archive_all", "active"),
        ("delete_all", "active"),
    ):
        with pytest.raises(ConfigError, match="state"):
            await getattr(inspector, verb)("q", state)
