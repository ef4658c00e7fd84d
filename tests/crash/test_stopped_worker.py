"""A worker that stood still while others took over: when it wakes it changes nothing that is no longer its own."""

from __future__ import annotations

import time

import pytest

from tests.crash.fleet import LEASE, LEASE_EXPIRED, QUEUE, RECOVERY, Fleet, Process, say
from tests.support.servers import raw
from tests.support.sizes import size
from tests.support.waiting import pause_sync
from veredus.wire import keys
from veredus.wire.messages import decode_task, encode_task

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

STOPPED = size(3 * LEASE, 60.0)


def wake(fleet: Fleet, worker: Process, held: int) -> None:
    """Let it go on, and wait until it has dealt with all that it had in hand and works again."""
    fleet.open_gate("1")
    worker.go_on()
    ended = ("finish", "CancelledError", "RuntimeError")
    fleet.wait(
        lambda: sum(1 for fact in fleet.facts() if fact.pid == worker.pid and fact.what in ended) >= held,
        "the end of its handlers",
    )
    (canary,) = fleet.enqueue(options={"queue": "canary"})
    fleet.wait(lambda: fleet.finishes(canary), "a new task of the woken worker")
    fleet.wait(lambda: not fleet.tasks_left("canary"), "its settlement")


@pytest.mark.parametrize("task", ["job", "threaded"])
def test_late_results_are_void_when_another_worker_took_over(fleet: Fleet, task: str) -> None:
    sleeper = fleet.start(queues=f"{QUEUE},canary", concurrency=10)
    more = {"result": True} if task == "job" else {}
    settled = fleet.enqueue(4, task=task, gate="{n}", **more)
    held = fleet.enqueue(3, gate="{n}{n}", result=True)
    failing = fleet.enqueue(2, gate="{n}", fails=1)
    ids = settled + held + failing
    fleet.wait(lambda: len(fleet.starts()) == len(ids), "all starts")
    sleeper.stop()
    stopped_at = time.monotonic()
    other = fleet.start(concurrency=10)
    fleet.open_gate("2")
    fleet.wait(
        lambda: len([f for f in fleet.starts() if f.pid == other.pid]) == len(ids),
        "the second runs",
        seconds=2 * RECOVERY + 5,
    )
    recovered = time.monotonic() - stopped_at
    fleet.wait(lambda: fleet.number_in("active") == len(held), "settlements")
    pause_sync(max(0.0, STOPPED - (time.monotonic() - stopped_at)), proves="late results stay void")

    def seen() -> dict[str, object]:
        """All of the queue; leases move on while the other worker renews them, owners do not."""
        space = fleet.keyspace()
        for task_id in held:
            task = space[keys.task(QUEUE, task_id)].value
            task["held"] = task["held"].rpartition(":")[0]
        space[keys.lease(QUEUE)].value.update(dict.fromkeys(held, "renewed"))
        return dict(space)

    before = seen()
    fleet.open_gate("11")
    wake(fleet, sleeper, len(ids))
    after = seen()
    void = sleeper.log.count("its outcome here is discarded")
    late = [fact.what for fact in fleet.facts() if fact.pid == sleeper.pid and fact.queue == QUEUE]
    say(
        f"run again {recovered:.1f} s after the stop, stopped for {STOPPED} s; its {len(ids)} handlers ended as "
        f"{sorted(late[len(ids) :])}, {void} settlements void"
    )
    assert after == before
    assert fleet.breaches() == []
    fleet.open_gate("22")
    fleet.wait(lambda: fleet.number_in("active") == 0, "the end")
    for task_id in held + (settled if task == "job" else []):
        assert fleet.field(task_id, "result") == f'"{other.pid}"'
        assert fleet.message(task_id).retried == 1
    assert fleet.counter("failed") == len(ids)
    assert fleet.counter("processed") == 2 * len(ids)
    assert {fact.attempt for fact in fleet.starts() if fact.pid == sleeper.pid and fact.queue == QUEUE} == {1}


class Go:
    """What a Go worker does, by the contract: it neither writes nor clears our fields."""

    def __init__(self, fleet: Fleet) -> None:
        self.redis = fleet.redis

    def recover(self, task_id: str) -> None:
        task = keys.task(QUEUE, task_id)
        message = decode_task(raw(self.redis.hget(task, "msg")))
        message.retried, message.error_msg, message.last_failed_at = 1, LEASE_EXPIRED, int(time.time())
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.lrem(keys.active(QUEUE), 0, task_id)
            pipe.zrem(keys.lease(QUEUE), task_id)
            pipe.zadd(keys.retry(QUEUE), {task_id: int(time.time())})
            pipe.hset(task, mapping={"msg": encode_task(message), "state": "retry"})
            assert pipe.execute()[:2] == [1, 1]

    def forward(self, task_id: str) -> None:
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.lpush(keys.pending(QUEUE), task_id)
            pipe.zrem(keys.retry(QUEUE), task_id)
            pipe.hset(keys.task(QUEUE, task_id), mapping={"state": "pending", "pending_since": time.time_ns()})
            pipe.execute()

    def dequeue(self) -> str:
        task_id = raw(self.redis.rpoplpush(keys.pending(QUEUE), keys.active(QUEUE))).decode()
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.task(QUEUE, task_id), "state", "active")
            pipe.hdel(keys.task(QUEUE, task_id), "pending_since")
            pipe.zadd(keys.lease(QUEUE), {task_id: int(time.time()) + 30})
            pipe.execute()
        return task_id

    def done(self, task_id: str) -> list[int]:
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.lrem(keys.active(QUEUE), 0, task_id)
            pipe.zrem(keys.lease(QUEUE), task_id)
            pipe.delete(keys.task(QUEUE, task_id))
            return list(pipe.execute())


@pytest.mark.parametrize("where", ["retry", "pending", "active"])
def test_late_results_are_void_when_a_go_worker_took_over(fleet: Fleet, where: str) -> None:
    sleeper = fleet.start(queues=f"{QUEUE},canary", concurrency=10)
    fleet.enqueue(2, gate="{n}")
    fleet.enqueue(2, gate="{n}", result=True)
    fleet.enqueue(2, gate="{n}", fails=1)
    fleet.enqueue(2, gate="{n}", task="threaded")
    fleet.wait(lambda: len(fleet.starts()) == 8, "all starts")
    ids = [fact.id for fact in fleet.starts()]
    # It takes nothing new from this queue: its own hands would be a rightful owner.
    fleet.redis.set(keys.paused(QUEUE), 1)
    sleeper.stop()
    ends_at = max(float(end) for end in fleet.keyspace()[keys.lease(QUEUE)].value.values())
    fleet.wait(lambda: time.time() > ends_at + 0.1, "the end of its leases")
    go = Go(fleet)
    for task_id in ids:
        go.recover(task_id)
        if where == "retry":  # due later, so that the woken forwarder leaves it alone
            fleet.redis.zadd(keys.retry(QUEUE), {task_id: int(time.time()) + 300})
            continue
        go.forward(task_id)
        if where == "active":
            go.dequeue()
    assert all(fleet.field(task_id, "held") for task_id in ids)
    assert fleet.number_in(where) == 8
    before = fleet.keyspace()
    wake(fleet, sleeper, 8)
    after = fleet.keyspace()
    void = sleeper.log.count("its outcome here is discarded")
    ends = sorted(fact.what for fact in fleet.facts() if fact.pid == sleeper.pid and fact.id in ids)
    say(f"{where}: handlers ended as {ends[:8]}, {void} settlements void")
    assert after == before
    assert fleet.breaches() == []
    if where == "active":
        assert [go.done(task_id) for task_id in ids] == [[1, 1, 1]] * 8
