"""A worker killed with -9 inside a task: another starts it again, it counts as an attempt, and poison ends archived."""

from __future__ import annotations

import pytest

from tests.crash.fleet import LEASE_EXPIRED, RECOVERY, Fleet, say
from tests.support.sizes import size

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


def test_another_worker_starts_the_task_again(fleet: Fleet) -> None:
    workers = fleet.start_many(2, concurrency=1)
    (task_id,) = fleet.enqueue(gate="{n}")
    fleet.wait(lambda: fleet.starts(task_id), "the first start")
    first = fleet.starts(task_id)[0]
    victim = next(worker for worker in workers if worker.pid == first.pid)
    victim.kill()
    fleet.wait(lambda: len(fleet.starts(task_id)) == 2, "the second start")
    second = fleet.starts(task_id)[1]
    say(f"started again {second.at - victim.killed_at:.2f} s after the kill")
    assert second.pid not in (first.pid, 0)
    assert second.at - victim.killed_at < RECOVERY
    assert second.attempt == 2
    message = fleet.message(task_id)
    assert (message.retried, message.error_msg) == (1, LEASE_EXPIRED)
    assert fleet.field(task_id, "losses") == "1"
    assert fleet.breaches() == []
    fleet.open_gate("2")
    fleet.wait_done()
    assert (fleet.counter("processed"), fleet.counter("failed")) == (2, 1)
    assert len(fleet.starts(task_id)) == 2


@pytest.mark.parametrize("max_retry", size([1], [1, 2]))
def test_a_task_that_kills_its_worker_every_time_ends_archived(fleet: Fleet, max_retry: int) -> None:
    workers = fleet.start_many(max_retry + 2, concurrency=1)
    (task_id,) = fleet.enqueue(kills=99, options={"max_retry": max_retry})
    innocent = fleet.enqueue(20, seconds=0.05)
    patience = (max_retry + 1) * RECOVERY + 5
    took = fleet.wait(lambda: fleet.field(task_id, "state") == "archived", "the end in the archive", seconds=patience)
    message = fleet.message(task_id)
    dead = [worker for worker in workers if worker.exit_code is not None]
    say(f"archived after {took:.1f} s, {len(dead)} dead workers, reason {message.error_msg!r}")
    assert len(dead) == max_retry + 1
    assert [fact.attempt for fact in fleet.starts(task_id)] == list(range(1, max_retry + 2))
    assert (message.retried, message.error_msg) == (max_retry, LEASE_EXPIRED)
    fleet.wait(
        lambda: len({fact.id for fact in fleet.finishes(*innocent)}) == 20, "the innocent ones", seconds=patience
    )
    fleet.wait(lambda: fleet.tasks_left() == 1, "their settlement")
    assert fleet.breaches() == []
