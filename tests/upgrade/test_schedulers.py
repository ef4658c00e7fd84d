"""Schedulers of both versions take turns: every tick once, whoever leads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.fleet import Process, say
from tests.support.servers import raw
from tests.support.sizes import size
from tests.upgrade.crew import NEW, OLD, Crew
from veredus.wire import keys

pytestmark = pytest.mark.timeout(240)
LEASE = size(2.0, 5.0)


def leader(crew: Crew) -> int:
    """The pid of the scheduler that leads now; 0 if none does."""
    for name in crew.redis.scan_iter("asynq:veredus:scheduler_leader:*"):
        holder = crew.redis.get(name)
        if holder:
            return int(raw(holder).decode().split(":")[-2])
    return 0


def ticks(crew: Crew) -> list[int]:
    """Nobody takes them away: they stand in the queue in the order in which they were fired."""
    ids = [raw(item).decode() for item in reversed(crew.redis.lrange(keys.pending("ticks"), 0, -1))]
    return [int(one.rpartition(":")[2]) for one in ids]


def test_every_tick_fires_once_while_schedulers_of_both_versions_take_turns(crew: Crew) -> None:
    def start(version: str) -> Process:
        return crew.scheduler(version, lease=LEASE, beat=0.5)

    def wait_for(lead: Callable[[], bool], what: str) -> None:
        crew.wait(lead, what)
        seen = len(ticks(crew))
        crew.wait(lambda: len(ticks(crew)) >= seen + size(2, 10), "some ticks of the leader")

    first = start(OLD)
    wait_for(lambda: leader(crew) == first.pid, "the old one to lead")
    second = start(NEW)
    wait_for(lambda: leader(crew) == first.pid, "the old one to lead on")
    first.kill()
    wait_for(lambda: leader(crew) == second.pid, "the new one to lead")
    third = start(OLD)
    wait_for(lambda: leader(crew) == second.pid, "the new one to lead on")
    second.terminate()
    assert second.wait_exit() == 0
    wait_for(lambda: leader(crew) == third.pid, "the old one to lead again")
    third.terminate()
    assert third.wait_exit() == 0
    fired = ticks(crew)
    say(f"{len(fired)} ticks under three leaders")
    assert fired == list(range(fired[0], fired[0] + len(fired))), "a tick is missing, double or out of order"
