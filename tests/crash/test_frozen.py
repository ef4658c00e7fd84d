"""C code that holds the GIL stops every thread of its process: the supervisor renews its leases."""

from __future__ import annotations

import os
import signal

import pytest

from tests.crash.fleet import LEASE, Fleet, is_alive, say
from tests.support.sizes import size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


def test_a_process_whose_gil_is_held_keeps_its_tasks(fleet: Fleet) -> None:
    """Longer than a lease, and longer than anybody needs to take them over."""
    held, lease = size(6.0, 60.0), size(2.4, LEASE)
    supervisor = fleet.start(processes=2, concurrency=5, lease=lease)
    neighbours = fleet.enqueue(6, gate="open")
    fleet.wait(lambda: len(fleet.starts(*neighbours)) == 6, "the neighbours")
    (task_id,) = fleet.enqueue(task="frozen", seconds=held)
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    fleet.wait(lambda: "its supervisor renews the leases" in supervisor.log, "word of it")
    took = fleet.wait(lambda: fleet.finishes(task_id), "its end", seconds=held + 20)
    say(f"the GIL was held for {held} s, the task was finished {took:.1f} s after the supervisor's word of it")
    fleet.open_gate("open")
    fleet.wait_done()
    assert len(fleet.starts(task_id)) == 1, "nobody ran it beside the first attempt"
    assert len(fleet.starts(*neighbours)) == 6
    assert supervisor.log.count(f"{task_id} (frozen)") == 1
    fleet.wait(lambda: "runs again" in supervisor.log, "word of its end")
    assert "lost its worker" not in supervisor.log
    assert "has another owner" not in supervisor.log
    assert fleet.counter("failed") == 0
    assert fleet.breaches() == []


def test_a_process_whose_gil_is_held_after_its_deadline_is_killed(fleet: Fleet) -> None:
    supervisor = fleet.start(processes=2, concurrency=5)
    (task_id,) = fleet.enqueue(task="frozen", seconds=3600, options={"timeout": 1, "max_retry": 0})
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    pid = fleet.starts(task_id)[0].pid
    fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the archive", seconds=60)
    fleet.wait(lambda: not is_alive(pid), "its end")
    assert len(fleet.starts(task_id)) == 1
    assert f"worker process {pid} is frozen after the deadlines of all its tasks and is killed" in supervisor.log
    canaries = fleet.enqueue(10)
    fleet.wait(lambda: len(fleet.finishes(*canaries)) == 10, "work as before")
    assert fleet.breaches() == []
    assert supervisor.exit_code is None


def test_a_stopped_process_is_not_waited_for(fleet: Fleet) -> None:
    supervisor = fleet.start(processes=2, concurrency=5)
    (task_id,) = fleet.enqueue(gate="{n}", options={"timeout": 600})
    fleet.wait(lambda: fleet.starts(task_id), "the start")
    pid = fleet.starts(task_id)[0].pid
    os.kill(pid, signal.SIGSTOP)
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second run", seconds=20)
    fleet.open_gate("2")
    fleet.wait_done()
    assert "is frozen" not in supervisor.log
    os.kill(pid, signal.SIGCONT)
