"""Thousands of durable tasks whose workers are killed: what it takes to start, disturb and account for them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.durable.storm_tasks import CHILDREN, STEPS, storm
from tests.support.processes import end
from tests.support.sizes import size
from tests.support.waiting import until
from veredus import App, StoreError

RUNS, WORKERS, BETWEEN = size(60, 2000), size(2, 4), size(0.6, 2.0)
FEWEST_KILLS, MOST_KILLS = size((3, 3), (16, 10_000))
LEASE = size(2.0, 5.0)


class Fact(NamedTuple):
    """One line of `storm_tasks.note`."""

    what: str
    run: int
    number: int
    pid: int
    at: float
    key: str

    @classmethod
    def read(cls, line: str) -> Fact:
        what, run, number, pid, at, key = line.split(" ", 5)
        return cls(what, int(run), int(number), int(pid), float(at), key)


@dataclass(frozen=True)
class Place:
    """Where the storm is: the queues of parents and of children, and those that our workers serve."""

    url: str
    effects: Path
    parents: list[str] = field(default_factory=lambda: ["default"])
    children: list[str] = field(default_factory=lambda: ["default"])
    child_type: str = "storm:child"

    @property
    def served(self) -> list[str]:
        """Children of another type are for somebody else."""
        return [*dict.fromkeys(self.parents + (self.children if self.child_type == "storm:child" else []))]

    def facts(self) -> list[Fact]:
        return [Fact.read(line) for line in self.effects.read_text().splitlines()]


class Fleet:
    def __init__(self, place: Place) -> None:
        served = ",".join(place.served)
        self._environment = {
            **os.environ, "STORM_URL": place.url, "STORM_EFFECTS": str(place.effects), "STORM_QUEUES": served,
            "STORM_LEASE": str(LEASE),
        }  # fmt: skip
        self._log = place.effects.with_suffix(".log")
        self.killed: set[int] = set()
        self._workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.durable.storm_tasks"]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=self._environment, start_new_session=True, stdout=log, stderr=log)

    async def kill_one(self) -> None:
        """The one that has run for longest. Those that began while the server was away have ended by themselves, as
        workers do; whoever has run anything must not."""
        begun = [worker for worker in self._workers if worker.poll() is None]
        victim = begun[0]
        victim.send_signal(signal.SIGKILL)
        await asyncio.to_thread(victim.wait)
        self.killed.add(victim.pid)
        self._workers = [*begun[1:], *[self._start() for _ in range(WORKERS + 1 - len(begun))]]

    def close(self) -> None:
        for worker in self._workers:
            end(worker)


@contextmanager
def fleet_at(place: Place) -> Iterator[Fleet]:
    fleet = Fleet(place)
    try:
        yield fleet
    finally:
        fleet.close()


Disturb = Callable[[int, list[int]], Awaitable[Any]]
"""Gets how many have been killed, and the runs whose events have been emitted."""


async def rage(app: App, place: Place, fleet: Fleet, disturb: Disturb | None = None) -> None:
    """All runs, to their ends. Now and then a worker is killed, and before that `disturb` is called."""
    emitted: list[int] = []
    calls = []
    for run in range(RUNS):
        child_queue = place.children[run % len(place.children)]
        task = storm.using(queue=place.parents[run % len(place.parents)])
        calls.append(task.call(run, place.child_type, child_queue))
    handles = await app.enqueue_many(calls)
    results = asyncio.gather(*[handle.result() for handle in handles])
    emitting = asyncio.create_task(_emit_all(app, fleet, emitted))
    try:
        while not results.done():
            await asyncio.wait([results], timeout=BETWEEN)
            if not results.done() and len(fleet.killed) < MOST_KILLS:
                if disturb is not None:
                    await disturb(len(fleet.killed), emitted)
                await fleet.kill_one()
        await emitting
    finally:
        emitting.cancel()
    assert await results == [[sum(range(STEPS)), sum(range(CHILDREN)), run] for run in range(RUNS)]


async def _emit_all(app: App, fleet: Fleet, emitted: list[int]) -> None:
    """Half of the events come before anybody waits, the others one after the other, and some when enough is killed."""
    for place, run in enumerate(random.Random(1).sample(range(RUNS), RUNS)):
        await until(lambda run=run: is_emitted(app, run))
        emitted.append(run)
        if place > RUNS // 2:
            await asyncio.sleep(0.01)
        if place == RUNS * 9 // 10:
            await until(lambda: len(fleet.killed) >= FEWEST_KILLS, seconds=600)


async def is_emitted(app: App, run: int) -> bool:
    try:
        await app.emit(f"storm:{run}", run)
    except StoreError:  # it may have been kept all the same: the first one counts
        return False
    return True


def never(at: float) -> bool:
    return False


def check_facts(place: Place, killed: set[int], is_excused: Callable[[float], bool] = never) -> dict[str, int]:
    """Nothing is missing; what was kept is not run again; what ran again had been run by a worker that was killed, once
    more for each. `is_excused` says of an instant that what happened then may be lost. Returns how much ran again."""
    seen: dict[tuple[str, int, int], list[Fact]] = {}
    kept: dict[tuple[int, int], float] = {}
    for fact in place.facts():
        if fact.what == "kept":
            kept.setdefault((fact.run, fact.number), fact.at)
        elif fact.what != "end":
            before = seen.setdefault((fact.what, fact.run, fact.number), [])
            if before:
                causes = [one for one in before if one.pid in killed or is_excused(one.at)]
                assert causes == before, f"{fact} has run again although nobody was killed: {before}"
                assert fact.key == before[0].key, f"{fact} is another than {before[0]}"
                assert fact.pid not in {one.pid for one in before if one.pid in killed}
            if fact.what == "step" and (fact.run, fact.number) in kept:
                assert is_excused(kept[fact.run, fact.number]), f"{fact} has run again although its result was kept"
            before.append(fact)
    steps = {key for key in seen if key[0] == "step"}
    assert len(steps) == len(kept) == RUNS * STEPS
    children = {key for key in seen if key[0] == "child"}
    assert len(children) == (RUNS * CHILDREN if place.child_type == "storm:child" else 0)
    keys = [facts[0].key for facts in seen.values()]
    assert len(set(keys)) == len(keys)
    return {what: sum(len(facts) - 1 for key, facts in seen.items() if key[0] == what) for what in ("step", "child")}


async def check_rest(app: App, place: Place, names: list[str], killed: set[int]) -> None:
    """Nothing waits, and only those leave children behind whose worker was killed at their very end: these lapse."""
    ends: dict[int, set[int]] = {}
    for fact in place.facts():
        if fact.what == "end":
            ends.setdefault(fact.run, set()).add(fact.pid)
    unsure = sum(1 for pids in ends.values() if pids & killed)
    rest = [name.partition("}:")[2] for name in names]
    assert [name for name in rest if name in ("pending", "active", "lease", "scheduled", "waits", "ended", "due")] == []
    assert [name for name in rest if name.startswith("waiters:")] == []
    outcomes = [name for name in rest if name.startswith("kids:")]
    left = {name.split(":")[1] for name in rest if name.startswith("t:") and name.count(":") > 1}
    assert len(outcomes) <= unsure, outcomes
    assert len(left) <= unsure, left
    async with app.inspector() as inspector:
        assert await inspector.doctor.diagnose(server=False) == []
