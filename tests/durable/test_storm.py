"""Workers are killed and the server restarts while durable tasks run: each ends once, with the right result; no kept
step runs again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.durable.storm import RUNS, Place, check_facts, check_rest, fleet_at, rage
from tests.support.keyspace import check_invariant
from tests.support.servers import RealServer, raw
from tests.support.sizes import size
from veredus import App

pytestmark = pytest.mark.timeout(size(240, 1500))
RESTARTS = size((1, 2), (5, 15))
"""After so many kills the server is killed too, and started again."""


@pytest.fixture
def server(new_server: Callable[..., RealServer]) -> RealServer:
    """It has everything again after kill -9."""
    return new_server("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def place(server: RealServer, tmp_path: Path) -> Place:
    return Place(server.url, tmp_path / "effects")


@pytest.fixture
async def app(place: Place) -> AsyncIterator[App]:
    app = App(place.url, patience=60)
    yield app
    await app.close()


async def test_killed_workers_and_servers_lose_and_repeat_nothing(
    app: App, server: RealServer, place: Place, redis_client: object
) -> None:
    restarted: list[int] = []

    async def restart(kills: int, emitted: list[int]) -> None:
        if kills in RESTARTS:
            server.kill()
            server.start()
            restarted.append(kills)

    began = time.monotonic()
    with fleet_at(place) as fleet:
        await rage(app, place, fleet, restart)
    repeated = check_facts(place, fleet.killed)
    seconds = time.monotonic() - began
    print(f"\n{RUNS} runs in {seconds:.0f} s, {len(fleet.killed)} kills, {len(restarted)} restarts; again: {repeated}")
    assert len(restarted) == len(RESTARTS)
    await check_rest(app, place, [raw(key).decode() for key in server.client().scan_iter(count=10_000)], fleet.killed)
    assert await check_invariant(redis_client) == []
