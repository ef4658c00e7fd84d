"""Slots that move from node to node while their queue is in use."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.load import Load
from tests.integration.support import FAST
from tests.support.clusters import Nodes
from tests.support.sizes import size
from tests.support.waiting import pause, until
from veredus import App
from veredus.store.connection.slot_map import slot_of
from veredus.wire import keys

MOVES = size(2, 20)


async def _sound(app: App) -> None:
    async with app.inspector() as inspector:
        assert [one for one in await inspector.doctor.diagnose(server=False) if one.repairable] == []


@pytest.mark.parametrize("how", ["at_once", "key_by_key"])
async def test_a_queue_moves_under_load_and_back(nodes: Nodes, how: str, caplog: pytest.LogCaptureFixture) -> None:
    queue, other = nodes.queues(0, 50)[40 if how == "at_once" else 41], nodes.queues(1, 1)[0]
    slot = slot_of(keys.pending(queue))
    load = Load(nodes.url, [queue, other], lambda queue: None, **FAST)
    moved: list[int] = []

    async def move(source: int, target: int) -> None:
        if how == "at_once":
            await asyncio.to_thread(nodes.move_at_once, slot, source, target)
        else:
            nodes.begin_move(slot, source, target)
            while await asyncio.to_thread(nodes.move_keys, slot, source, target, 3):
                await asyncio.sleep(0.001)
            await asyncio.to_thread(nodes.move, slot, target)
        moved.append(target)

    async with load.app, load.worker():
        producers = [asyncio.create_task(load.produce(name)) for name in (queue, queue, other)]
        producers.append(asyncio.create_task(load.produce(queue, delay=0.3)))
        for _ in range(MOVES):
            await load.grows(20)
            await move(0, 2)
            await load.grows(20)
            await move(2, 0)
        await load.grows(20)
        load.stop()
        await asyncio.gather(*producers)
        await until(lambda: all(load.ran[one] for one in load.acknowledged))
        # Asleep and woken again on the node that has it now.
        await pause(0.2, proves="the worker finds nothing more to do")
        handle = await load.work.using(queue=queue).enqueue(0)
        await until(lambda: load.ran[handle.id], seconds=4.0, what="a wake-up, before the wait of 5 s is over")
    assert len(moved) == 2 * MOVES
    assert max(load.ran.values()) == 1, "a queue that moves is no reason to run a task twice"
    late = sorted(load.lateness.values())
    print(f"{how}: {load.report()}; delayed tasks late by {late[len(late) // 2] * 1000:.1f} ms at the median, "
          f"{late[-1] * 1000:.0f} ms at most")  # fmt: skip
    await _sound(load.app)
    lines = [record.getMessage() for record in caplog.records if "Redis is" in record.getMessage()]
    if how == "at_once":
        assert (load.refused, lines) == (0, []), "a redirect is no outage"
    assert len(lines) <= 4 * MOVES, lines
