"""Connections of living workers are killed at random, workers and the server stand still for 3 s, the master changes:
how many tasks are taken from living workers? At full size for ten minutes."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.crash.fleet import Fleet, Process, say, seeded
from tests.support.sentinels import Sentinels
from tests.support.servers import RealServer
from tests.support.sizes import size
from tests.support.waiting import pause_sync
from veredus.wire import keys

pytestmark = pytest.mark.timeout(size(240, 1800))

SECONDS = size(12.0, 600.0)
WORKERS = 4
TASKS = 12
KILL_EVERY = 0.25
PAUSE = 3.0
PAUSE_EVERY = size(4.0, 15.0)


class Trouble:
    """What happens to workers that live."""

    def __init__(self, sentinels: Sentinels, workers: list[Process], rng: random.Random) -> None:
        self.killed = self.stops = self.freezes = 0
        self._sentinels, self._workers, self._rng = sentinels, workers, rng
        self._ends: Callable[[], None] | None = None
        self._ends_at = 0.0

    def kill_a_connection(self) -> None:
        with contextlib.suppress(redis.RedisError, IndexError, StopIteration), self._client() as client:
            rows = [row for row in client.client_list() if row["name"].startswith("veredus-")]
            self.killed += int(client.client_kill_filter(_id=self._rng.choice(rows)["id"]))

    def stand_still(self) -> None:
        """A worker, or the server."""
        self.go_on()
        if self._rng.random() < 0.7:
            worker = self._rng.choice(self._workers)
            worker.stop()
            self.stops, self._ends = self.stops + 1, worker.go_on
        else:
            server = self._sentinels.master()
            server.freeze()
            self.freezes, self._ends = self.freezes + 1, server.thaw
        self._ends_at = time.monotonic() + PAUSE

    def go_on(self, *, at_once: bool = True) -> None:
        if self._ends is not None and (at_once or time.monotonic() >= self._ends_at):
            self._ends()
            self._ends = None

    @property
    def is_frozen(self) -> bool:
        return self._ends is not None

    def _client(self) -> redis.Redis:
        client = self._sentinels.master().client()
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.2
        return client


def taken_early(server: RealServer) -> int:
    with server.client() as client:
        return sum(map(int, client.hvals(keys.JUDGED)))


def test_how_many_living_workers_are_taken_for_dead(new_sentinels: Callable[..., Sentinels], tmp_path: Path) -> None:
    sentinels = new_sentinels()
    fleet = Fleet(sentinels.master(), tmp_path)
    try:
        workers = [
            fleet.start(url=sentinels.url, wait=False, lease=12.0, sweep=2.0, concurrency=5) for _ in range(WORKERS)
        ]
        fleet.wait(lambda: all(worker.is_ready for worker in workers), "the start of all workers")
        fleet.enqueue(TASKS, gate="end")
        fleet.wait(lambda: len(fleet.starts()) == TASKS, "all starts")
        trouble = Trouble(sentinels, workers, seeded())
        began, paused_at, has_failed_over = time.monotonic(), time.monotonic(), False
        while time.monotonic() - began < SECONDS:
            trouble.kill_a_connection()
            trouble.go_on(at_once=False)
            if time.monotonic() - paused_at > PAUSE_EVERY:
                paused_at = time.monotonic()
                trouble.stand_still()
            if not has_failed_over and not trouble.is_frozen and time.monotonic() - began > SECONDS / 2:
                sentinels.fail_over()
                has_failed_over = True
            pause_sync(KILL_EVERY, proves="nobody looks dead meanwhile")
        trouble.go_on()
        fleet.open_gate("end")
        fleet.wait(lambda: len({fact.id for fact in fleet.finishes()}) == TASKS, "the end of all tasks")
        wrong, again = taken_early(sentinels.master()), len(fleet.starts()) - TASKS
        say(
            f"{SECONDS:g} s, {trouble.killed} connections killed, {trouble.stops} pauses of a worker and "
            f"{trouble.freezes} of the server for {PAUSE:g} s, one failover: {wrong} leases taken from living workers, "
            f"{again} second runs"
        )
        assert has_failed_over
        assert wrong <= size(0, 1)
    finally:
        fleet.close()
