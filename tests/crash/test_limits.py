"""Limits over four processes of which some are killed with -9: kept in every window, and no room is lost for good."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import defaultdict
from typing import Any

import pytest

from tests.crash.fleet import HERE, LEASE, RECOVERY, SHORT, Fleet, Process, say, seeded
from tests.support.sizes import FULL, size
from veredus.client.call import Call
from veredus.model.options import Options

pytestmark = [pytest.mark.crash, pytest.mark.timeout(size(120, 600))]

TASKS = size(500, 6_000)
KILLS = size(2, 8)
KEYS = 10
MOST, RATE = 5, 100


class Kitchen:
    """Processes that run limited.py."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        shutil.copy(HERE / "limited.py", fleet.folder / "limited.py")

    def start(self) -> Process:
        settings = {**({} if FULL else SHORT), "concurrency": 40}
        command = [sys.executable, "limited.py", self.fleet.server.url, json.dumps(settings)]
        process = Process(command, self.fleet.folder, len(self.fleet.processes), 1)
        self.fleet.processes.append(process)
        return process

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.fleet.folder / "facts").read_bytes().splitlines()]


def test_the_limits_hold_in_every_window_although_workers_are_killed(fleet: Fleet) -> None:
    rng = seeded()
    kitchen = Kitchen(fleet)
    workers = [kitchen.start() for _ in range(4)]
    fleet.wait(lambda: all(one.is_ready for one in workers), "the start of all workers")
    calls: list[Call[Any]] = []
    for n in range(TASKS):
        options = Options().merged({"limit_key": f"k{n % KEYS}"})
        payload = json.dumps({"key": f"k{n % KEYS}", "seconds": rng.uniform(0.02, 0.3)})
        calls.append(Call("limited", payload.encode(), options))
    began = time.monotonic()
    fleet._app.enqueue_many_sync(calls)
    killed: dict[int, float] = {}
    with fleet.sampling(0.2) as samples:
        for n in range(KILLS):
            done = TASKS * (n + 1) // (KILLS + 2)
            fleet.wait(lambda done=done: fleet.counter("processed") >= done, f"{done} tasks", seconds=120)
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            killed[victim.pid] = victim.killed_at
            workers.append(kitchen.start())
        fleet.wait_done(seconds=TASKS / RATE * 2 + 3 * RECOVERY)
    took = time.monotonic() - began
    facts = kitchen.facts()
    handed_out = sorted(fact["at"] for fact in facts if fact["what"] == "dequeue")
    closest = min(b - a for a, b in zip(handed_out, handed_out[RATE:], strict=False))
    most = most_at_once(facts, killed)
    say(
        f"{TASKS} tasks in {took:.1f} s over {KILLS} kills: {len(handed_out)} handed out, {RATE} starts take at least "
        f"{closest:.3f} s, at most {max(most.values())} at once of one key; {samples.count} samples"
    )
    assert samples.breaches == []
    assert closest >= 1.0
    assert max(most.values()) <= MOST
    assert max(most.values()) == MOST, "the limit was never reached, so nothing is shown"
    assert {fact["id"] for fact in facts if fact["what"] == "finish"} == {
        fact["id"] for fact in facts if fact["what"] == "start"
    }
    assert took < TASKS / RATE * 1.3 + KILLS * (LEASE + 3) + 40, "room was lost"
    fleet.wait(lambda: not fleet.redis.keys("*:slots:*"), "free slots")


def most_at_once(facts: list[dict[str, Any]], killed: dict[int, float]) -> dict[str, int]:
    """Of each key: how many handlers ran at the same moment, a killed one until it was killed."""
    ends = {(fact["id"], fact["pid"]): fact["at"] for fact in facts if fact["what"] == "finish"}
    events: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for fact in facts:
        if fact["what"] == "start":
            end = ends.get((fact["id"], fact["pid"])) or killed[fact["pid"]]
            events[fact["key"]] += [(fact["at"], 1), (max(end, fact["at"]), -1)]
    most = {}
    for key, changes in events.items():
        running = most[key] = 0
        for _, change in sorted(changes):
            running += change
            most[key] = max(most[key], running)
    return most
