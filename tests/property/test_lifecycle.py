"""Any sequence of verbs by right and wrong owners: no task is ever lost, doubled or settled by a stranger."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.keyspace import breaches, snapshot
from tests.support.queue import LEASE_MS, NOW, Queue
from tests.support.servers import RealServer
from veredus.store.store import Store, connect
from veredus.wire import keys

CLAIM_MS, SLACK_MS, RETENTION = 5000, 30_000, 20
IDS = st.sampled_from([f"t{i}" for i in range(8)])
WORKERS = st.sampled_from(["w0", "w1", "w2"])
SETTLERS = st.sampled_from(["right", "right", "right", "other worker", "other batch", "nobody"])
DELAYS = st.sampled_from([0, 1, 250, 749, 750, 751, 1000, 1700, 30_000])


@dataclass
class Task:
    """What the model knows of one task."""

    state: str
    due: int = 0
    owner: str = ""
    until: int = 0
    lease: int = 0
    expires: int = 0
    losses: int = 0


class Lifecycle(RuleBasedStateMachine):
    def __init__(self, server: RealServer) -> None:
        super().__init__()
        server.flush()
        self.runner = asyncio.Runner()
        self.client: Any = redis.asyncio.Redis(unix_socket_path=server.socket)
        self.store: Store = self.run(self._connect(server.url))
        self.q = Queue(self.store.redis, self.client)
        self.now = NOW
        self.tasks: dict[str, Task] = {}
        self.pending: list[str] = []
        self.numbers = {"w0": 0, "w1": 0, "w2": 0}
        self.remembered = {"w0": 0, "w1": 0, "w2": 0}
        self.sweeps = 0

    async def _connect(self, url: str) -> Store:
        return Store(connect(url))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            return await awaitable

        return self.runner.run(wrapped())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.run(self.client.aclose())
        self.runner.close()

    @initialize()
    def register(self) -> None:
        self.run(self.client.sadd(keys.QUEUES, "q"))

    # New tasks.

    @rule(ids=st.lists(IDS, min_size=1, max_size=4))
    def enqueue(self, ids: list[str]) -> None:
        expected = []
        for task_id in ids:
            expected.append(int(task_id not in self.tasks))
            if task_id not in self.tasks:
                self.tasks[task_id] = Task("pending")
                self.pending.append(task_id)
        assert self.run(self.q.enqueue(*ids, now=self.now)) == expected

    @rule(rows=st.lists(st.tuples(IDS, DELAYS), min_size=1, max_size=3))
    def schedule(self, rows: list[tuple[str, int]]) -> None:
        expected = []
        for task_id, delay in rows:
            expected.append(int(task_id not in self.tasks))
            if task_id not in self.tasks:
                self.tasks[task_id] = Task("scheduled", due=self.now + delay)
        given = [(task_id, f"+{delay}") for task_id, delay in rows]
        assert self.run(self.q.schedule(*given, now=self.now)) == expected

    # Time and what comes with it.

    @rule(milliseconds=st.sampled_from([1, 249, 250, 999, 1000, 4000, 13_000, 31_000]))
    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule(limit=st.sampled_from([1, 2, 100]))
    def forward(self, limit: int) -> None:
        waiting = [task_id for task_id, task in self.tasks.items() if task.state in ("scheduled", "retry")]
        ready = sorted(
            (task_id for task_id in waiting if self.tasks[task_id].due <= self.now),
            key=lambda task_id: (self.tasks[task_id].due, task_id),
        )[:limit]
        for task_id in ready:
            self.tasks[task_id].state = "pending"
            self.pending.append(task_id)
        left = [self.tasks[task_id].due for task_id in waiting if task_id not in ready]
        assert self.run(self.q.forward(limit=limit, now=self.now)) == (len(ready), min(left, default=-1), self.now, [])

    @rule()
    def expire(self) -> None:
        ended = [
            task_id
            for task_id, task in self.tasks.items()
            if task.state == "completed" and task.expires <= self.now // 1000
        ]
        for task_id in ended:
            del self.tasks[task_id]
        assert self.run(self.q.expire(now=self.now)) == len(ended)

    # Work.

    @rule(worker=WORKERS, wanted=st.integers(1, 3))
    def dequeue(self, worker: str, wanted: int) -> None:
        self.numbers[worker] += 1
        number = self.numbers[worker]
        taken = self._take(worker, wanted)
        ids, reply = self.run(self.q.dequeue(wanted, worker=worker, number=number, now=self.now))
        assert ids == taken
        assert reply[2] == len(self.pending)
        if taken:
            self.remembered[worker] = number

    @rule(worker=WORKERS, wanted=st.integers(1, 3))
    def dequeue_again(self, worker: str, wanted: int) -> None:
        """As after a lost reply: the same number once more."""
        number = self.numbers[worker]
        if self.remembered[worker] >= number:
            taken = [task_id for task_id in self.tasks if self._holds(task_id, f"{worker}:{number}")]
            for task_id in taken:
                task = self.tasks[task_id]
                task.until = task.lease = self._lease_end(LEASE_MS)
        else:
            taken = self._take(worker, wanted)
            self.remembered[worker] = number
        ids, _ = self.run(self.q.dequeue(wanted, worker=worker, number=number, again=1, now=self.now))
        assert sorted(ids) == sorted(taken)

    @rule(task_id=IDS)
    def go_takes_the_lease(self, task_id: str) -> None:
        """A Go worker runs the task now; our fields stay in the hash."""
        task = self.tasks.get(task_id)
        if task and task.state == "active":
            task.lease = self.now // 1000 + 30
            self.run(self.client.zadd(self.q.key("lease"), {task_id: task.lease}))

    @rule(task_id=IDS, settler=SETTLERS)
    def done(self, task_id: str, settler: str) -> None:
        owner, held = self._settle(task_id, settler)
        assert self.run(self.q.done((task_id, owner), now=self.now)) == ([] if held else [1])
        if held:
            del self.tasks[task_id]

    @rule(task_id=IDS, settler=SETTLERS)
    def complete(self, task_id: str, settler: str) -> None:
        owner, held = self._settle(task_id, settler)
        row = (task_id, owner, "", b"new", RETENTION)
        assert self.run(self.q.complete(row, now=self.now)) == ([] if held else [1])
        if held:
            losses = self.tasks[task_id].losses
            self.tasks[task_id] = Task("completed", expires=self.now // 1000 + RETENTION, losses=losses)

    @rule(task_id=IDS, settler=SETTLERS, delay=DELAYS)
    def retry(self, task_id: str, settler: str, delay: int) -> None:
        owner, held = self._settle(task_id, settler)
        assert self.run(self.q.retry((task_id, owner, b"new", delay, 1), now=self.now)) == ([] if held else [1])
        if held:
            self.tasks[task_id] = Task("retry", due=self.now + delay, losses=self.tasks[task_id].losses)

    @rule(task_id=IDS, settler=SETTLERS)
    def archive(self, task_id: str, settler: str) -> None:
        owner, held = self._settle(task_id, settler)
        assert self.run(self.q.archive((task_id, owner), now=self.now)) == ([] if held else [1])
        if held:
            self.tasks[task_id] = Task("archived", losses=self.tasks[task_id].losses)

    @rule(task_id=IDS, settler=SETTLERS)
    def requeue(self, task_id: str, settler: str) -> None:
        owner, held = self._settle(task_id, settler)
        assert self.run(self.q.requeue((task_id, owner), now=self.now)) == ([] if held else [1])
        if held:
            self.tasks[task_id] = Task("pending", losses=self.tasks[task_id].losses)
            self.pending.insert(0, task_id)

    @rule(task_id=IDS, settler=SETTLERS, lease_ms=st.sampled_from([1, 3500, LEASE_MS]))
    def extend(self, task_id: str, settler: str, lease_ms: int) -> None:
        owner, held = self._settle(task_id, settler)
        assert self.run(self.q.extend((task_id, owner, lease_ms), now=self.now)) == ([] if held else [1])
        if held:
            task = self.tasks[task_id]
            task.until = task.lease = self._lease_end(lease_ms)

    @rule(limit=st.sampled_from([1, 100]))
    def recover(self, limit: int) -> None:
        self.sweeps += 1
        owner = f"r:{self.sweeps}"
        over = sorted(
            (task.lease, task_id)
            for task_id, task in self.tasks.items()
            if task.state == "active"
            and task.lease <= self.now // 1000
            and (task.until == task.lease or task.lease * 1000 + SLACK_MS <= self.now)
        )[:limit]
        expected = []
        for _, task_id in over:
            task = self.tasks[task_id]
            task.owner, task.losses = owner, task.losses + 1
            task.until = task.lease = self._lease_end(CLAIM_MS)
            expected.append((task_id, task.losses))
        swept, claimed, tidied = self.run(self.q.recover(owner, limit=limit, claim_ms=CLAIM_MS, now=self.now))
        assert (swept, tidied) == (True, [])
        assert [(task_id, losses) for task_id, _, losses in claimed] == expected

    # What must hold after every step.

    @invariant()
    def everything_is_where_the_model_says(self) -> None:
        space = self.run(snapshot(self.client))
        if keys.QUEUES not in space:
            return
        assert breaches(space) == []
        q = self.q

        def scores(name: str) -> dict[str, int]:
            key = space.get(q.key(name))
            return {task_id: int(score) for task_id, score in key.value.items()} if key else {}

        def of(*states: str) -> dict[str, Task]:
            return {task_id: task for task_id, task in self.tasks.items() if task.state in states}

        waiting = space.get(q.key("pending"))
        assert (waiting.value[::-1] if waiting else []) == self.pending
        assert scores("lease") == {task_id: task.lease for task_id, task in of("active").items()}
        assert scores("due") == {task_id: task.due for task_id, task in of("scheduled", "retry").items()}
        for state in ("scheduled", "retry"):
            assert scores(state) == {task_id: math.ceil(task.due / 1000) for task_id, task in of(state).items()}
        assert scores("completed") == {task_id: task.expires for task_id, task in of("completed").items()}
        assert scores("archived").keys() == of("archived").keys()
        for task_id, task in self.tasks.items():
            fields = space[q.task(task_id)].value
            assert fields["state"] == task.state
            assert int(fields.get("losses", 0)) == task.losses
            owner, _, until = fields.get("held", ":0").rpartition(":")
            assert (owner, int(until)) == (task.owner, task.until)
            assert ("pending_since" in fields) == (task.state == "pending")
        assert {name for name in space if name.startswith(q.prefix)} == {q.task(task_id) for task_id in self.tasks}

    def _lease_end(self, milliseconds: int) -> int:
        return math.ceil((self.now + milliseconds) / 1000)

    def _holds(self, task_id: str, owner: str) -> bool:
        task = self.tasks.get(task_id)
        return task is not None and task.state == "active" and task.owner == owner and task.until == task.lease

    def _take(self, worker: str, wanted: int) -> list[str]:
        taken, self.pending = self.pending[:wanted], self.pending[wanted:]
        for task_id in taken:
            end = self._lease_end(LEASE_MS)
            losses = self.tasks[task_id].losses
            owner = f"{worker}:{self.numbers[worker]}"
            self.tasks[task_id] = Task("active", owner=owner, until=end, lease=end, losses=losses)
        return taken

    def _settle(self, task_id: str, settler: str) -> tuple[str, bool]:
        """The owner who tries, and whether that is the one who holds the task."""
        task = self.tasks.get(task_id)
        current = task.owner if task else ""
        if settler == "right":
            owner = current or "w0:1"
        elif settler == "nobody":
            owner = ""
        elif settler == "other worker":
            owner = "stranger:" + current.rpartition(":")[2]
        else:
            owner = current + "0" if current else "w0:10"
        return owner, self._holds(task_id, owner)


def test_lifecycle(valkey_server: RealServer) -> None:
    class OnServer(Lifecycle):
        def __init__(self) -> None:
            super().__init__(valkey_server)

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
