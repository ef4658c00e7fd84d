"""One long run: twenty faults of the Redis server, one after the other, while producers send and workers work.

Nothing is lost, nothing runs twice, each outage is one line in a worker's log, and workers do not grow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.faults import ClockedServer, Fault, twenty
from tests.crash.fleet import HERE, Fleet, Process, say, seeded
from tests.crash.growth import Sample, growths
from tests.support.sizes import FULL
from tests.support.waiting import until_sync

SOAK = float(os.environ.get("VEREDUS_TEST_SOAK") or 120)
"""Seconds of the soak."""
WORKERS, PRODUCERS, RATE = 3, 2, 30
AWAY = "Redis is not available"
NO_CLOCK = "there is no C compiler (cc): clocks that jump were NOT TESTED"

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(int(SOAK) + 900),
    pytest.mark.skipif(not FULL, reason="make crash runs it"),
]


class Row(NamedTuple):
    """What one fault did."""

    name: str
    seconds: float
    done: int
    """Tasks that ended meanwhile and until everybody was back."""
    repeated: int
    away: list[int]
    """Lines of each worker that Redis is not available."""
    lines: list[int]
    """All lines of each worker from warnings on."""
    outages: int


class Run:
    def __init__(self, server: ClockedServer, folder: Path) -> None:
        self.server = server
        self.fleet = Fleet(server, folder)
        self.rows: list[Row] = []
        self._folder = folder
        self._producers: list[subprocess.Popen[bytes]] = []
        self.workers: list[Process] = []

    def start(self) -> None:
        (self._folder / "producer.py").write_text((HERE / "producer.py").read_text())
        (self._folder / "sent").touch()
        self.workers = self.fleet.start_many(WORKERS, concurrency=30)
        for number in range(PRODUCERS):
            command = [sys.executable, "producer.py", self.server.url, str(number), str(RATE)]
            with (self._folder / f"producer.{number}.log").open("wb") as log:
                self._producers.append(subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log))
        self.fleet.wait(lambda: len(self.fleet.finishes()) > 50, "a load")

    def close(self) -> None:
        for producer in self._producers:
            producer.kill()
            producer.wait()
        self.fleet.close()

    def sent(self) -> list[str]:
        return (self._folder / "sent").read_text().split()

    def strike(self, fault: Fault) -> None:
        """Let it happen, and wait until tasks that were sent after it have been run by every worker."""
        ended, lines = len(self.fleet.finishes()), [_lines(worker) for worker in self.workers]
        repeats, began = self.repeats(), time.monotonic()
        fault.act(self.server)
        seconds, number = time.monotonic() - began, len(self.sent())

        def is_back() -> bool:
            done = self.fleet.finishes()
            late = {fact.pid for fact in done[ended:] if fact.at > began_again}
            return len(self.sent()) > number + 20 and len(late) == WORKERS

        began_again = time.time()
        until_sync(is_back, seconds=90, what=f"work after {fault.name}")
        new = [_lines(worker)[len(old) :] for worker, old in zip(self.workers, lines, strict=True)]
        done = len(self.fleet.finishes()) - ended
        away = [sum(AWAY in line for line in part) for part in new]
        self.rows.append(
            Row(fault.name, seconds, done, self.repeats() - repeats, away, [len(part) for part in new], fault.outages)
        )
        say(_table(self.rows[-1:], head=len(self.rows) == 1))

    def repeats(self) -> int:
        """Starts beyond the first one of each task."""
        starts = [fact.id for fact in self.fleet.starts()]
        return len(starts) - len(set(starts))

    def finish(self) -> None:
        """Stop sending, wait for the end, and account for every task."""
        (self._folder / "enough").touch()
        for producer in self._producers:
            assert producer.wait(60) == 0
        self.fleet.wait_done(seconds=60)
        sent, starts = self.sent(), self.fleet.starts()
        lost = set(sent) - {fact.id for fact in self.fleet.finishes()}
        say(f"{len(sent)} sent, {len(starts)} starts, {len(lost)} lost, {self.repeats()} run again")
        assert not lost
        assert self.repeats() == 0, [row for row in self.rows if row.repeated]
        assert self.fleet.breaches() == []
        assert self.fleet.stop(self.workers) == [0] * WORKERS


def _lines(worker: Process) -> list[str]:
    return [line for line in worker.log.splitlines() if " WARNING " in line or " ERROR " in line]


def _table(rows: list[Row], *, head: bool = True) -> str:
    lines = [f"{'fault':32} {'seconds':>8} {'done':>6} {'again':>6}  away      lines"] if head else []
    for row in rows:
        away, all_lines = ",".join(map(str, row.away)), ",".join(map(str, row.lines))
        lines.append(f"{row.name:32} {row.seconds:8.1f} {row.done:6d} {row.repeated:6d}  {away:8}  {all_lines}")
    return "\n".join(lines)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    server = ClockedServer(tmp_path)
    run = Run(server, tmp_path)
    try:
        run.start()
        yield run
    finally:
        run.close()
        server.close()


def _possible(server: ClockedServer) -> list[Fault]:
    faults = twenty()
    if not server.has_clock:
        say(NO_CLOCK)
        faults = [fault for fault in faults if not fault.name.startswith("clock")]
    return faults


def test_twenty_faults_one_after_the_other(run: Run) -> None:
    for fault in _possible(run.server):
        run.strike(fault)
    run.finish()
    flood = [row for row in run.rows if max(row.away) > row.outages]
    assert not flood, "more than one line per outage:\n" + _table(flood)


def _sample(run: Run, began: float) -> Sample:
    memory = threads = descriptors = 0
    for worker in run.workers:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines() if ":" in line
        )
        memory += int(status["VmRSS"].split()[0])
        threads += int(status["Threads"])
        descriptors += len(os.listdir(f"/proc/{worker.pid}/fd"))
    with run.server.client() as client:
        keys = sum(1 for key in client.scan_iter(count=1000) if b":t:" not in key)
        connections = len(client.client_list()) - 1
    return Sample(time.monotonic() - began, memory, descriptors, threads, connections, keys)


def test_a_soak_with_faults_leaves_everything_flat(run: Run) -> None:
    """The same faults in random order, again and again. After a warm-up of a quarter of the time nothing grows."""
    rng, began, samples = seeded(), time.monotonic(), list[Sample]()
    faults = _possible(run.server)
    while time.monotonic() - began < SOAK:
        run.strike(rng.choice(faults))
        samples.append(_sample(run, began))
    run.finish()
    say("seconds   memory KB  descriptors  threads  connections  keys")
    for one in samples:
        say(
            f"{one.at:7.0f} {one.memory:11d} {one.descriptors:12d} {one.threads:8d} {one.connections:12d} {one.keys:5d}"
        )
    found = growths([one for one in samples if one.at > SOAK / 4], WORKERS)
    say("\n".join(map(str, found)))
    assert not [str(one) for one in found if one.is_too_much]
