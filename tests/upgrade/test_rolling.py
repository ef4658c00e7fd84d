"""A fleet under load goes from the previous version to this one, one process at a time, and back again."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.fleet import Process, say
from tests.support.sizes import size
from tests.upgrade.crew import NEW, OLD, Crew

pytestmark = [pytest.mark.crash, pytest.mark.timeout(size(240, 900))]

WORKERS = size(2, 4)
PRODUCERS = size(1, 2)
SHARE = size(100, 320)
"""Tasks that each producer sends while one process is replaced."""
CONCURRENCY = 10


class Rolling:
    """The processes that run now."""

    def __init__(self, crew: Crew, *, kill: bool) -> None:
        self.crew, self._kill = crew, kill
        self.workers = [crew.worker(OLD, concurrency=CONCURRENCY, wait=False) for _ in range(WORKERS)]
        crew.wait(lambda: all(worker.is_ready for worker in self.workers), "the first workers")
        self.producers = [crew.side(OLD) for _ in range(PRODUCERS)]
        self.killed: set[int] = set()
        self._flows = 0

    def replace_all(self, version: str) -> None:
        """Workers and producers in turn, with tasks under way; the next one is there before its predecessor goes."""
        for i in range(WORKERS):
            leaving, self.workers[i] = self.workers[i], self.crew.worker(version, concurrency=CONCURRENCY)
            before, producer = None, i % PRODUCERS
            if i < PRODUCERS:
                before, self.producers[producer] = self.producers[producer], self.crew.side(version)
            sides = [*self.producers, *([before] if before else [])]
            done = len(self.crew.finishes())
            for side in sides:
                side("flow", count=SHARE, every=0.004, name=f"flow{self._flows}")
                self._flows += 1
            self.crew.wait(lambda done=done: len(self.crew.finishes()) >= done + SHARE // 3, "some tasks", seconds=120)
            self._end(leaving, i)
            if before and self._kill:
                before.kill()
                sides.remove(before)
            for side in sides:
                side("flown")
            if before and not self._kill:
                before.leave()

    def _end(self, worker: Process, number: int) -> None:
        if self._kill and number % 2 == 0:
            self.killed.add(worker.pid)
            worker.kill()
        else:
            assert self.crew.stop([worker]) == [0]

    def sent(self) -> list[str]:
        """What the producers were told is stored."""
        return (self.crew.folder / "sent").read_text().split()


@pytest.mark.parametrize("kill", size([True], [False, True]), ids=size(["killed"], ["stopped", "killed"]))
def test_a_rolling_upgrade_and_the_way_back(crew: Crew, kill: bool) -> None:
    fleet = Rolling(crew, kill=kill)
    with crew.sampling(size(0.2, 0.5)) as samples:
        fleet.replace_all(NEW)
        fleet.replace_all(OLD)
        crew.wait_done(seconds=120)
    sent, starts, finishes = fleet.sent(), crew.starts(), crew.finishes()
    ran = {fact.id for fact in finishes}
    on_killed = Counter(fact.id for fact in starts if fact.pid in fleet.killed)
    causes = Counter(fact.id for fact in crew.facts("RuntimeError"))
    extra = {one: count - 1 - causes[one] for one, count in Counter(fact.id for fact in starts).items()}
    again = {one: count for one, count in extra.items() if count > 0}
    say(
        f"{len(sent)} tasks, {len(starts)} starts, {2 * WORKERS} workers replaced, {len(fleet.killed)} of them killed: "
        f"{len(again)} run again, {samples.count} samples, {len(samples.breaches)} breaches"
    )
    assert samples.breaches == []
    assert len(sent) == len(set(sent))
    assert ran >= set(sent), f"{len(set(sent) - ran)} lost"
    assert len(ran - set(sent)) <= (2 * PRODUCERS if kill else 0), "what a killed producer was not told any more"
    assert all(count <= on_killed[one] for one, count in again.items()), f"run again without a kill: {again}"
    assert len(again) <= CONCURRENCY * len(fleet.killed)
    assert max(Counter((fact.id, fact.attempt) for fact in starts).values()) == 1, "no attempt begins twice"
    twice = {one for one, count in Counter(fact.id for fact in finishes).items() if count > 1}
    assert twice <= again.keys()
    assert crew.breaches() == []
    assert crew.stop(fleet.workers) == [0] * WORKERS
    assert crew.remains() == ["asynq:{limited}:limits"], "what the app declares"
