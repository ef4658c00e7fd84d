"""The supervisor: replaces a killed child and gives its tasks back at once; its own death ends its children."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.crash.fleet import LEASE_EXPIRED, Fleet, is_alive, say, thread
from tests.support.servers import RealServer, free_port
from tests.support.sizes import size
from tests.support.waiting import PATIENCE, pause_sync

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

LONG_LEASE = 2 * PATIENCE
"""Seconds. What a test waits for does not come from a lease that ran out."""


def test_a_killed_child_is_replaced_and_its_tasks_are_given_back_at_once(fleet: Fleet) -> None:
    supervisor = fleet.start(cli=True, processes=2, concurrency=5, lease=LONG_LEASE)
    ids = fleet.enqueue(10, gate="{n}")
    fleet.wait(lambda: len(fleet.starts()) == 10, "all slots busy")
    victim = fleet.starts()[0].pid
    held = {fact.id for fact in fleet.starts() if fact.pid == victim}
    children = set(supervisor.children())
    killed_at = time.time()
    os.kill(victim, signal.SIGKILL)
    fleet.wait(lambda: len(fleet.starts()) == 10 + len(held), "the second runs")
    again = fleet.starts()[10:]
    took = max(fact.at for fact in again) - killed_at
    say(f"{len(held)} tasks of the killed child ran again {took:.2f} s later, with leases of {LONG_LEASE} s")
    assert {fact.id for fact in again} == held
    assert {fact.attempt for fact in again} == {2}
    assert all(fleet.message(task_id).error_msg == LEASE_EXPIRED for task_id in held)
    assert len(set(supervisor.children()) - children) == 1
    assert fleet.breaches() == []
    fleet.open_gate("1")
    fleet.open_gate("2")
    fleet.wait_done()
    assert sorted(fact.id for fact in fleet.finishes()) == sorted(ids)


def test_a_child_that_keeps_dying_holds_up_nobody(fleet: Fleet) -> None:
    """Its replacement has to wait a little longer each time; the tasks of another one that dies meanwhile do not."""
    supervisor = fleet.start(cli=True, processes=2, concurrency=5, lease=LONG_LEASE)
    (task_id,) = fleet.enqueue(gate="{n}")
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    holder = fleet.starts(task_id)[0].pid

    def others() -> list[int]:
        return [pid for pid in supervisor.children() if is_alive(pid) and pid != holder]

    for ends in range(1, 6):
        fleet.wait(others, "a child to kill")
        os.kill(others()[0], signal.SIGKILL)
        fleet.wait(lambda ends=ends: supervisor.log.count("ended with signal") == ends, "the notice of its end")
    killed_at = time.monotonic()
    os.kill(holder, signal.SIGKILL)
    took = fleet.wait(lambda: fleet.field(task_id, "held") == "", "its task to be given back")
    say(f"given back {took:.2f} s after the kill, while another child waits for its replacement")
    assert took < 2, "the other's replacement comes after 3.2 s"
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second run")
    say(f"run again {time.monotonic() - killed_at:.1f} s after the kill")


def test_a_task_that_kills_its_process_every_time_is_archived_whatever_its_retries(fleet: Fleet) -> None:
    supervisor = fleet.start(cli=True, processes=2, concurrency=5, lease=LONG_LEASE, max_crashes=3)
    (task_id,) = fleet.enqueue(kills=100, options={"max_retry": 100})
    fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive")
    assert len(fleet.starts(task_id)) == 3
    assert fleet.message(task_id).error_msg == "killed its worker 3 times"
    assert (
        f"task {task_id} (job) of queue default lost its worker: archived, killed its worker 3 times" in supervisor.log
    )
    canaries = fleet.enqueue(10)
    fleet.wait(lambda: len(fleet.finishes(*canaries)) == 10, "work as before")


def test_children_end_when_their_supervisor_is_killed(fleet: Fleet) -> None:
    supervisor = fleet.start(cli=True, processes=2, concurrency=2, shutdown_timeout=1, lease=LONG_LEASE)
    ids = fleet.enqueue(4, gate="{n}") + fleet.enqueue(4)
    fleet.wait(lambda: len(fleet.starts()) == 4, "all slots busy")
    children = supervisor.children()
    supervisor.kill()
    took = fleet.wait(lambda: not any(is_alive(pid) for pid in children), "the end of the children")
    say(f"{len(children)} children ended {took:.1f} s after their supervisor")
    assert len(children) == 2
    assert fleet.number_in("pending") == len(ids), "given back, not left to a recoverer"
    assert fleet.number_in("active") == 0
    assert fleet.breaches() == []


def test_a_child_that_cannot_be_stopped_does_not_hold_up_the_stop(fleet: Fleet) -> None:
    supervisor = fleet.start(processes=2, concurrency=2, shutdown_timeout=1, kill_after=size(1.5, 0.0))
    (task_id,) = fleet.enqueue(block=3600)
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    supervisor.terminate()
    at = time.monotonic()
    assert supervisor.wait_exit() == 1
    say(f"ended {time.monotonic() - at:.1f} s after SIGTERM although a child hangs")
    assert not any(is_alive(fact.pid) for fact in fleet.starts())
    assert fleet.number_in("active") == 0
    assert fleet.message(task_id).retried == 1
    assert fleet.breaches() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_without_redis_the_command_ends_at_once_with_exit_code_3(fleet: Fleet, processes: int) -> None:
    at = time.monotonic()
    worker = fleet.start(cli=True, url=f"redis://127.0.0.1:{free_port()}/0", processes=processes, wait=False)
    code = worker.wait_exit()
    say(f"exit code {code} after {time.monotonic() - at:.1f} s: {worker.log.strip()}")
    assert code == 3
    told = [line for line in worker.log.splitlines() if " INFO " not in line and not line.startswith("server: ")]
    assert len(told) == 1, told
    assert told[0].startswith("veredus: cannot connect")
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_wait_for_a_redis_that_went_away(fleet: Fleet, durable: RealServer, processes: int) -> None:
    worker = fleet.start(cli=True, processes=processes, concurrency=5)
    first = fleet.enqueue(5)
    fleet.wait_done()
    lines = len(worker.log.splitlines())
    children = worker.children()
    durable.kill()
    pause_sync(3.0, proves="workers neither end nor fill the log while it is away")
    assert worker.exit_code is None
    assert worker.children() == children
    told = worker.log.splitlines()[lines:]
    durable.start()
    second: list[str] = []
    sending = thread(lambda: second.extend(fleet.enqueue(5)))
    took = fleet.wait(lambda: len(fleet.finishes()) == 10, "work after the outage")
    sending.join(PATIENCE)
    say(f"{len(told)} lines in 3 s without Redis; {took:.1f} s after it was back all was done")
    assert len(told) <= 4 * processes, told
    assert {fact.id for fact in fleet.finishes()} == set(first + second)


def test_a_child_that_dies_while_redis_is_away_is_replaced_when_it_is_back(fleet: Fleet, durable: RealServer) -> None:
    supervisor = fleet.start(cli=True, processes=2, concurrency=2)
    durable.kill()
    victim = supervisor.children()[0]
    os.kill(victim, signal.SIGKILL)
    fleet.wait(lambda: f"worker process {victim} ended" in supervisor.log, "the notice of its end")
    pause_sync(1.0, proves="the supervisor does not end while Redis is away")
    durable.start()
    fleet.wait(lambda: supervisor.log.count(" serves ") >= 3, "a new child")
    ids = fleet.enqueue(10)
    fleet.wait(lambda: len(fleet.finishes(*ids)) == 10, "work as before")
    assert supervisor.exit_code is None
    assert len(supervisor.children()) == 2
