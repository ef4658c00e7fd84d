"""Handlers that block their event loop: one that is only slow is left alone, one that hangs is taken away."""

from __future__ import annotations

import os
import signal

import pytest

from tests.crash.fleet import HERE, LEASE, LEASE_EXPIRED, Fleet, say
from tests.support.sizes import FULL, size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

TIMEOUT = size(1, 5)
"""Seconds that the hanging handler has."""
BLOCKING_LINE = 1 + (HERE / "shop.py").read_text().splitlines().index("            time.sleep(block)")
STARTED_ELSEWHERE = size(12.0, 25.0)


def test_a_long_block_is_not_taken_for_a_crash(fleet: Fleet) -> None:
    block = size(4 * LEASE, 45.0)
    fleet.start_many(2, concurrency=1)
    ids = fleet.enqueue(2, block=block)
    fleet.wait(lambda: len(fleet.starts()) == 2, "the starts", seconds=block + 20)
    looks = 0

    def over() -> bool:
        nonlocal looks
        running = {fact.pid for fact in fleet.starts()} - {fact.pid for fact in fleet.finishes()}
        assert all(fleet.shown_alive(pid) for pid in running), "a blocked worker vanished from the tools"
        looks += 1
        return len(fleet.finishes()) == 2

    fleet.wait(over, "the ends", seconds=2 * block + 10)
    fleet.wait_done()
    say(f"blocked for {block} s, {len(fleet.starts())} starts, shown alive in {looks} looks")
    assert sorted(fact.id for fact in fleet.starts()) == sorted(ids)
    assert "lost its worker" not in fleet.log()
    assert fleet.counter("failed") == 0
    assert fleet.breaches() == []


def test_a_hanging_handler_is_started_elsewhere_and_ends_archived(fleet: Fleet) -> None:
    fleet.start_many(3, concurrency=3)
    (task_id,) = fleet.enqueue(block=3600, options={"timeout": TIMEOUT, "max_retry": 1})
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second start", seconds=STARTED_ELSEWHERE + 5)
    first, second = fleet.starts(task_id)
    say(f"hung with a timeout of {TIMEOUT} s, started elsewhere after {second.at - first.at:.1f} s")
    assert first.pid != second.pid
    assert TIMEOUT < second.at - first.at < STARTED_ELSEWHERE
    took = fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive", seconds=STARTED_ELSEWHERE + 5)
    say(f"archived {took:.1f} s after the second start")
    message = fleet.message(task_id)
    assert (message.retried, message.error_msg) == (1, LEASE_EXPIRED)
    assert len(fleet.starts(task_id)) == 2
    (canary,) = fleet.enqueue()
    fleet.wait(lambda: fleet.finishes(canary), "the third worker")
    assert fleet.breaches() == []


def test_the_neighbours_of_a_hanging_handler_are_taken_away_too(fleet: Fleet) -> None:
    worker = fleet.start(concurrency=5)
    neighbours = fleet.enqueue(2, gate="{n}", options={"timeout": 600})
    fleet.wait(lambda: len(fleet.starts()) == 2, "the neighbours")
    (task_id,) = fleet.enqueue(block=3600, options={"timeout": TIMEOUT, "max_retry": 0})
    fleet.wait(lambda: fleet.starts(task_id), "the hanging one")
    fleet.open_gate("2")
    other = fleet.start(concurrency=5)
    took = fleet.wait(
        lambda: len(fleet.finishes(*neighbours)) == 2, "the neighbours elsewhere", seconds=2 * STARTED_ELSEWHERE
    )
    say(f"the neighbours were finished elsewhere {took:.1f} s later")
    assert {fact.pid for fact in fleet.finishes(*neighbours)} == {other.pid}
    fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive", seconds=STARTED_ELSEWHERE)
    assert worker.exit_code is None


def test_a_hung_child_is_replaced(fleet: Fleet) -> None:
    supervisor = fleet.start(processes=2, concurrency=3)
    children = set(supervisor.children())
    (task_id,) = fleet.enqueue(block=3600, options={"timeout": TIMEOUT, "max_retry": 1})
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second start", seconds=STARTED_ELSEWHERE + 5)
    first, second = fleet.starts(task_id)
    fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive", seconds=STARTED_ELSEWHERE + 5)
    fleet.wait(lambda: len(set(supervisor.children()) - {first.pid, second.pid}) == 2, "new children")
    say(f"started again after {second.at - first.at:.1f} s; children {children} -> {set(supervisor.children())}")
    assert first.pid in children
    assert supervisor.log.count("ended with exit code 70") == 2
    blocked = f"s by task {task_id} (job), at {fleet.folder / 'shop.py'}:{BLOCKING_LINE}: this process ends"
    assert supervisor.log.count(blocked) == 2, supervisor.log
    assert "Redis is not available" not in supervisor.log
    assert fleet.message(task_id).retried == 1
    canaries = fleet.enqueue(6)
    fleet.wait(lambda: len(fleet.finishes(*canaries)) == 6, "work as before")
    assert fleet.breaches() == []


def test_the_neighbours_of_a_hung_child_are_given_back_and_no_attempt_of_theirs_is_counted(fleet: Fleet) -> None:
    supervisor = fleet.start(concurrency=10, max_tasks=10_000)  # one process, and a supervisor
    neighbours = fleet.enqueue(3, gate="open", options={"max_retry": 0})
    neighbours += fleet.enqueue(2, task="threaded", gate="open", options={"max_retry": 0})
    fleet.wait(lambda: len(fleet.starts()) == 5, "the neighbours")
    (task_id,) = fleet.enqueue(block=3600, options={"timeout": TIMEOUT, "max_retry": 0})
    fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive", seconds=STARTED_ELSEWHERE + 5)
    fleet.open_gate("open")
    fleet.wait(lambda: len(fleet.finishes(*neighbours)) == 5, "the neighbours elsewhere")
    assert {fact.attempt for fact in fleet.finishes(*neighbours)} == {1}
    assert fleet.number_in("archived") == 1
    assert "ended with exit code 70" in supervisor.log
    assert fleet.breaches() == []


@pytest.mark.skipif(not FULL, reason="takes as long as the patience with a hung worker: at full size only")
def test_a_hung_worker_that_is_told_to_stop_ends_after_its_time(fleet: Fleet) -> None:
    worker = fleet.start(cli=True, concurrency=1, shutdown_timeout=1)
    (task_id,) = fleet.enqueue(block=3600, options={"timeout": 600})
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    os.kill(worker.pid, signal.SIGTERM)
    took = fleet.wait(lambda: worker.exit_code is not None, "its end")
    say(f"ended by itself {took:.1f} s after SIGTERM")
    assert worker.exit_code == 70
    assert took > 10
    fleet.start(concurrency=1)
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second start")
    assert fleet.breaches() == []
