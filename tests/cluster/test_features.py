"""What an app can do on one server it can do on a cluster, with queues on different nodes, and behind Sentinel."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.conftest import Place
from tests.integration.support import FAST
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Call, CancelOutcome, Handle, Job, TaskCancelled, TaskIdConflict, current


async def test_every_option_of_a_task(app: App, place: Place) -> None:
    one, other = place.queues[:2]
    first = await app.enqueue("t", {"n": 1}, queue=one, task_id="a", headers={"k": "v"}, retention=60, max_retry=3)
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", queue=one, task_id="a")
    assert (await app.enqueue("t", queue=other, task_id="a")).created, "ids count per queue"
    unique = await app.enqueue("u", {"n": 1}, queue=one, unique_for=60)
    assert not (await app.enqueue("u", {"n": 1}, queue=one, unique_for=60)).created
    assert (await app.enqueue("u", {"n": 1}, queue=other, unique_for=60)).created
    at = datetime.now(UTC) + timedelta(hours=1)
    later = [await app.enqueue("t", queue=queue, at=at, deadline=at + timedelta(hours=1)) for queue in place.queues]
    handles = await app.enqueue_many([app.call("t", {"n": n}, queue=place.queues[n % 6]) for n in range(600)])
    assert all(handle.created for handle in handles)
    async with app.inspector() as inspector:
        assert await inspector.queues() == sorted(place.queues)
        infos = {info.queue: info for info in await inspector.stats(memory=True)}
        assert sum(info.pending for info in infos.values()) == 604
        assert all(info.memory_usage > 0 for info in infos.values())
        seen = await inspector.task(one, first.id)
        assert (seen.headers, seen.max_retry, seen.retention) == ({"k": "v"}, 3, 60)
        assert (await inspector.task(one, unique.id)).state == "pending"
        scheduled = await inspector.task(place.queues[-1], later[-1].id)
        assert scheduled.state == "scheduled"


async def test_sending_from_synchronous_code(app: App, place: Place) -> None:
    """From threads, one after the other and at once."""

    def send(number: int) -> list[Handle[Any]]:
        return [app.enqueue_sync("t", {"n": n}, queue=queue, task_id=f"{number}-{n}")
                for n in range(3) for queue in place.queues]  # fmt: skip

    sent = await asyncio.gather(*[asyncio.to_thread(send, number) for number in range(4)])
    assert all(handle.created for handles in sent for handle in handles)
    async with app.inspector() as inspector:
        assert [(await inspector.queue(queue)).pending for queue in place.queues] == [12] * 6
    await asyncio.to_thread(app.close_sync)


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
async def test_a_worker_serves_queues_on_every_node(app: App, place: Place, strict: bool) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(retention=60)
    async def note(n: int) -> int:
        ran.append((current().queue, n))
        return n * 2

    weights = {queue: weight for weight, queue in enumerate(place.queues, start=1)}
    handles = [await note.using(queue=queue).enqueue(n) for n in range(20) for queue in place.queues]
    late = [await note.using(queue=queue, delay=0.5).enqueue(99) for queue in place.queues]
    async with app.worker(weights, strict=strict, concurrency=2, **FAST):
        assert await asyncio.gather(*[handle.result(PATIENCE) for handle in handles[:12]]) == [0] * 6 + [2] * 6
        assert await asyncio.gather(*[handle.result(PATIENCE) for handle in late]) == [198] * 6
        await until(lambda: len(ran) == 126)
        # Asleep on every node, and woken at once by what comes to any of them.
        for queue in place.queues:
            handle = await note.using(queue=queue).enqueue(100)
            assert await handle.result(4.0) == 200, "before the wait of 5 s is over"
    if strict:
        firsts = [queue for queue, n in ran if n < 20]
        assert firsts == [queue for queue in reversed(place.queues) for _ in range(20)]


async def test_results_progress_cancel_and_pause(app: App, place: Place) -> None:
    seen = asyncio.Event()

    @app.task(retention=60)
    async def render(n: int) -> int:
        await current().progress(0.5, f"half of {n}")
        if n == 7:
            await seen.wait()
            seen.clear()
        return n

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with app.worker(place.queues, **FAST):
        for queue in place.queues[:2]:
            handle = await render.using(queue=queue).enqueue(7)
            notes = []
            async for step in handle.progress():
                notes.append(step.note)
                seen.set()
            assert notes == ["half of 7"]
            assert await handle.result(PATIENCE) == 7
            running = await hang.using(queue=queue).enqueue()
            await until(lambda running=running: _is(running, "active"))
            assert await running.cancel("archive") is CancelOutcome.CANCELLING
            with pytest.raises(TaskCancelled):
                await running.result(PATIENCE)
            waiting = await render.using(queue=queue, delay=60).enqueue(1)
            assert await waiting.cancel("delete") is CancelOutcome.CANCELLED
            await app.pause(queue)
            held = await render.using(queue=queue).enqueue(8)
            await pause(0.1, proves="a paused queue's tasks wait")
            assert (await held.status()).state == "pending"
            await app.resume(queue)
            assert await held.result(PATIENCE) == 8


async def _is(handle: Handle[Any], state: str) -> bool:
    return (await handle.status()).state == state


async def test_groups_on_every_node(app: App, place: Place) -> None:
    served: list[tuple[str, list[int]]] = []

    @app.task
    async def digest(queue: str, numbers: list[int]) -> None:
        served.append((queue, numbers))

    @app.aggregate("*", grace=1, max_size=5)
    def collect(group: str, jobs: list[Job]) -> Call[None]:
        return digest.using(queue=jobs[0].queue).call(jobs[0].queue, [json.loads(job.payload)["n"] for job in jobs])

    for queue in place.queues:
        for n in range(5):
            await app.enqueue("item", {"n": n}, queue=queue, group="g")
    async with app.worker(place.queues, **FAST):
        await until(lambda: len(served) == 6)
    assert sorted(served) == sorted((queue, [0, 1, 2, 3, 4]) for queue in place.queues)


async def test_three_schedulers_fire_each_tick_once_on_every_node(place: Place, app: App) -> None:
    apps = [App(place.url) for _ in range(3)]
    for one in apps:
        for queue in place.queues[:3]:
            one.schedule("@every 1s", one.call("tick", queue=queue))
    schedulers = [one.scheduler() for one in apps]
    for scheduler in schedulers:
        await scheduler.__aenter__()
    async with app.inspector() as inspector:
        try:

            async def ticks(queue: str) -> list[int]:
                pending = await inspector.tasks(queue, "pending", size=100) if queue in await inspector.queues() else []
                return [int(task.id.rpartition(":")[2]) for task in pending]

            async def enough() -> bool:
                return all([len(await ticks(queue)) >= 3 for queue in place.queues[:3]])

            await until(enough)
            entries = await inspector.scheduler_entries()
            assert len(entries) == 3
            assert all([len(await inspector.scheduler_events(entry.id)) >= 2 for entry in entries])
        finally:
            for scheduler in schedulers:
                await scheduler.__aexit__(None, None, None)
        for queue in place.queues[:3]:
            found = await ticks(queue)
            assert found == list(range(found[0], found[0] + len(found)))
    for one in apps:
        await one.close()


async def test_retention_ends_on_every_node(app: App, place: Place) -> None:
    @app.task(retention=1)
    async def brief() -> None:
        pass

    async with app.inspector() as inspector, app.worker(place.queues, janitor_interval=0.3, **FAST):
        handles = [await brief.using(queue=queue).enqueue() for queue in place.queues]
        await asyncio.gather(*[handle.result(PATIENCE) for handle in handles])
        assert sum(info.completed for info in await inspector.stats()) == 6

        async def none_left() -> bool:
            return not sum(info.completed for info in await inspector.stats())

        await until(none_left)


async def test_tasks_of_a_worker_that_has_gone_are_recovered_on_every_node(app: App, place: Place) -> None:
    from veredus.store.store import Store, connect
    from veredus.store.tasks.work import Work

    store = Store(connect(place.url))
    ran: list[str] = []

    @app.task
    async def note() -> None:
        ran.append(current().queue)

    for queue in place.queues:
        await note.using(queue=queue).enqueue()
        assert len((await Work(store.redis, "gone", lease_ms=1000).dequeue(queue, 1)).rows) == 1
    async with app.inspector() as inspector:
        leases = await inspector.leases()
        assert sorted(lease.queue for lease in leases) == sorted(place.queues)
        async with app.worker(place.queues, **FAST):
            await until(lambda: sorted(ran) == sorted(place.queues))
            (server,) = await inspector.servers()
            assert set(server.queues) == set(place.queues)
    await store.close()
