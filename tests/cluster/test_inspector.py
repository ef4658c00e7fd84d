"""Looking and changing by hand, over queues on different nodes: every listing and every verb for one and for many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.conftest import Place
from tests.integration.support import FAST
from tests.support.waiting import until
from veredus import App, TaskNotFound, current
from veredus.inspector.inspector import Inspector
from veredus.inspector.search import Query

EACH = 5


@pytest.fixture
async def filled(app: App, place: Place) -> Inspector:
    """In the first three queues, five tasks in every state but active."""

    @app.task(name="fail", max_retry=3, retry_delay=3600)
    async def fail(n: int) -> None:
        raise ValueError(f"boom {n}")

    @app.task(name="done", retention=3600)
    async def done(n: int) -> int:
        return n

    queues = place.queues[:3]
    for queue in queues:
        for n in range(EACH):
            await fail.using(queue=queue, task_id=f"retry-{n}").enqueue(n)
            await fail.using(queue=queue, task_id=f"archived-{n}", max_retry=0).enqueue(n)
            await done.using(queue=queue, task_id=f"completed-{n}").enqueue(n)
    inspector = app.inspector()
    async with app.worker(queues, **FAST):

        async def processed() -> bool:
            return all([(await inspector.queue(queue)).processed == 3 * EACH for queue in queues])

        await until(processed)
    for queue in queues:
        for n in range(EACH):
            await app.enqueue("send", {"n": n}, queue=queue, task_id=f"pending-{n}")
            await app.enqueue("send", {"n": n}, queue=queue, task_id=f"scheduled-{n}", delay=3600)
            await app.enqueue("send", {"n": n}, queue=queue, task_id=f"aggregating-{n}", group="g")
    return inspector


STATES = ("pending", "scheduled", "retry", "archived", "completed", "aggregating")


async def test_every_listing(filled: Inspector, place: Place) -> None:
    queues = place.queues[:3]
    for info in await filled.stats(memory=True):
        assert {state: getattr(info, state) for state in STATES} == dict.fromkeys(STATES, EACH)
        assert (info.processed, info.failed, info.groups) == (3 * EACH, 2 * EACH, 1)
    for queue in queues:
        for state in STATES:
            group = "g" if state == "aggregating" else None
            found = await filled.tasks(queue, state, group=group, size=3)
            found += await filled.tasks(queue, state, group=group, page=2, size=3)
            assert sorted(task.id for task in found) == [f"{state}-{n}" for n in range(EACH)]
            assert (await filled.task(queue, f"{state}-1")).state == state
        assert [one.size for one in await filled.groups(queue)] == [EACH]
        assert [task.id async for task in filled.search(queue, "retry", error="boom 3")] == ["retry-3"]
        assert [task.id async for task in filled.search(queue, "pending", type="se*", payload='"n":2')] == ["pending-2"]
        assert [day.processed for day in await filled.history(queue, 2)] == [3 * EACH, 0]
    with pytest.raises(TaskNotFound, match="did you mean 'pending-1'"):
        await filled.task(queues[1], "pendin-1")


async def test_every_verb_for_one(filled: Inspector, place: Place) -> None:
    source = place.queues[0]
    for state in STATES:
        await filled.delete(source, f"{state}-0")
        if state != "archived":
            await filled.archive(source, f"{state}-1")
        if state != "pending":
            await filled.run(source, f"{state}-2")
        await filled.move(source, f"{state}-3", place.queues[5])
        assert (await filled.task(place.queues[5], f"{state}-3")).state == state
    await filled.reschedule(source, "scheduled-4", delay=60)
    await filled.edit_payload(source, "pending-4", {"n": "new"})
    assert (await filled.task(source, "pending-4")).payload == b'{"n":"new"}'
    await filled.delete(place.queues[1], "retry-3")
    await filled.delete(place.queues[2], "retry-3")
    with pytest.raises(TaskNotFound, match=f"it is in queue {place.queues[5]!r}"):
        await filled.task(source, "retry-3")
    moved = (await filled.stats())[sorted(await filled.queues()).index(place.queues[5])]
    assert moved.size == len(STATES)


async def test_every_verb_for_many(filled: Inspector, place: Place) -> None:
    one, two, three = place.queues[:3]
    for state in ("scheduled", "retry", "archived", "completed", "aggregating"):
        assert (await filled.run_all(one, state)).done == EACH
    assert (await filled.queue(one)).pending == 6 * EACH
    for state in ("pending", "scheduled", "retry", "completed", "aggregating"):
        assert (await filled.archive_all(two, state)).done == EACH
    assert (await filled.queue(two)).archived == 6 * EACH
    for state in STATES:
        assert (await filled.delete_all(three, state, where=Query(type="send"))).done in (0, EACH)
        assert (await filled.delete_all(three, state)).done in (0, EACH)
    assert (await filled.queue(three)).size == 0
    await filled.delete_queue(three)
    await filled.delete_queue(two, force=True)
    assert await filled.queues() == [one]


async def test_cancelling_all_that_run(app: App, place: Place) -> None:
    started: list[str] = []

    @app.task(max_retry=0)
    async def hang() -> None:
        started.append(current().id)
        await asyncio.Event().wait()

    async with app.worker(place.queues, **FAST):
        for queue in place.queues:
            await hang.using(queue=queue).enqueue()
        await until(lambda: len(started) == 6)
        async with app.inspector() as inspector:
            leases = await inspector.leases()
            assert sorted(lease.queue for lease in leases) == sorted(place.queues)
            for queue in place.queues:
                assert (await inspector.cancel_all(queue)).done == 1

            async def ended() -> bool:
                return not any(info.active for info in await inspector.stats())

            await until(ended)


async def test_the_doctor_looks_at_every_server(app: App, place: Place) -> None:
    await app.enqueue("t", queue=place.queues[0])
    async with app.inspector() as inspector:
        found: list[Any] = await inspector.doctor.diagnose()
    kinds = [one.kind for one in found]
    for kind in ("version", "eviction", "memory", "persistence", "clock", "latency"):
        assert kinds.count(kind) == len(place.servers)
    assert "restart loses every task" in next(one.text for one in found if one.kind == "persistence")
    if len(place.servers) == 3:
        (state,) = [one for one in found if one.kind == "cluster"]
        assert (state.level, state.text) == ("warn", "3 masters have all 16,384 slots; 3 have no replica")
    else:
        (replication,) = [one for one in found if one.kind == "replication"]
        assert replication.level == "ok"
        assert "1 replica" in replication.text
