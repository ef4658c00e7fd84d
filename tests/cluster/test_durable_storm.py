"""The storm over durable tasks, on a cluster and through a failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.durable.storm import Place, check_facts, check_rest, fleet_at, is_emitted, rage
from tests.support.clusters import Nodes
from tests.support.sentinels import Sentinels
from tests.support.servers import RealServer, raw
from tests.support.sizes import size
from tests.support.waiting import until
from veredus import App

pytestmark = pytest.mark.timeout(size(240, 1500))
LAG = 2.0
"""Seconds before a master is killed in which its replica may be behind it, on a busy machine."""


def keys_of(servers: list[RealServer]) -> list[str]:
    return [raw(key).decode() for server in servers for key in server.client().scan_iter(count=10_000)]


async def test_parents_and_children_on_different_nodes(nodes: Nodes, tmp_path: Path) -> None:
    queues = nodes.spread(6)
    place = Place(nodes.url, tmp_path / "effects", queues[:3], [queues[4], queues[5], queues[3]])
    async with App(place.url, patience=60) as app:
        with fleet_at(place) as fleet:
            await rage(app, place, fleet)
        print(f"\n{len(fleet.killed)} kills; again: {check_facts(place, fleet.killed)}")
        await check_rest(app, place, keys_of(nodes.masters), fleet.killed)


async def test_through_a_sentinel_failover(new_sentinels: Callable[..., Sentinels], tmp_path: Path) -> None:
    """What had not been replicated is lost, and only that: it runs again."""
    sentinels = new_sentinels("--appendonly", "yes")
    place = Place(sentinels.url, tmp_path / "effects")
    gone: list[tuple[float, float]] = []

    def is_excused(at: float) -> bool:
        return any(began - LAG < at < ended + LAG for began, ended in gone)

    async with App(place.url, patience=60) as app:

        async def fail_over(kills: int, emitted: list[int]) -> None:
            if kills != FAILS_OVER:
                return
            old, before = sentinels.master(), time.time()
            old.kill()
            await asyncio.to_thread(sentinels.wait_for_master_other_than, old)
            gone.append((before, time.time()))
            for run in list(emitted):  # an event may be lost as well
                await until(lambda run=run: is_emitted(app, run))

        with fleet_at(place) as fleet:
            await rage(app, place, fleet, fail_over)
        print(f"\n{len(fleet.killed)} kills; again: {check_facts(place, fleet.killed, is_excused)}")
        assert len(gone) == 1
        await check_rest(app, place, keys_of([sentinels.master()]), fleet.killed)


FAILS_OVER = size(1, 5)
"""The master is killed after so many workers."""
