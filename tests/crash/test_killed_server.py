"""The server killed with -9 and started again under load: workers go on by themselves, what was safe stays safe."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from tests.crash.fleet import RECOVERY, Fleet, say, seeded, thread
from tests.support.sizes import size
from tests.support.waiting import PATIENCE, pause_sync
from veredus.errors import StoreError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SAFE_AFTER = 1.5
"""Seconds after which an acknowledged write is on the disk: fsync runs every second."""


class Disk:
    """How long the server's log was and when: to take away what a power cut would have taken."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, "appendonlydir")
        self._sizes: list[tuple[float, Path, int]] = []
        self.ending = threading.Event()
        thread(self._watch)

    def _watch(self) -> None:
        while not self.ending.wait(0.02):
            for path in self._folder.glob("*.incr.aof"):
                with contextlib.suppress(OSError):
                    self._sizes.append((time.time(), path, path.stat().st_size))

    def cut(self, at: float) -> tuple[float, int]:
        """Forget what was written after this instant, or the last look before it; returns when that was, and the
        number of bytes."""
        looked_at, path, length = [row for row in self._sizes if row[0] <= at][-1]
        lost = path.stat().st_size - length
        os.truncate(path, length)
        return looked_at, lost


@pytest.mark.parametrize("power_cut", [False, True], ids=["process", "power"])
def test_killed_and_started_again_under_load(fleet: Fleet, power_cut: bool) -> None:
    rng = seeded()
    disk = Disk(fleet.server.folder)
    workers = fleet.start_many(2, concurrency=10)
    acknowledged: dict[str, tuple[float, float]] = {}
    """When each was sent, and when the answer was seen."""
    acknowledged.update(dict.fromkeys(fleet.enqueue(size(400, 2000), seconds=0.15), (time.time(), time.time())))
    refused = 0
    ending = threading.Event()

    def produce() -> None:
        nonlocal refused
        while not ending.wait(0.05):
            sent_at = time.time()
            try:
                sent = fleet.enqueue_all([{"seconds": rng.uniform(0.01, 0.2)} for _ in range(5)])
            except StoreError:
                refused += 1
            else:
                acknowledged.update(dict.fromkeys(sent, (sent_at, time.time())))

    producer = thread(produce)
    gaps = []
    unsure: list[tuple[float, float]] = []
    taken = 0
    for _ in range(size(1, 3)):
        loaded_at = time.time() + size(3.0, 6.0)
        fleet.wait(lambda at=loaded_at: time.time() > at and len(fleet.finishes()) > 100, "a load")
        killed_at = time.time()
        fleet.server.kill()
        dead_at, unsafe_from = time.time(), killed_at - SAFE_AFTER
        if power_cut:
            cut_at, lost_bytes = disk.cut(killed_at - 1.0)
            taken += lost_bytes
            unsafe_from = min(unsafe_from, cut_at)
        unsure.append((unsafe_from, dead_at))
        pause_sync(rng.uniform(0.2, 1.0), proves="workers do not end while it is away")
        fleet.server.start()
        back_at = time.time()
        fleet.wait(lambda at=back_at: fleet.starts()[-1].at > at, "the first start after that")
        gaps.append(next(fact.at for fact in fleet.starts() if fact.at > back_at) - back_at)
    fleet.wait(lambda: time.time() - back_at > 2.0, "more load")
    ending.set()
    disk.ending.set()
    producer.join(PATIENCE)
    took = fleet.wait_done(seconds=2 * RECOVERY + 15)
    finished = [fact.id for fact in fleet.finishes()]
    lost = set(acknowledged) - set(finished)
    safe = {
        id
        for id, (sent, answered) in acknowledged.items()
        if not any(answered > first and sent < last for first, last in unsure)
    }
    say(
        f"{taken} bytes of the log lost; "
        f"{len(acknowledged)} acknowledged, {len(safe)} of them safe; workers went on after "
        f"{', '.join(f'{gap:.2f}' for gap in gaps)} s; {len(finished) - len(set(finished))} run again, "
        f"{len(lost)} lost of those not on the disk yet, {refused} refused; the end came {took:.1f} s after the load"
    )
    assert max(gaps) < 20
    assert len(safe) > 100
    assert safe <= set(finished)
    assert power_cut or not lost
    assert bool(taken) == power_cut
    assert all(worker.exit_code is None for worker in workers)
    assert fleet.breaches() == []
    assert fleet.remains() == []
