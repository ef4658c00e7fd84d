"""Handlers that run on after their deadline: they disturb neither their neighbours nor the next attempt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.fleet import Fleet, is_alive, say
from tests.support.sizes import size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

RARE_BEATS: dict[str, Any] = {"lease": size(6.0, 12.0), "deadline_grace": size(0.5, 3.0)}
"""Between two heartbeats lies more than the grace: a loop that has not answered since the last one is not blocked."""
TIMED_OUT = "context deadline exceeded"


@pytest.mark.parametrize("task", ["threaded", "stubborn"])
def test_the_neighbours_of_a_handler_that_does_not_end_finish_before_its_process_is_replaced(
    fleet: Fleet, task: str
) -> None:
    supervisor = fleet.start(concurrency=20, max_tasks=10_000, **RARE_BEATS)  # one process, and a supervisor
    children = set(supervisor.children())
    neighbours = fleet.enqueue(10, gate="neighbours", options={"max_retry": 0})
    (stuck,) = fleet.enqueue(task=task, gate="{n}", options={"timeout": 1, "max_retry": 1})
    fleet.wait(lambda: len(fleet.starts()) == 11, "all starts")
    fleet.wait(lambda: "is replaced when all tasks but" in supervisor.log, "word of the overrun")
    first = fleet.starts(stuck)[0].pid
    assert supervisor.log.count(f"task {stuck} ({task}) runs on after its deadline") == 1
    assert "event loop has been blocked" not in supervisor.log
    assert is_alive(first)
    fleet.wait(lambda: len(supervisor.children()) == 2, "its replacement, while it finishes what it has")
    later = fleet.enqueue(5)
    fleet.wait(lambda: len(fleet.finishes(*later)) == 5, "later tasks")
    assert first not in {fact.pid for fact in fleet.starts(*later)}, "a process that is to be replaced takes no tasks"
    fleet.open_gate("neighbours")
    fleet.wait(lambda: len(fleet.starts(stuck)) == 2, "the second attempt")
    second = fleet.starts(stuck)[1]
    assert not is_alive(first), "the second attempt begins after the first has ended"
    say(f"children {children} -> {set(supervisor.children())}")
    assert fleet.message(stuck).error_msg == TIMED_OUT
    assert sorted(fact.id for fact in fleet.finishes(*neighbours)) == sorted(neighbours)
    assert len(fleet.starts(*neighbours)) == 10, "no neighbour ran twice"
    assert second.pid != first
    fleet.open_gate("2")
    fleet.wait_done()
    assert fleet.number_in("archived") == 0
    assert len(supervisor.children()) == 1
    assert "ended with" not in supervisor.log
    assert fleet.breaches() == []
