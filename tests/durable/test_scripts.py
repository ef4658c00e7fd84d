"""The scripts of durable tasks, called at a given time: what they return, what they write and what they leave alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.results.test_scripts import listening, said
from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences
from tests.support.servers import VALKEY_ONLY
from veredus.store.tasks.children import FORGET
from veredus.store.tasks.runs import JOIN, LOOK, OPEN, RETAKE, STEP, WAIT, WAKE
from veredus.store.tasks.work import PARK
from veredus.wire import keys

pytestmark = VALKEY_ONLY
WAITING = "pending scheduled due waits"
MARK = "m1"
CHANNEL = "asynq:ends:me"


async def park(q: Queue, *rows: tuple[str, str, int, str], owner: str = "w:1", now: int = NOW) -> list[int]:
    """Each row: id, kind, end, field."""
    args = PARK.args([q.key(""), keys.delay_wakeup(q.name)], [(row[0], owner, *row[1:]) for row in rows])
    return list(await q.redis.run(PARK, q.keys("active lease pending scheduled retry due waits"), [*args, now]))


async def wake(q: Queue, *rows: tuple[str, str, str, bytes], now: int = NOW) -> int:
    """Each row: id, mark, field, outcome."""
    return int(await q.redis.run(WAKE, q.keys(WAITING), [*WAKE.args([q.key("")], list(rows)), now]))


async def join(q: Queue, *rows: tuple[str, str, str, int, bytes], now: int = NOW) -> int:
    """Each row: id, mark, name, position, outcome."""
    return int(await q.redis.run(JOIN, q.keys(WAITING), [*JOIN.args([q.key("")], list(rows)), now]))


async def look(q: Queue, limit: int = 100, now: int = NOW) -> list[tuple[str, ...]]:
    """Id, mark, kind and field of each that is to be looked at."""
    flat = [item.decode() for item in await q.redis.run(LOOK, q.keys("waits scheduled"), [q.key(""), limit, now])]
    return [tuple(flat[i : i + 4]) for i in range(0, len(flat), 4)]


async def wait(
    q: Queue, delay_ms: int, outcome: bytes = b"", *, times_out: bool = False, owner: str = "w:1", now: int = NOW
) -> bytes:
    """Of the task `a`, in the field `e:x`."""
    given: list[Any] = [q.key(""), "a", owner, "e:x", delay_ms, outcome, int(times_out), now]
    at, value = await q.redis.run(WAIT, q.keys("lease"), given)
    assert at == now
    return bytes(value)


async def open_run(q: Queue, new_mark: str = MARK, *, most: int = 100, owner: str = "w:1") -> list[Any]:
    at, *reply = await q.redis.run(OPEN, q.keys("lease"), [q.key(""), "a", owner, new_mark, most, NOW])
    assert at == NOW
    return list(reply)


async def step(q: Queue, *rows: tuple[str, str, str, bytes]) -> list[int]:
    """Each row: id, owner, field, value."""
    return list(await q.redis.run(STEP, q.keys("lease"), [*STEP.args([q.key("")], list(rows)), NOW]))


async def waiting(q: Queue, task_id: str, field: str = "e:x", **fields: str) -> None:
    """A task that waits without end."""
    owner = f"{task_id}:1"
    await q.activate(task_id, owner=owner)
    assert await park(q, (task_id, "event", 0, field), owner=owner) == []
    await q.client.hset(q.task(task_id), mapping={"run": MARK, **fields})


# ---- park


async def test_a_task_is_set_aside_until_its_wait_ends_or_until_it_is_woken(q: Queue) -> None:
    await q.activate("a", "b")
    async with q.wakeups() as heard:
        assert await park(q, ("a", "event", 0, "e:x"), ("b", "sleep", NOW + 2500, "z:y")) == []
    assert heard == [str(NOW + 2500)]
    common = {"msg": "", "state": "scheduled", "front": "1"}
    found = await q.everything()
    assert {name: found.get(name) for name in (q.task("a"), q.task("b"), *q.keys("active lease pending retry"))} == {
        q.task("a"): Key("hash", {**common, "waiting": f"event 0 {NOW} e:x"}, "none"),
        q.task("b"): Key("hash", {**common, "waiting": f"sleep {NOW + 2500} {NOW} z:y"}, "none"),
        **dict.fromkeys(q.keys("active lease pending retry")),
    }
    assert await q.scores("scheduled") == {"a": 9999999998, "b": 4_000_000_003}
    assert await q.scores("due") == {"b": NOW + 2500}
    assert await q.scores("waits") == {"a": NOW + 1000}, "a sleep ends by itself"


async def test_the_forwarders_hear_of_the_earliest_of_those_that_sleep(q: Queue) -> None:
    await q.activate("a", "b", "c", "d")
    rows = ("a", "sleep", NOW + 3000, "z:"), ("b", "sleep", NOW + 2000, "z:"), ("c", "sleep", NOW + 4000, "z:")
    async with q.wakeups() as heard:
        await park(q, *rows, ("d", "event", 0, "e:x"))
    assert heard == [str(NOW + 2000)]


async def test_who_sleeps_with_a_unique_lock_is_looked_at_for_the_sake_of_the_lock(q: Queue) -> None:
    await q.enqueue(("a", b"A", "lock", 100))
    await q.dequeue(1)
    await park(q, ("a", "sleep", NOW + 7_200_000, "z:y"))
    assert await q.scores("waits") == {"a": NOW + 1000}
    assert 3655 < await q.client.ttl("lock") <= 3660


@pytest.mark.parametrize(
    ("ends", "fields"),
    [
        (NOW, {}),
        (0, {"e:x": "+"}),
        (NOW + 60_000, {"e:x": "-"}),
        (0, {"cancel": "archive"}),
    ],
)
async def test_what_has_come_already_lets_the_task_go_on_as_the_next_to_run(
    q: Queue, ends: int, fields: dict[str, str]
) -> None:
    await q.enqueue(("a", b"A", "lock", 10))
    await q.dequeue(1)
    if fields:
        await q.client.hset(q.task("a"), mapping=fields)
    await q.client.expire("lock", 10)
    await q.enqueue("first")
    await q.client.zadd(q.key("idle"), {CHANNEL: NOW})
    async with listening(q, CHANNEL) as heard, q.wakeups() as due:
        assert await park(q, ("a", "event", ends, "e:x")) == []
    assert (heard, due) == ([(CHANNEL, q.key("").encode())], [])
    assert await q.pending() == ["a", "first"]
    kept = {"msg": "A", "unique_key": "lock", **fields}
    assert await q.fields("a") == {**kept, "state": "pending", "pending_since": f"{NOW}000000"}
    assert [await q.scores(name) for name in ("scheduled", "due", "waits", "lease")] == [{}, {}, {}, {}]
    assert 55 < await q.client.ttl("lock") <= 60


@pytest.mark.parametrize("fields", [{}, {"e:x": "12"}, {"e:x": ""}, {"e:y": "+"}])
async def test_what_has_not_come_does_not(q: Queue, fields: dict[str, str]) -> None:
    """An instant is no outcome, nor is that of another wait."""
    await q.activate("a")
    if fields:
        await q.client.hset(q.task("a"), mapping=fields)
    await park(q, ("a", "event", NOW + 1, "e:x"))
    assert await q.scores("scheduled") == {"a": 4_000_000_001}
    assert await q.pending() == []


@FENCES
async def test_who_lost_the_task_parks_nothing(q: Queue, fence: Fence) -> None:
    await q.activate("a", "b")
    owner = await fence(q)
    before = await q.everything()
    assert await park(q, ("a", "event", 0, "e:x"), owner=owner) == [1]
    assert differences(before, await q.everything()) == {}


# ---- look


@pytest.mark.parametrize(
    ("age", "pause"),
    [(0, 1000), (999, 1000), (1000, 5000), (9999, 5000), (10_000, 30_000), (59_999, 30_000), (60_000, 300_000)],
)
async def test_the_longer_a_task_waits_the_rarer_it_is_looked_at(q: Queue, age: int, pause: int) -> None:
    await waiting(q, "a")
    await q.client.zadd(q.key("waits"), {"a": NOW})
    assert await look(q, now=NOW + age) == [("a", MARK, "event", "e:x")]
    assert await q.scores("waits") == {"a": NOW + age + pause}


async def test_a_look_takes_those_whose_turn_it_is_and_not_too_many(q: Queue) -> None:
    for name in "abcd":
        await waiting(q, name)
    for place, name in enumerate("abcd"):
        await q.client.zadd(q.key("waits"), {name: NOW + place})
    assert [row[0] for row in await look(q, 2, now=NOW + 2)] == ["a", "b"]
    assert [row[0] for row in await look(q, 2, now=NOW + 2)] == ["c"], "it is the turn of `d` a millisecond later"


async def test_what_no_longer_waits_is_not_looked_at_any_more(q: Queue) -> None:
    for name in "abcd":
        await waiting(q, name)
    await q.client.delete(q.task("a"))
    await q.client.hset(q.task("b"), "state", "retry")
    await q.client.hset(q.task("c"), "waiting", "damaged")
    await q.client.zrem(q.key("scheduled"), "d")
    await q.client.zadd(q.key("waits"), dict.fromkeys("abcd", NOW))
    assert await look(q) == []
    assert await q.scores("waits") == {}


async def test_each_look_keeps_the_unique_lock(q: Queue) -> None:
    await q.enqueue(("a", b"A", "lock", 100))
    await q.dequeue(1)
    await park(q, ("a", "event", 0, "e:x"))
    await q.client.expire("lock", 10)
    assert await look(q, now=NOW + 1000) == [("a", "", "event", "e:x")]
    assert 3655 < await q.client.ttl("lock") <= 3660


# ---- wake


async def test_an_outcome_makes_the_task_that_waits_for_it_the_next_to_run(q: Queue) -> None:
    await waiting(q, "a", unique_key="lock", **{"b:e:x": "77"})
    await waiting(q, "b")
    await q.enqueue("first")
    await q.client.zadd(q.key("idle"), {CHANNEL: NOW})
    async with listening(q, CHANNEL) as heard:
        assert await wake(q, ("a", MARK, "e:x", b"+1"), ("b", MARK, "e:x", b"-")) == 2
    assert heard == [(CHANNEL, q.key("").encode())]
    assert await q.pending() == ["b", "a", "first"]
    shown = await q.fields("a")
    assert shown["e:x"] == "+1"
    assert shown["b:e:x"] == f"77 {NOW}"
    assert (shown["state"], shown["pending_since"], "front" in shown) == ("pending", f"{NOW}000000", False)
    assert (await q.fields("b"))["b:e:x"] == f"{NOW} {NOW}"
    assert [await q.scores(name) for name in ("scheduled", "due", "waits")] == [{}, {}, {}]
    assert 55 < await q.client.ttl("lock") <= 60
    assert await wake(q, ("a", MARK, "e:x", b"+1")) == 0, "it waits no more"
    assert await q.pending() == ["b", "a", "first"]


async def test_the_first_outcome_counts(q: Queue) -> None:
    await waiting(q, "a", **{"e:x": "+1", "b:e:x": "5 6"})
    assert await wake(q, ("a", MARK, "e:x", b"+2")) == 1
    shown = await q.fields("a")
    assert (shown["e:x"], shown["b:e:x"]) == ("+1", "5 6")


async def test_the_end_of_a_wait_gives_way_to_its_outcome(q: Queue) -> None:
    await waiting(q, "a", **{"e:x": str(NOW + 5000)})
    assert await wake(q, ("a", MARK, "e:x", b"-")) == 1
    assert (await q.fields("a"))["e:x"] == "-"


async def test_an_outcome_is_kept_whatever_the_task_is_doing(q: Queue) -> None:
    await waiting(q, "b", "e:y")
    await q.activate("a")
    await q.client.hset(q.task("a"), "run", MARK)
    assert await wake(q, ("a", MARK, "e:x", b"+1"), ("b", MARK, "e:x", b"+1")) == 0
    assert [(await q.fields(name))["e:x"] for name in "ab"] == ["+1", "+1"]
    assert await q.pending() == []
    assert await q.scores("scheduled") == {"b": 9999999998}


async def test_an_outcome_for_another_run_or_for_no_task_is_dropped(q: Queue) -> None:
    await waiting(q, "a")
    before = await q.everything()
    assert await wake(q, ("a", "m2", "e:x", b"+1"), ("none", MARK, "e:x", b"+1")) == 0
    assert differences(before, await q.everything()) == {}


# ---- wait


@pytest.mark.parametrize(("delay", "stored"), [(2500, NOW + 2500), (0, NOW), (-1, 0)])
async def test_the_end_of_a_wait_is_stored_at_its_first_call(q: Queue, delay: int, stored: int) -> None:
    await q.activate("a")
    value = str(stored).encode()
    assert await wait(q, delay) == value
    before = await q.everything()
    assert before[q.task("a")].value["b:e:x"] == str(NOW)
    assert await wait(q, 99, now=NOW + 7) == value
    assert differences(before, await q.everything()) == {}


async def test_a_wait_times_out_at_its_end_and_not_before(q: Queue) -> None:
    await q.activate("a")
    assert await wait(q, 2500, times_out=True) == b"%d" % (NOW + 2500)
    assert await wait(q, 2500, times_out=True, now=NOW + 2499) == b"%d" % (NOW + 2500)
    assert await wait(q, 2500, now=NOW + 2500) == b"%d" % (NOW + 2500), "it was not asked to"
    assert await wait(q, 2500, times_out=True, now=NOW + 2500) == b"-"
    shown = await q.fields("a")
    assert (shown["e:x"], shown["b:e:x"]) == ("-", f"{NOW} {NOW + 2500}")
    assert await wait(q, 2500, b"+late", now=NOW + 2501) == b"-"


async def test_a_wait_without_end_never_times_out(q: Queue) -> None:
    await q.activate("a")
    await wait(q, -1)
    assert await wait(q, -1, times_out=True, now=NOW + 10**9) == b"0"


async def test_a_wait_whose_outcome_is_there_needs_no_end(q: Queue) -> None:
    await q.activate("a")
    assert await wait(q, 0, b"+1", times_out=True) == b"+1"
    shown = await q.fields("a")
    assert (shown["e:x"], shown["b:e:x"]) == ("+1", f"{NOW} {NOW}")


@FENCES
async def test_who_lost_the_task_learns_that_and_keeps_nothing(q: Queue, fence: Fence) -> None:
    await q.activate("a", "b")
    owner = await fence(q)
    before = await q.everything()
    assert await wait(q, 2500, owner=owner) == b""
    assert await open_run(q, owner=owner) == [b"", [], 0, b"", 0, b""]
    assert await step(q, ("a", owner, "s:one", b"+1")) == [1]
    assert differences(before, await q.everything()) == {}


# ---- open and step


async def test_a_run_gets_its_mark_once_and_does_not_expire(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), mapping={"expires_at": "5", "order_key": "k"})
    assert await open_run(q) == [MARK.encode(), [], 0, b"k", 0, b""]
    shown = await q.fields("a")
    assert (shown["run"], shown["b:"], "expires_at" in shown) == (MARK, str(NOW), False)
    assert await step(q, ("a", "w:1", "s:one", b"+1")) == []
    mark, kept, *rest = await open_run(q, "m2")
    assert (mark, rest) == (MARK.encode(), [0, b"k", 0, b""])
    assert dict(zip(kept[::2], kept[1::2], strict=True)) == {b"b:": str(NOW).encode(), b"s:one": b"+1"}


async def test_what_woke_a_run_is_told_once_and_that_it_was_archived_until_it_is_forgotten(q: Queue) -> None:
    await q.activate("a")
    await open_run(q)
    await q.client.hset(q.task("a"), mapping={"woke": "event 0 1 e:x", "resumed": "1"})
    assert (await open_run(q))[3:] == [b"", 1, b"event 0 1 e:x"]
    assert (await open_run(q))[3:] == [b"", 1, b""]


async def test_a_run_with_more_fields_than_were_asked_for_says_so(q: Queue) -> None:
    await q.activate("a")
    await open_run(q)
    size = await q.client.hlen(q.task("a"))
    assert [(await open_run(q, most=most))[2] for most in (size, size - 1)] == [0, 1]
    assert [bool((await open_run(q, most=most))[1]) for most in (size, size - 1)] == [True, False]


async def test_of_several_rows_those_are_named_that_were_lost(q: Queue) -> None:
    await q.activate("a", "b")
    rows = [("a", "x:1", "s:1", b"+"), ("b", "w:1", "s:1", b"+"), ("none", "w:1", "s:1", b"+")]
    assert await step(q, *rows) == [1, 3]
    assert (await q.fields("b"))["s:1"] == "+"
    assert "s:1" not in await q.fields("a")
    assert await q.fields("none") == {}


@pytest.mark.parametrize(
    ("field", "marks", "is_noted"),
    [
        ("g:pages", {"cancel": "archive", "cancel_kids": "archive"}, True),
        ("g:pages", {"cancel": "archive"}, False),
        ("g:pages", {"cancel_kids": "archive"}, False),
        ("s:pages", {"cancel": "archive", "cancel_kids": "archive"}, False),
    ],
)
async def test_a_fan_out_of_a_task_that_is_cancelled_with_its_children_is_noted(
    q: Queue, field: str, marks: dict[str, str], is_noted: bool
) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), mapping={"run": MARK, **marks})
    assert await step(q, ("a", "w:1", field, b"3 digest")) == []
    noted = await q.client.hgetall(keys.orphans(q.name))
    record = {f"a {MARK}".encode(): json.dumps(["archive", [["pages", "3 digest"]]], separators=(",", ":")).encode()}
    assert noted == (record if is_noted else {})
    if is_noted:
        assert 2_591_990 < await q.client.ttl(keys.orphans(q.name)) <= 2_592_000


# ---- join


def kids(q: Queue, task_id: str = "a", chunk: int = 0, name: str = "pages") -> str:
    return keys.kids(q.name, task_id, MARK, name, chunk)


async def test_the_last_outcome_of_a_fan_out_calls_its_parent_back(q: Queue) -> None:
    for name in "ab":
        await waiting(q, name, "o:pages", **{"g:pages": "2 digest"})
    rows = [(name, MARK, "pages", 1, b"+1") for name in "ab"]
    assert await join(q, *rows) == 0
    assert await q.client.hgetall(kids(q)) == {b"1": b"+1"}
    assert 2_591_990 < await q.client.ttl(kids(q)) <= 2_592_000
    assert await q.pending() == []
    assert await join(q, *rows, ("a", MARK, "pages", 0, b"+0"), ("b", MARK, "pages", 0, b"-")) == 2
    assert sorted(await q.pending()) == ["a", "b"]
    shown = await q.fields("a")
    assert (shown["o:pages"], shown["b:g:pages"], "progress" in shown) == ("+", f"{NOW} {NOW}", False)
    assert await join(q, ("a", MARK, "pages", 0, b"+9"), now=NOW + 5) == 0
    assert await q.client.hgetall(kids(q)) == {b"1": b"+1", b"0": b"+0"}, "the first outcome counts"
    assert (await q.fields("a"))["b:g:pages"] == f"{NOW} {NOW}"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("o:pages", {}),
        ("o:pages", {"g:pages": "digest"}),
        ("o:pages", {"g:pages": "10000001 digest"}),
        ("o:pages", {"g:pages": "2 digest"}),
        ("o:other", {"g:pages": "1 digest"}),
    ],
)
async def test_a_parent_waits_on_for_what_is_not_there_or_not_known(
    q: Queue, field: str, fields: dict[str, str]
) -> None:
    await waiting(q, "a", field, **fields)
    assert await join(q, ("a", MARK, "pages", 0, b"+")) == 0
    assert await q.scores("scheduled") == {"a": 9999999998}
    assert ("o:pages" in await q.fields("a")) == (field == "o:other")


@pytest.mark.parametrize(("mark", "state"), [("m2", "scheduled"), (MARK, "completed")])
async def test_a_parent_of_another_run_or_one_that_has_completed_gets_no_outcome(
    q: Queue, mark: str, state: str
) -> None:
    await waiting(q, "a", "o:pages", **{"g:pages": "1 digest"})
    await q.client.hset(q.task("a"), "state", state)
    before = await q.everything()
    assert await join(q, ("a", mark, "pages", 0, b"+"), ("none", mark, "pages", 0, b"+")) == 0
    assert differences(before, await q.everything()) == {}


async def test_outcomes_are_counted_over_all_hashes_and_damaged_ones_not_twice(q: Queue) -> None:
    await waiting(q, "a", "o:pages", **{"g:pages": "1001 digest"})
    rows = [("a", MARK, "pages", position, b"+") for position in (*range(999), 1000, 1001)]
    assert await join(q, *rows) == 0, "1001 is no position of it"
    assert [await q.client.hlen(kids(q, chunk=chunk)) for chunk in (0, 1)] == [999, 2]
    assert await join(q, ("a", MARK, "pages", 999, b"+")) == 1


@pytest.mark.parametrize(("count", "is_told"), [(1, False), (4, True), (10_000_000, True), (10_000_001, False)])
async def test_those_that_follow_a_parent_see_how_far_it_is(q: Queue, count: int, is_told: bool) -> None:
    """Not of one child alone, nor of a number that no fan-out has."""
    name = "pages\0002"
    await waiting(q, "a", f"o:{name}", waited=CHANNEL, progress="own", **{f"g:{name}": f"{count} digest"})
    async with listening(q, CHANNEL) as heard:
        await join(q, ("a", MARK, name, 0, b"+"), now=NOW + 250)
    told = [data for _, data in heard if data.startswith(b"progress")]
    if not is_told:
        assert (told, (await q.fields("a"))["progress"]) == ([], "own")
        return
    progress = (await q.fields("a"))["progress"]
    share, note, at = (json.loads(progress)[field] for field in ("share", "note", "at"))
    assert (share, note, at) == (1 / count, f"pages #2: 1 of {count}", pytest.approx(NOW / 1000 + 0.25))
    assert told == [said(q, "progress", "a", progress.encode())]


# ---- retake and forget


async def test_failures_are_forgotten_and_with_the_last_of_them_that_it_was_archived(q: Queue) -> None:
    await q.activate("a")
    fields = {"run": MARK, "s:one": "-", "s:two": "+", "resumed": "1", "o:pages": "+", "o:other": "+"}
    await q.client.hset(q.task("a"), mapping=fields)
    await q.client.hset(kids(q), mapping={"0": "-", "1": "+"})
    await q.client.hset(kids(q, chunk=1), mapping={"1000": "-"})

    async def retake(owner: str, is_last: int, names: list[str], positions: list[int]) -> int:
        rows = [("pages", position) for position in positions]
        args = RETAKE.args([q.key(""), "a", owner, is_last], [(name,) for name in names], rows)
        return int(await q.redis.run(RETAKE, q.keys("lease"), args))

    before = await q.everything()
    assert await retake("x:1", 1, ["s:one"], [0]) == 0
    assert differences(before, await q.everything()) == {}
    assert await retake("w:1", 0, [], [1000]) == 1
    assert (await q.fields("a")).keys() & fields.keys() == fields.keys() - {"o:pages"}
    assert await retake("w:1", 1, ["s:one"], [0]) == 1
    assert (await q.fields("a")).keys() & fields.keys() == {"run", "s:two", "o:other"}
    assert await q.client.hgetall(kids(q)) == {b"1": b"+"}
    assert not await q.client.exists(kids(q, chunk=1))


async def test_only_children_that_have_completed_are_forgotten(q: Queue) -> None:
    await q.activate("a", "b", "c")
    await q.complete("a", "b")
    await q.client.zrem(q.key("completed"), "b")
    q.redis.is_watching = False  # children are tidied up: no move of the life cycle
    args = FORGET.args([q.key("")], [(name,) for name in ("a", "b", "c", "none")])
    assert await q.redis.run(FORGET, q.keys("completed"), args) == 1
    assert [bool(await q.fields(name)) for name in "abc"] == [False, True, True]
    assert await q.scores("completed") == {}
