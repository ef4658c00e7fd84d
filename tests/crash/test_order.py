"""Order per key while tasks fail and workers are killed with -9: each key in order, one at a time, to the end."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from itertools import groupby
from typing import Any

import pytest

from tests.crash.fleet import Fact, Fleet, say, seeded
from tests.support.sizes import size
from veredus.client.call import Call
from veredus.model.options import Options

pytestmark = [pytest.mark.crash, pytest.mark.timeout(size(120, 900))]

TASKS = size(600, 10_000)
KEYS = size(20, 100)
KILLS = size(4, 15)


def test_each_key_runs_in_order_and_one_at_a_time(fleet: Fleet) -> None:
    rng = seeded()
    options = [Options().merged({"order_key": f"account:{n}"}) for n in range(KEYS)]
    calls: list[Call[Any]] = []
    for n in range(TASKS):
        payload = {"seconds": rng.uniform(0.0, 0.02), "fails": int(rng.random() < 0.1)}
        calls.append(Call("job", json.dumps(payload).encode(), options[n % KEYS]))
    workers = fleet.start_many(4, concurrency=30)
    began = time.monotonic()
    ids = [handle.id for handle in fleet._app.enqueue_many_sync(calls)]
    killed: dict[int, float] = {}
    with fleet.sampling(size(0.1, 0.5)) as samples:
        for n in range(KILLS):
            done = TASKS * (n + 1) // (KILLS + 2)
            fleet.wait(lambda done=done: fleet.counter("processed") >= done, f"{done} tasks", seconds=120)
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            killed[victim.pid] = victim.killed_at
            workers.append(fleet.start(concurrency=30, wait=False))
        fleet.wait_done(seconds=size(60, 500))
    took = time.monotonic() - began
    facts: dict[int, list[Fact]] = defaultdict(list)
    lane_of = {task_id: n % KEYS for n, task_id in enumerate(ids)}
    for fact in fleet.facts():
        facts[lane_of[fact.id]].append(fact)
    again = sum(1 for fact in fleet.starts()) - TASKS
    say(
        f"{TASKS} tasks over {KEYS} keys in {took:.1f} s, {len(killed)} workers killed, {again} attempts more, "
        f"{samples.count} samples, {len(samples.breaches)} breaches"
    )
    assert samples.breaches == []
    for lane in range(KEYS):
        finished = [task_id for task_id, _ in groupby(fact.id for fact in facts[lane] if fact.what == "finish")]
        assert finished == ids[lane::KEYS]
        check_alone(facts[lane], killed)
    assert fleet.stop(workers) == [0] * 4
    assert fleet.remains() == []


def check_alone(facts: list[Fact], killed: dict[int, float]) -> None:
    """No attempt begins before the one before it has ended, or its process was killed."""
    running: Fact | None = None
    for fact in facts:
        if fact.what != "start":
            if running is not None and (fact.id, fact.pid) == (running.id, running.pid):
                running = None
            continue
        if running is not None:
            assert running.pid in killed, f"{fact} began while {running} was running"
            assert killed[running.pid] <= fact.at, f"{fact} began before {running} was killed"
        running = fact
