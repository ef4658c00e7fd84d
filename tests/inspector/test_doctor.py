"""The doctor: every kind of damage is found, mended, and no payload is lost by it; a sound queue gives no finding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import check_invariant
from tests.support.queue import NOW
from veredus import App
from veredus.errors import QueueNotFound
from veredus.inspector.doctor import Doctor
from veredus.inspector.inspector import Inspector
from veredus.wire.messages import decode_task

STATES = ["pending", "active", "scheduled", "retry", "archived", "completed", "aggregating"]
Damage = Callable[[Bench], Awaitable[None]]


async def _sound(q: Bench) -> None:
    """Something in every state, beside the damage."""
    for state in STATES:
        await q.fill(state, f"{state}-1", f"{state}-2")
    await q.pend("locked", lock=q.lock("sound"))
    await q.join("staged", "s1", "s2")
    await q.client.rename(q.key("g:staged"), q.key("g:staged:set"))
    await q.client.srem(q.key("groups"), "staged")
    await q.client.zadd(q.key("aggregation_sets"), {q.key("g:staged:set"): NOW // 1000 + 60})


async def _put(q: Bench, task_id: str, state: str, **fields: str | bytes) -> None:
    """A hash alone."""
    await q.client.hset(q.task(task_id), mapping={"msg": q.message(task_id), "state": state, **fields})


async def _dangling(q: Bench) -> None:
    for place in ("pending", "active"):
        await q.client.lpush(q.key(place), f"x-{place}")
    for place in ("scheduled", "retry", "archived", "completed"):
        await q.client.zadd(q.key(place), {f"x-{place}": 4_000_000_000})
    await q.client.zadd(q.key("g:g"), {"x-g": 1})


async def _orphans(q: Bench) -> None:
    for state in STATES:
        await _put(q, f"x-{state}", state)
    await _put(q, "x-grouped", "aggregating", group="new")
    await _put(q, "x-odd", "who knows")


async def _orphan_with_a_due_time(q: Bench) -> None:
    await q.fill("retry", "x")
    await q.client.zrem(q.key("retry"), "x")


async def _two_sets(q: Bench) -> None:
    await q.fill("scheduled", "x")
    await q.client.zadd(q.key("archived"), {"x": 4_000_000_000})


async def _set_and_list(q: Bench) -> None:
    await q.pend("x")
    await q.client.zadd(q.key("retry"), {"x": 4_000_000_000})
    await q.fill("retry", "y")
    await q.client.lpush(q.key("pending"), "y")


async def _both_lists(q: Bench) -> None:
    await q.pend("x")
    await q.client.lpush(q.key("active"), "x")
    await q.fill("active", "y")
    await q.client.lpush(q.key("pending"), "y")


async def _twice_in_one_list(q: Bench) -> None:
    await q.pend("x", "y", "z")
    await q.client.lpush(q.key("pending"), "x")


async def _group_and_set_in_flight(q: Bench) -> None:
    await q.client.zadd(q.key("g:staged"), {"s1": 1})
    await q.client.sadd(q.key("groups"), "staged")


async def _no_lease(q: Bench) -> None:
    await q.fill("active", "x")
    await q.client.zrem(q.key("lease"), "x")


async def _lease_only(q: Bench) -> None:
    await q.client.zadd(q.key("lease"), {"pending-1": 4_000_000_100, "nobody": 4_000_000_100})


async def _no_message(q: Bench) -> None:
    await q.client.hset(q.task("x"), "state", "active")
    await q.client.lpush(q.key("active"), "x")
    await q.client.zadd(q.key("lease"), {"x": 4_000_000_100})
    await q.client.hset(q.task("y"), "result", "late")


async def _wrong_state(q: Bench) -> None:
    await q.client.hset(q.task("pending-1"), "state", "retry")
    await q.client.hset(q.task("archived-1"), "state", "completed")
    await q.client.hset(q.task("active-1"), "state", "pending")
    await q.client.hset(q.task("aggregating-1"), "state", "pending")


async def _unlisted_group(q: Bench) -> None:
    await q.join("lost", "x")
    await q.client.srem(q.key("groups"), "lost")


async def _unlisted_set(q: Bench) -> None:
    await q.join("lost", "x", "y")
    await q.client.rename(q.key("g:lost"), q.key("g:lost:someset"))
    await q.client.srem(q.key("groups"), "lost")


async def _empty_group(q: Bench) -> None:
    await q.client.sadd(q.key("groups"), "nothing")


async def _stale_set(q: Bench) -> None:
    await q.client.zadd(q.key("aggregation_sets"), {q.key("g:staged:set"): NOW // 1000 - 1000})


async def _set_that_is_gone(q: Bench) -> None:
    await q.client.zadd(q.key("aggregation_sets"), {q.key("g:none:set"): NOW // 1000 - 1000, "nonsense": 1})


async def _locks(q: Bench) -> None:
    await q.client.set(q.lock("gone"), "nobody")
    await q.client.set(q.lock("other"), "locked")
    await q.client.set(q.lock("plain"), "pending-1")


async def _unregistered(q: Bench) -> None:
    await q.client.srem("asynq:queues", "q")


async def _stale_due(q: Bench) -> None:
    await q.client.zadd(q.key("due"), {"pending-1": NOW, "nobody": NOW, "retry-1": NOW + 99_000})


async def _undecodable(q: Bench) -> None:
    for state in STATES:
        if state != "active":
            await q.client.hset(q.task(f"{state}-1"), "msg", b"\xff" + state.encode())
    await _put(q, "x", "pending", msg=b"\xffalone")


async def _wrong_types(q: Bench) -> None:
    for place in ("pending", "scheduled", "due"):
        await q.client.delete(q.key(place))
        await q.client.set(q.key(place), "x")
    await q.client.delete(q.task("retry-1"))
    await q.client.set(q.task("retry-1"), "kept")
    await q.client.set(q.key("g:bad"), "x")


async def _fractions(q: Bench) -> None:
    for place in ("scheduled", "retry", "archived", "completed"):
        await q.client.zadd(q.key(place), {f"{place}-1": 4_000_000_001.5})
    await q.client.zadd(q.key("lease"), {"active-1": 4_000_000_012.5})


DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "dangling": (_dangling, {"dangling"}),
    "orphans": (_orphans, {"orphan"}),
    "orphan with a due time": (_orphan_with_a_due_time, {"orphan"}),
    "two sets": (_two_sets, {"two_places"}),
    "set and list": (_set_and_list, {"two_places"}),
    "both lists": (_both_lists, {"two_places"}),
    "twice in one list": (_twice_in_one_list, {"two_places"}),
    "group and set in flight": (_group_and_set_in_flight, {"two_places"}),
    "no lease": (_no_lease, {"no_lease"}),
    "lease only": (_lease_only, {"lease_only"}),
    "no message": (_no_message, {"no_message"}),
    "wrong state": (_wrong_state, {"wrong_state"}),
    "unlisted group": (_unlisted_group, {"unlisted_group"}),
    "unlisted set": (_unlisted_set, {"unlisted_group"}),
    "empty group": (_empty_group, {"empty_group"}),
    "stale set": (_stale_set, {"stale_set"}),
    "set that is gone": (_set_that_is_gone, {"stale_set"}),
    "locks": (_locks, {"stale_lock"}),
    "unregistered": (_unregistered, {"unregistered"}),
    "stale due": (_stale_due, {"stale_due"}),
    "undecodable": (_undecodable, {"undecodable"}),
    "wrong types": (_wrong_types, {"wrong_type"}),
    "fractions": (_fractions, {"fraction"}),
}


async def _payloads(q: Bench) -> set[bytes]:
    """Every payload in the queue: of readable messages, or the bytes of others."""
    found = set()
    async for key in q.client.scan_iter("asynq:{q}:*"):
        if await q.client.type(key) == b"hash":
            data = await q.client.hget(key, "original") or await q.client.hget(key, "msg")
            if data is not None:
                try:
                    found.add(decode_task(data).payload)
                except ValueError:
                    found.add(data)
    return found


async def _damages(doctor: Doctor, queue: str | None = None) -> list[tuple[str, str]]:
    found = await doctor.diagnose(queue, server=False)
    return sorted((one.kind, one.task_id or one.key or one.group) for one in found)


async def test_a_sound_queue_has_no_finding(q: Bench) -> None:
    await _sound(q)
    before = await q.everything()
    assert await _damages(q.inspector.doctor) == []
    assert await _damages(q.inspector.doctor, "q") == []
    assert await q.everything() == before


@pytest.mark.parametrize("name", DAMAGES)
async def test_each_damage_is_found_and_mended_and_no_payload_is_lost(q: Bench, name: str) -> None:
    await _sound(q)
    damage, kinds = DAMAGES[name]
    await damage(q)
    payloads = await _payloads(q)
    before = await q.everything()
    found = await _damages(q.inspector.doctor)
    assert kinds <= {kind for kind, _ in found}, found
    assert await _damages(q.inspector.doctor, "q") == found
    assert await q.everything() == before, "a diagnosis changes nothing"
    steps: list[tuple[int, int]] = []
    mended = await q.inspector.doctor.repair_all(progress=lambda *step: steps.append(step))
    assert kinds <= {one.kind for one in mended}
    assert steps
    assert await _damages(q.inspector.doctor) == []
    assert await check_invariant(q.client) == []
    assert await _payloads(q) >= payloads


async def test_all_damages_at_once(q: Bench) -> None:
    await _sound(q)
    for damage in (_dangling, _orphans, _lease_only, _no_message, _unlisted_set, _empty_group, _stale_set, _locks):
        await damage(q)
    for damage in (_unregistered, _wrong_state, _stale_due, _fractions, _group_and_set_in_flight, _wrong_types):
        await damage(q)
    payloads = await _payloads(q)
    await q.inspector.doctor.repair_all()
    assert await _damages(q.inspector.doctor) == []
    assert await check_invariant(q.client) == []
    assert await _payloads(q) >= payloads


async def test_where_mended_tasks_are(q: Bench) -> None:
    await _orphans(q)
    await _orphan_with_a_due_time(q)
    await q.inspector.doctor.repair_all()
    states = {one: (await q.fields(f"x-{one}"))["state"] for one in [*STATES, "grouped", "odd"]}
    assert states == {
        "pending": "pending",
        "active": "pending",
        "scheduled": "pending",  # when it was due is known no more
        "retry": "pending",
        "archived": "archived",
        "completed": "completed",
        "aggregating": "pending",
        "grouped": "aggregating",
        "odd": "pending",
    }
    assert await q.scores("retry") == {"x": NOW // 1000 + 2}


async def test_of_two_places_the_one_stays_that_the_state_says(q: Bench) -> None:
    await _set_and_list(q)
    await q.inspector.doctor.repair_all()
    assert [task.state for task in [await q.inspector.task("q", one) for one in "xy"]] == ["pending", "retry"]


async def test_an_active_task_without_a_lease_is_left_to_the_recoverer(q: Bench) -> None:
    await _no_lease(q)
    await q.inspector.doctor.repair_all()
    assert await q.scores("lease") == {"x": NOW // 1000}
    _, claimed, _ = await q.recover(now=NOW + 31_000)
    assert [row[0] for row in claimed] == ["x"]


async def test_an_unreadable_task_is_archived_so_that_gos_tools_can_show_it(q: Bench) -> None:
    await q.pend("a")
    await q.client.hset(q.task("a"), "msg", b"\xff\xffpayload")
    (finding,) = [one for one in await q.inspector.doctor.diagnose() if one.kind == "undecodable"]
    assert await q.inspector.doctor.repair(finding)
    task = await q.inspector.task("q", "a")
    assert (task.state, task.type, task.payload) == ("archived", "undecodable", b"\xff\xffpayload")
    assert (await q.fields("a"))["original"] == b"\xff\xffpayload".decode("utf-8", "surrogateescape")
    assert not await q.inspector.doctor.repair(finding), "the second time there is nothing to mend"


async def test_a_stale_finding_changes_nothing(q: Bench) -> None:
    """Between diagnosis and repair somebody else may have put it right, or a worker may have taken the task."""
    await _sound(q)
    for name in ("orphans", "dangling", "locks", "unlisted group", "empty group", "stale due", "wrong state"):
        await DAMAGES[name][0](q)
    found = [one for one in await q.inspector.doctor.diagnose() if one.repairable]
    await q.inspector.doctor.repair_all()
    before = await q.everything()
    assert [await q.inspector.doctor.repair(one) for one in found] == [False] * len(found)
    assert await q.everything() == before


async def test_keys_of_a_wrong_type_are_kept_under_another_name(q: Bench) -> None:
    await _sound(q)
    await _wrong_types(q)
    await q.inspector.doctor.repair_all()
    for name in ("damaged:pending", "damaged:scheduled", "damaged:g:bad"):
        assert await q.client.get(q.key(name)) == b"x"
    assert await q.client.get(q.key("damaged:t:retry-1")) == b"kept"
    assert sorted(await q.pending()) >= ["locked", "pending-1", "pending-2"]


async def test_other_queues_are_found_by_their_keys(q: Bench) -> None:
    other = Bench(q.redis, q.client, "lost {and} found")
    await other.pend("a")
    await other.client.srem("asynq:queues", other.name)
    found = [one for one in await q.inspector.doctor.diagnose() if one.repairable]
    assert [(one.kind, one.queue) for one in found] == [("unregistered", other.name)] or found[0].kind == "unregistered"
    with pytest.raises(QueueNotFound):
        await q.inspector.doctor.diagnose("no such queue")


async def test_a_busy_queue_has_no_finding(app: App, inspector: Inspector) -> None:
    @app.task
    async def work(n: int) -> None:
        await asyncio.sleep(0.001)
        if n % 50 == 0:
            raise ValueError(n)

    async def produce() -> None:
        for start in range(0, 3000, 100):
            await app.enqueue_many(work.call(n) for n in range(start, start + 100))
            await app.enqueue_many(work.using(delay=0.05).call(n) for n in range(start, start + 20))
            await asyncio.sleep(0.01)

    looks = 0
    async with app.worker(concurrency=20):
        producing = asyncio.create_task(produce())
        while not producing.done() or looks < 5:
            assert [one for one in await inspector.doctor.diagnose() if one.repairable] == []
            looks += 1
        await producing
    assert [one for one in await inspector.doctor.diagnose() if one.repairable] == []
