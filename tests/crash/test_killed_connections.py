"""Connections of producers and workers are killed all the time: each task runs exactly once."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from tests.crash.fleet import Fleet, say, seeded
from tests.support.sizes import size
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.crash, pytest.mark.timeout(size(240, 1800))]

PRODUCERS = size(4, 20)
TASKS = size(2_000, 100_000)
WORKERS = 2
KILL_EVERY = 0.05
LEASE = 12.0
"""The default, at any size: a lease must not end because this machine is busy."""


class Killer:
    """Kills a random client of the server every 50 ms on average, from a thread: what a busy machine made it miss, it
    makes up for. Subscribers are spared: Redis counts them as another kind of client."""

    def __init__(self, client: redis.Redis, rng: random.Random) -> None:
        self.kills: Counter[str] = Counter()
        self.seconds = 0.0
        """How long it has been killing."""
        self.ending = threading.Event()
        self._client, self._rng = client, rng
        self._clients: list[dict[str, str]] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began = time.monotonic()
        while not self.ending.wait(KILL_EVERY):
            self.seconds = time.monotonic() - began
            self._kill(round(self.seconds / KILL_EVERY) - self.kills.total())

    def _kill(self, count: int) -> None:
        """In one round trip, with a fresh list for the next time. Who has left meanwhile is not counted."""
        victims = self._victims(count)
        with self._client.pipeline(transaction=False) as pipe:
            for victim in victims:
                pipe.client_kill_filter(_id=victim["id"])
            pipe.client_list(_type="normal")
            *killed, clients = pipe.execute()
        self.kills.update(victim["name"] for victim, number in zip(victims, killed, strict=True) if number)
        self._clients = [one for one in clients if one["name"].startswith("veredus")]

    def _victims(self, count: int) -> list[dict[str, str]]:
        """Producers as often as workers."""
        sides = [[one for one in self._clients if (one["name"] == "veredus") is side] for side in (True, False)]
        chosen = [
            self._rng.choice(self._rng.choice([side for side in sides if side])) for _ in range(count) if any(sides)
        ]
        return list({victim["id"]: victim for victim in chosen}.values())


@contextlib.contextmanager
def killing(fleet: Fleet) -> Iterator[Killer]:
    with fleet.server.client() as client:
        killer = Killer(client, seeded())
        killer.thread.start()
        try:
            yield killer
        finally:
            killer.ending.set()
            killer.thread.join(PATIENCE)


def test_each_task_runs_exactly_once_while_connections_are_killed(fleet: Fleet) -> None:
    fleet.start_many(WORKERS, concurrency=20, lease=LEASE)
    began = time.monotonic()
    with killing(fleet) as killer:
        producers = [
            subprocess.Popen(
                [sys.executable, "sender.py", fleet.server.url, str(n), str(TASKS // PRODUCERS), f"sent.{n}"],
                cwd=fleet.folder,
            )
            for n in range(PRODUCERS)
        ]
        try:
            codes = [producer.wait(size(120, 1200)) for producer in producers]
        finally:
            for producer in producers:
                producer.kill()
                producer.wait()
        sent_in = time.monotonic() - began
        assert codes == [0] * PRODUCERS
        fleet.wait_done(seconds=size(60, 400))
    took = time.monotonic() - began
    ids = [line for n in range(PRODUCERS) for line in (fleet.folder / f"sent.{n}").read_text().splitlines()]
    runs = Counter(fact.id for fact in fleet.starts())
    more = {task_id: count for task_id, count in runs.items() if count != 1}
    say(
        f"{len(ids)} tasks of {PRODUCERS} producers in {took:.1f} s (sent in {sent_in:.1f} s), "
        f"{killer.kills.total()} connections killed in {killer.seconds:.1f} s {dict(killer.kills)}: {runs.total()} runs"
    )
    assert len(ids) == len(set(ids)) == TASKS
    assert more == {}, f"{len(more)} tasks ran more than once"
    assert set(runs) == set(ids), f"{len(set(ids) - set(runs))} never ran, {len(set(runs) - set(ids))} nobody knows of"
    assert killer.kills.total() >= 0.5 * killer.seconds / KILL_EVERY
    assert fleet.counter("processed") == TASKS
    assert fleet.counter("failed") == 0
    assert fleet.breaches() == []
