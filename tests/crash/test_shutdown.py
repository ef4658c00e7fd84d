"""SIGTERM under load: what runs may finish, the rest goes back to the front, nothing is lost."""

from __future__ import annotations

import time

import pytest

from tests.crash.fleet import Fleet, say
from tests.support.waiting import pause_sync

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_under_load(fleet: Fleet, processes: int) -> None:
    worker = fleet.start(cli=True, concurrency=8 // processes, shutdown_timeout=3, processes=processes)
    short = fleet.enqueue(4, gate="soon")
    long = fleet.enqueue(1, gate="later")
    long += fleet.enqueue(2, task="threaded", gate="later") + fleet.enqueue(1, task="stubborn", gate="later")
    fleet.wait(lambda: len(fleet.starts()) == 8, "all slots busy")
    waiting = fleet.enqueue(20, seconds=0.01)
    worker.terminate()
    at = time.monotonic()
    fleet.wait(lambda: worker.log.count("stopping: ") == processes, "the signal's effect")
    fleet.open_gate("soon")
    code = worker.wait_exit()
    took = time.monotonic() - at
    pending = fleet.pending()
    finished = {fact.id for fact in fleet.finishes()}
    say(f"exit code {code} after {took:.1f} s, {len(finished)} finished, {len(pending)} pending")
    assert code == 0
    assert took > 2.5, "they had their time"
    assert finished == set(short)
    assert set(pending[:4]) == set(long), "given back to the front"
    assert pending[4:] == waiting
    assert fleet.breaches() == []
    assert fleet.number_in("active") == 0
    assert all(fleet.message(task_id).retried == 0 for task_id in long)
    assert fleet.counter("processed") == 4
    assert not fleet.redis.keys("asynq:servers:*")
    fleet.open_gate("later")
    fleet.start(concurrency=8)
    fleet.wait_done()
    assert {fact.id for fact in fleet.finishes()} == set(short + long + waiting)
    assert fleet.counter("failed") == 0


def test_a_second_sigterm_gives_back_at_once(fleet: Fleet) -> None:
    worker = fleet.start(cli=True, concurrency=4, shutdown_timeout=100)
    ids = fleet.enqueue(4, gate="later")
    fleet.wait(lambda: len(fleet.starts()) == 4, "the starts")
    worker.terminate()
    fleet.wait(lambda: "stopping: 4 running" in worker.log, "the first signal's effect")
    worker.terminate()
    at = time.monotonic()
    assert worker.wait_exit() == 0
    say(f"ended {time.monotonic() - at:.1f} s after the second signal")
    assert set(fleet.pending()) == set(ids)
    assert fleet.breaches() == []


def test_settlements_earned_during_an_outage_are_not_lost_at_a_stop(fleet: Fleet) -> None:
    """The server stands still while handlers end and SIGTERM comes: what they earned is written all the same."""
    worker = fleet.start(cli=True, concurrency=10, shutdown_timeout=10)
    ids = fleet.enqueue(6, gate="now")
    fleet.wait(lambda: len(fleet.starts()) == 6, "the starts")
    fleet.server.freeze()
    fleet.open_gate("now")
    fleet.wait(lambda: len(fleet.finishes()) == 6, "the ends")
    worker.terminate()
    pause_sync(1.0, proves="it does not give up what the server cannot take yet")
    fleet.server.thaw()
    assert worker.wait_exit() == 0
    assert fleet.tasks_left() == 0
    assert fleet.counter("processed") == len(ids)
    assert fleet.remains() == []
