"""A worker killed with -9 under the default lease is noticed within seconds; a frozen one keeps its lease."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.fleet import LEASE_EXPIRED, Fleet, Process, say
from tests.crash.proxy import Proxy
from tests.support.servers import RealServer
from tests.support.waiting import pause_sync
from veredus.model.absences import PATIENCE

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

DEFAULTS: dict[str, Any] = {"lease": 12.0, "sweep": 2.0, "concurrency": 1}
EARLY = 7.0
"""Seconds before the first lease of a dead worker could end: it was renewed within a third of the lease."""


def runs(fleet: Fleet, worker: Process) -> list[str]:
    return [fact.id for fact in fleet.starts() if fact.pid == worker.pid]


def starts_on(fleet: Fleet, worker: Process) -> str:
    """A task that this worker runs, while all others are busy or away."""
    fleet.enqueue(gate="never")
    fleet.wait(lambda: runs(fleet, worker), "the start of its task")
    return runs(fleet, worker)[0]


def test_a_killed_worker_is_noticed_early_and_one_that_only_looks_gone_is_not(
    fleet: Fleet, durable: RealServer
) -> None:
    """Frozen, and killed without the server learning of it: their leases are left alone."""
    proxy = Proxy(durable.port)
    try:
        frozen = fleet.start(**DEFAULTS)
        frozen_task = starts_on(fleet, frozen)
        unheard = fleet.start(url=proxy.url, **DEFAULTS)
        unheard_task = starts_on(fleet, unheard)
        fleet.start_many(2, lease=DEFAULTS["lease"], sweep=2.0, concurrency=3)
        fleet.wait(lambda: looked_at(fleet) == 4, "workers that are looked for")
        frozen.stop()
        proxy.hold()
        unheard.kill()
        pause_sync(1.5 * PATIENCE, proves="neither looks dead")
        assert len(fleet.starts(frozen_task)) == len(fleet.starts(unheard_task)) == 1
        frozen.kill()
        fleet.wait(lambda: len(fleet.starts(frozen_task)) == 2, "the second start", seconds=EARLY)
        second = fleet.starts(frozen_task)[1]
        say(f"started again {second.at - frozen.killed_at:.2f} s after the kill")
        message = fleet.message(frozen_task)
        assert (second.attempt, message.retried, message.error_msg) == (2, 1, LEASE_EXPIRED)
        assert fleet.field(frozen_task, "losses") == "1"
        assert fleet.breaches() == []
    finally:
        proxy.close()


def looked_at(fleet: Fleet) -> int:
    """How many workers are subscribed to their channels."""
    channels = fleet.redis.pubsub_channels("asynq:alive:*")
    return len(channels) if fleet.redis.zcard("asynq:checkers:{asynq:servers}") == 2 else 0
