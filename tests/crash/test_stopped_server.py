"""A server that stands still for longer than a lease: nobody living is taken for dead."""

from __future__ import annotations

import time

import pytest

from tests.crash.fleet import Fleet, say, seeded
from tests.support.sizes import size
from tests.support.waiting import pause_sync

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


@pytest.mark.parametrize("stopped", size([1.9, 4.0], [10.0, 14.0]))
def test_no_living_task_is_taken_for_dead(fleet: Fleet, stopped: float) -> None:
    rng = seeded()
    workers = fleet.start_many(3, concurrency=20)
    across = fleet.enqueue_all([{"seconds": stopped + rng.uniform(0.5, 1.5)} for _ in range(30)])
    fleet.wait(lambda: len(fleet.starts()) == 30, "the start of the long ones")
    # Old enough connections: recoverers trust only what they saw for a whole lease.
    fleet.wait(lambda: fleet.redis.ping() and time.time() - fleet.starts()[0].at > size(2.0, 13.0), "trust")
    ids = across + fleet.enqueue_all([{"seconds": rng.uniform(0.01, 0.2)} for _ in range(size(300, 2000))])
    ids += fleet.enqueue_all([{"seconds": size(0.5, stopped) + rng.uniform(0.1, 0.5)} for _ in range(10)])
    fleet.wait(lambda: len(fleet.starts()) > 60, "a load")
    fleet.server.freeze()
    at = time.time()
    pause_sync(stopped, proves="nobody living is taken for dead")
    fleet.server.thaw()
    took = fleet.wait_done(seconds=stopped + 40)
    starts = fleet.starts()
    running = sum(1 for fact in starts if fact.at < at) - sum(1 for fact in fleet.finishes() if fact.at < at)
    say(f"stopped for {stopped} s with {running} running, all {len(ids)} done {took:.1f} s later, {len(starts)} starts")
    assert running > 5
    assert sorted(fact.id for fact in starts) == sorted(ids), "a handler ran twice, or never"
    assert "lost its worker" not in fleet.log()
    assert "has another owner" not in fleet.log()
    assert (fleet.counter("processed"), fleet.counter("failed")) == (len(ids), 0)
    assert all(worker.exit_code is None for worker in workers)
    assert fleet.breaches() == []
    assert fleet.remains() == []
