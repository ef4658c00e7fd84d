"""kill -9 at named points of a task's life, and of a recoverer's: nothing is lost, nothing is run again needlessly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.fleet import LEASE_EXPIRED, RECOVERY, Fleet, say, seeded
from tests.support.sizes import FULL, size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

BATCH = 8
POINTS: dict[str, tuple[str | None, str, dict[str, Any]]] = {
    # name: (where, when, which settlement the tasks lead to)
    "taken-first": ("veredus.worker.attempt_runner:AttemptRunner.start", "before", {}),
    "taken-some": ("veredus.worker.attempt_runner:AttemptRunner._attempt", "after", {}),
    "reply-of-dequeue": ("veredus.store.tasks.work:Work.dequeue_each", "after", {}),
    "handler": (None, "", {"kills": 1}),
    "handler-ended": ("veredus.worker.settler:Settler.settle", "before", {}),
    "handlers-ended": ("veredus.worker.settler:Settler.settle", "after", {}),
    "done-unsent": ("veredus.store.tasks.work:Work.settle", "before", {}),
    "done-sent": ("veredus.store.tasks.work:Work.settle", "during", {}),
    "done-written": ("veredus.store.tasks.work:Work.settle", "after", {}),
    "complete-sent": ("veredus.store.tasks.work:Work.settle", "during", {"result": True}),
    "complete-written": ("veredus.store.tasks.work:Work.settle", "after", {"result": True}),
    "retry-unsent": ("veredus.store.tasks.work:Work.settle", "before", {"fails": 1}),
    "retry-sent": ("veredus.store.tasks.work:Work.settle", "during", {"fails": 1}),
    "retry-written": ("veredus.store.tasks.work:Work.settle", "after", {"fails": 1}),
}


def test_a_kill_at_any_point_loses_nothing(fleet: Fleet) -> None:
    """One victim per point, each with a queue of its own; when all are dead, one sound worker takes over."""
    rng = seeded()
    # A worker asks for no more than half of its hands at once: twice as many hands as tasks take all in one batch.
    tasks, victims = {}, {}
    for point, (where, when, payload) in POINTS.items():
        tasks[point] = fleet.enqueue(BATCH, options={"queue": point}, **payload)
        nth = rng.randrange(2, BATCH) if point in ("taken-some", "handlers-ended") else 1
        fault = [where, when, nth] if where else None
        victims[point] = fleet.start(queues=point, concurrency=2 * BATCH, fault=fault, wait=False)
    for point, victim in victims.items():
        assert victim.wait_exit() == -9, point

    held, settled, started = {}, {}, {}
    facts = fleet.starts()
    for point, ids in tasks.items():
        states = {task_id: fleet.field(task_id, "state", point) for task_id in ids}
        held[point] = {task_id for task_id, state in states.items() if state == "active"}
        settled[point] = {task_id for task_id, state in states.items() if state in ("", "completed")}
        started[point] = {fact.id for fact in facts if fact.queue == point}
        assert set(states.values()) <= {"", "active", "completed", "retry"}, point
    assert fleet.breaches() == []
    assert len(held["taken-first"]) == BATCH
    assert started["taken-first"] == started["taken-some"] == started["reply-of-dequeue"] == set()
    assert len(started["handler"]) == 1
    assert held["done-unsent"]
    assert settled["done-written"]
    assert settled["complete-written"]

    savior = fleet.start(queues=",".join(POINTS), concurrency=100)
    kept = sum(len(settled[point]) for point in POINTS if point.startswith("complete"))

    def all_done() -> bool:
        states = [fleet.number_in(state, point) for point in POINTS for state in ("pending", "active", "retry")]
        return not any(states)

    took = fleet.wait(all_done, "the end of all tasks", seconds=2 * RECOVERY + 10)
    say(f"all {len(POINTS) * BATCH} tasks settled {took:.1f} s after the survivor was ready")
    again = [fact for fact in fleet.starts() if fact.pid == savior.pid]
    finished = {fact.id for fact in fleet.finishes()}
    for point, ids in tasks.items():
        rerun = {fact.id for fact in again if fact.queue == point}
        say(f"{point:17} held {len(held[point])}, settled {len(settled[point])}, run again {len(rerun)}")
        assert set(ids) <= finished, f"{point}: lost {set(ids) - finished}"
        assert rerun == set(ids) - settled[point], point
        runs = [fact.id for fact in again if fact.queue == point]
        assert len(runs) == len(set(runs)), f"{point}: the survivor ran a task twice"
        for fact in again:
            if fact.queue == point:
                assert fact.attempt == 2, (point, fact)
    assert fleet.breaches() == []
    assert all(fleet.number_in("archived", point) == 0 for point in POINTS)
    completed = sum(fleet.number_in("completed", point) for point in POINTS)
    assert completed == 2 * BATCH >= kept


def test_a_recoverer_killed_with_its_claim_is_recovered_itself(fleet: Fleet) -> None:
    claim_ms = size(1500, 5000)
    first = fleet.start(concurrency=5)
    ids = fleet.enqueue(5, gate="{n}")
    fleet.wait(lambda: len(fleet.starts()) == 5, "five starts")
    doomed = fleet.start(queues="elsewhere", fault="claim", claim_ms=claim_ms)
    first.kill()
    assert doomed.wait_exit() == -9
    owners = {fleet.field(task_id, "held") for task_id in ids}
    assert len(owners) == 1, owners
    assert ":recoverer:" in owners.pop()
    assert {fleet.field(task_id, "state") for task_id in ids} == {"active"}
    assert fleet.breaches() == []

    fleet.start(concurrency=5)
    took = fleet.wait(
        lambda: len(fleet.starts()) == 10, "the second starts", seconds=claim_ms / 1000 + 2 * RECOVERY + 5
    )
    say(f"claimed twice, run again {took:.1f} s after the second recoverer was ready")
    for task_id in ids:
        message = fleet.message(task_id)
        assert (message.retried, message.error_msg) == (1, LEASE_EXPIRED), "one attempt was lost, not two"
        assert fleet.field(task_id, "losses") == "1", "a claim that came to nothing is no second loss"
    assert fleet.breaches() == []
    fleet.open_gate("2")
    fleet.wait_done()
    assert len(fleet.starts()) == 10
    assert fleet.remains() == []
    assert FULL or took < RECOVERY + claim_ms / 1000
