"""Thousands of tasks while a worker is killed with -9 again and again: all done, none twice without cause."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.crash.fleet import RECOVERY, Fleet, is_alive, say, seeded
from tests.support.sizes import size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(size(240, 600))]

TASKS = size(1500, 20_000)
KILL_EVERY = size(0.7, 2.0)
MOST_KILLS = size(6, 1000)
"""A supervisor waits longer and longer before it replaces children that keep dying within seconds."""
CONCURRENCY = 6
LONGEST = 0.1
"""Seconds that the slowest handler takes."""
SLACK = 1.0
"""Seconds by which this machine may be late: with starting a handler's neighbour, with settling."""


def storm(fleet: Fleet, kill_one: Callable[[], int]) -> None:
    """Fill the queue, kill until most is done, wait for the end, then account for every start."""
    rng = seeded()
    ids = fleet.enqueue_all({"seconds": rng.uniform(0.01, LONGEST)} for _ in range(TASKS))
    began = time.monotonic()
    kills: dict[int, float] = {}
    with fleet.sampling(size(0.1, 0.5)) as samples:
        next_kill = time.monotonic() + KILL_EVERY
        while fleet.counter("processed") - fleet.counter("failed") < TASKS * 0.95:
            assert time.monotonic() - began < size(150, 400), "too slow"
            if time.monotonic() >= next_kill and len(kills) < MOST_KILLS:
                at = time.time()
                victim = kill_one()
                assert victim not in kills
                kills[victim] = at
                next_kill += KILL_EVERY
            time.sleep(0.02)
        fleet.wait_done(seconds=2 * RECOVERY + 20)
    took = time.monotonic() - began
    starts, finished = fleet.starts(), {fact.id for fact in fleet.finishes()}
    last = {fact.id: fact for fact in starts}
    repeats = [fact for fact in starts if last[fact.id] is not fact]
    say(
        f"{TASKS} tasks in {took:.1f} s over {len(kills)} kills: {len(repeats)} run again, "
        f"{samples.count} samples, {len(samples.breaches)} breaches"
    )
    assert samples.breaches == []
    assert samples.count > 5
    assert len(kills) >= 3
    assert finished >= set(ids), f"{len(set(ids) - finished)} never finished"
    assert set(last) == set(ids)
    for fact in repeats:
        assert fact.pid in kills, f"{fact} was run again although its worker was not killed"
        assert fact.at > kills[fact.pid] - LONGEST - SLACK, f"{fact} was run again although it had ended long before"
    per_kill = [sum(1 for fact in repeats if fact.pid == pid) for pid in kills]
    assert max(per_kill) <= CONCURRENCY, per_kill
    assert fleet.counter("processed") - fleet.counter("failed") == TASKS
    assert fleet.breaches() == []


def test_four_workers_of_which_one_after_the_other_is_killed(fleet: Fleet) -> None:
    rng = seeded()
    workers = fleet.start_many(4, concurrency=CONCURRENCY)

    def kill_one() -> int:
        victim = workers.pop(rng.randrange(len(workers)))
        victim.kill()
        workers.append(fleet.start(concurrency=CONCURRENCY, wait=False))
        return victim.pid

    storm(fleet, kill_one)
    assert fleet.stop(workers) == [0] * 4
    assert fleet.remains() == []


def test_four_children_of_a_supervisor_of_which_one_after_the_other_is_killed(fleet: Fleet) -> None:
    rng = seeded()
    supervisor = fleet.start(processes=4, concurrency=CONCURRENCY)

    def living() -> list[int]:
        return [pid for pid in supervisor.children() if is_alive(pid)]

    def kill_one() -> int:
        fleet.wait(living, "a child to kill")
        child = rng.choice(living())
        os.kill(child, signal.SIGKILL)
        return child

    storm(fleet, kill_one)
    fleet.wait(lambda: len(supervisor.children()) == 4, "four children")
    supervisor.terminate()
    assert supervisor.wait_exit() == 0
    assert fleet.remains() == []
