"""run: pending at once, at the back or the front, out of wherever it was, with everything that goes with it."""

from __future__ import annotations

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import Key, check_invariant
from tests.support.queue import NOW, differences
from veredus.errors import CommandRefused, QueueNotFound, TaskNotFound, WrongState
from veredus.store.inspect.tasks import LONG_LIST

SINCE = f"{NOW}000000"
WAITING = ["scheduled", "retry", "archived", "completed", "aggregating"]


@pytest.mark.parametrize("state", WAITING)
async def test_it_leaves_its_place_and_joins_the_back_of_the_line(q: Bench, state: str) -> None:
    await q.fill(state, "a", "b")
    await q.pend("p")
    before = await q.everything()
    await q.inspector.run("q", "a")
    place = "g:g" if state == "aggregating" else state
    changed = differences(before, await q.everything())
    left = dict(before[q.key(place)].value)
    del left["a"]
    assert changed.pop(q.key(place)) == Key("zset", left, "none")
    if state in ("scheduled", "retry"):
        assert list(changed.pop(q.key("due")).value) == ["b"]  # type: ignore[union-attr]
    fields = before[q.task("a")].value | {"state": "pending", "pending_since": SINCE}
    if state == "aggregating":  # where it goes if it fails: not in the field that Go would look at
        fields["due_group"] = fields.pop("group")
    assert changed == {q.key("pending"): Key("list", ["a", "p"], "none"), q.task("a"): Key("hash", fields, "none")}
    assert await check_invariant(q.client) == []


@pytest.mark.parametrize("state", [*WAITING, "pending"])
async def test_at_the_front_it_is_the_next(q: Bench, state: str) -> None:
    await q.fill(state, "x", "a")
    await q.pend("p1", "p2")
    await q.inspector.run("q", "a", front=True)
    assert (await q.pending())[0] == "a"
    assert (await q.pending()).count("a") == 1
    assert await check_invariant(q.client) == []


async def test_the_last_of_a_group_takes_the_group_off_the_list(q: Bench) -> None:
    await q.join("g", "a")
    await q.inspector.run("q", "a")
    assert await q.client.exists(q.key("groups"), q.key("g:g")) == 0


@pytest.mark.parametrize("state", ["archived", "retry"])
async def test_one_that_was_archived_may_crash_as_often_as_a_new_one(q: Bench, state: str) -> None:
    await q.fill(state, "a")
    await q.client.hset(q.task("a"), "losses", 3)
    await q.inspector.run("q", "a")
    assert await q.client.hget(q.task("a"), "losses") == (None if state == "archived" else b"3")


async def test_one_that_has_expired_runs_all_the_same(q: Bench) -> None:
    await q.fill("archived", "a")
    await q.client.hset(q.task("a"), "expires_at", NOW - 1)
    await q.inspector.run("q", "a")
    taken, _ = await q.dequeue(number=9)
    assert taken == ["a"]


@pytest.mark.parametrize(("state", "words"), [("active", "already running"), ("pending", "already pending")])
async def test_it_refuses_what_runs_or_waits_already(q: Bench, state: str, words: str) -> None:
    await q.fill(state, "a")
    before = await q.everything()
    with pytest.raises(WrongState, match=words):
        await q.inspector.run("q", "a")
    assert await q.everything() == before


@pytest.mark.parametrize("verb", ["run", "archive", "delete"])
@pytest.mark.parametrize("state", ["scheduled", "pending", "aggregating"])
async def test_a_task_that_is_not_where_its_state_says_stays_as_it_is(q: Bench, verb: str, state: str) -> None:
    await q.fill(state, "a")
    place = "g:g" if state == "aggregating" else state
    await q.client.delete(q.key(place))
    before = await q.everything()
    if (verb, state) == ("run", "pending"):
        return
    with pytest.raises(WrongState, match="not in the list of its state"):
        await getattr(q.inspector, verb)("q", "a")
    assert await q.everything() == before


@pytest.mark.parametrize("verb", ["run", "archive", "delete"])
@pytest.mark.parametrize("place", ["pending", "due", "archived", "groups"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Bench, verb: str, place: str) -> None:
    await q.fill("scheduled", "a")
    await q.client.delete(q.key(place))
    await q.client.set(q.key(place), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await getattr(q.inspector, verb)("q", "a")
    assert await q.everything() == before


@pytest.mark.parametrize("verb", ["run_all", "archive_all", "delete_all"])
async def test_a_group_of_a_wrong_type_stops_it_before_the_first_write(q: Bench, verb: str) -> None:
    await q.fill("aggregating", "a")
    await q.client.delete(q.key("g:g"))
    await q.client.set(q.key("g:g"), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await getattr(q.inspector, verb)("q", "aggregating", group="g")
    assert await q.everything() == before


@pytest.mark.parametrize("verb", ["run", "archive", "delete", "task"])
async def test_unknown_names_get_the_nearest_one(q: Bench, verb: str) -> None:
    await q.pend("3f6c1d2e-0b7a-4c58-9e1f-2a3b4c5d6e7f")
    call = getattr(q.inspector, verb)
    with pytest.raises(QueueNotFound, match=r"no queue 'qq' \(did you mean 'q'\?\)"):
        await call("qq", "a")
    with pytest.raises(TaskNotFound, match=r"did you mean '3f6c1d2e-0b7a-4c58-9e1f-2a3b4c5d6e7f'\?"):
        await call("q", "3f6c")
    with pytest.raises(TaskNotFound, match=r"did you mean '3f6c1d2e-0b7a-4c58-9e1f-2a3b4c5d6e7f'\?"):
        await call("q", "3f6c1d2e-0b7a-4c58-9e1f-2a3b4c5d6e70")
    other = Bench(q.redis, q.client, "other")
    await other.pend("b")
    with pytest.raises(TaskNotFound, match="it is in queue 'other'"):
        await call("q", "b")
    with pytest.raises(TaskNotFound, match=r"no task 'zzz' in queue 'q'$"):
        await call("q", "zzz")


async def test_in_a_long_list_it_is_found_page_by_page(q: Bench) -> None:
    ids = [f"t{n:05d}" for n in range(LONG_LIST + 100)]
    await q.client.lpush(q.key("pending"), *ids)
    await q.client.sadd("asynq:queues", "q")
    for one in (ids[7], ids[10_000], ids[-1]):
        await q.client.hset(q.task(one), mapping={"msg": q.message(one), "state": "pending"})
        await q.inspector.run("q", one, front=True)
        assert (await q.pending())[0] == one
    assert sorted(await q.pending()) == ids
