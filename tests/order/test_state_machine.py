"""Any sequence of verbs, ours and Go's, over lanes: always in order, never two at once, and in the end all is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.order.support import Bound, go_archive, go_delete, go_dequeue, go_done, go_retry, go_run
from tests.support.keyspace import breaches, snapshot
from tests.support.servers import RealServer
from veredus.store.store import Store, connect
from veredus.wire import keys

IDS = st.sampled_from([f"t{i}" for i in range(9)])
LANES = st.sampled_from(["a", "b"])
DELAYS = st.sampled_from([1, 250, 1000, 1700])


@dataclass
class Task:
    lane: str
    hold: bool
    state: str = "waiting"
    """waiting (pending, parked, retry or delayed), active, archived."""
    owner: str = ""
    lease_until: int = 0
    by_go: bool = False


class Lanes(RuleBasedStateMachine):
    def __init__(self, server: RealServer) -> None:
        super().__init__()
        server.flush()
        self.runner = asyncio.Runner()
        self.client: Any = redis.asyncio.Redis(unix_socket_path=server.socket)
        self.store: Store = self.run(self._connect(server.url))
        self.run(self.client.sadd(keys.QUEUES, "q"))
        self.q = Bound(self.store.redis, self.client)
        self.tasks: dict[str, Task] = {}
        self.order: dict[str, list[str]] = {"a": [], "b": []}
        """Who stands in each lane, by the law: in order of arrival."""
        self.loose: dict[str, int] = {}
        """Delayed, or run again by Go: not in a lane until we see it."""
        self.number = 0
        self.tidy = True
        """Nobody but us has touched anything."""

    async def _connect(self, url: str) -> Store:
        return Store(connect(url))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            return await awaitable

        return self.runner.run(wrapped())

    # New tasks.

    @rule(
        ids=st.lists(IDS, min_size=1, max_size=3, unique=True), lane=LANES, hold=st.sampled_from([False, False, True])
    )
    def enqueue(self, ids: list[str], lane: str, hold: bool) -> None:
        expected = [int(task_id not in self.tasks) for task_id in ids]
        assert self.run(self.q.line_up(*[(task_id, lane) for task_id in ids], hold=hold)) == expected
        for task_id in [task_id for task_id in ids if task_id not in self.tasks]:
            self.tasks[task_id] = Task(lane, hold)
            self._leave(task_id)
            self.order[lane].append(task_id)

    @rule(task_id=IDS, lane=LANES, delay=DELAYS)
    def schedule(self, task_id: str, lane: str, delay: int) -> None:
        codes = self.run(self.q.line_up((task_id, lane), due=f"+{delay}"))
        assert codes == [int(task_id not in self.tasks)]
        if codes == [1]:
            self.tasks[task_id] = Task(lane, False)
            self._leave(task_id)
            self.loose[task_id] = self.q.now + delay

    @rule(milliseconds=st.sampled_from([1, 250, 1000, 2000, 13_000]))
    def advance(self, milliseconds: int) -> None:
        self.q.now += milliseconds

    @rule()
    def forward(self) -> None:
        due = sorted((at, task_id) for task_id, at in self.loose.items() if 0 < at <= self.q.now)
        self.run(self.q.forward(now=self.q.now))
        for _, task_id in due:
            self._joins(task_id)

    # Work.

    @rule(wanted=st.integers(1, 4))
    def dequeue(self, wanted: int) -> None:
        self.number += 1
        ids, _ = self.run(self.q.dequeue(wanted, number=self.number, now=self.q.now))
        self._see_loose()
        taken: set[str] = set()
        for task_id in ids:
            task = self.tasks[task_id]
            assert self.order[task.lane][0] == task_id, f"{task_id} is not the first of {self.order[task.lane]}"
            assert task.lane not in taken
            taken.add(task.lane)
            others = [one for one in self.order[task.lane] if self.tasks[one].state == "active"]
            assert not [one for one in others if not self.tasks[one].by_go], f"{others} run beside {task_id}"
            task.state, task.owner, task.by_go = "active", f"w:{self.number}", False
            task.lease_until = self.q.now + 12_000

    @rule(
        verb=st.sampled_from(["done", "done", "done", "complete", "retry", "archive", "requeue"]),
        pick=st.integers(0, 9),
    )
    def settle(self, verb: str, pick: int) -> None:
        held = sorted(one for one, task in self.tasks.items() if task.state == "active" and not task.by_go)
        if not held:
            return
        task_id = held[pick % len(held)]
        task = self.tasks[task_id]
        assert self.run(getattr(self.q, verb)((task_id, task.owner), now=self.q.now)) == []
        if verb in ("done", "complete"):
            self._ended(task_id)
            if verb == "complete":
                self.run(self.q.inspector.delete("q", task_id))
        elif verb == "archive":
            self._archived(task_id)
        else:
            task.state = "waiting"

    @rule()
    def recover(self) -> None:
        self.number += 1
        _, claimed, _ = self.run(self.q.recover(f"r:{self.number}", now=self.q.now))
        for task_id, _, _ in claimed:
            assert self.run(self.q.retry((task_id, f"r:{self.number}", b"m", 0), now=self.q.now)) == []
            self.tasks[task_id].state, self.tasks[task_id].by_go = "waiting", False

    @rule()
    def advance_stale_lanes(self) -> None:
        self.run(self.q.advance_stale_lanes())

    # By hand.

    @rule(task_id=IDS, verb=st.sampled_from(["delete", "archive", "cancel"]), go=st.booleans())
    def take_away(self, task_id: str, verb: str, go: bool) -> None:
        task = self.tasks.get(task_id)
        if task is None or task.state == "active" or (task.state == "archived" and verb != "delete"):
            return
        if go:
            self.tidy = False
            self.run((go_delete if verb == "delete" else go_archive)(self.q, task_id))
            verb = "delete" if verb == "delete" else "archive"
        else:
            self.run(getattr(self.q.inspector, verb)("q", task_id))
        if verb == "delete":
            self._ended(task_id)
        else:
            self._archived(task_id)

    @rule(task_id=IDS, go=st.booleans())
    def run_archived(self, task_id: str, go: bool) -> None:
        task = self.tasks.get(task_id)
        if task is None or task.state != "archived":
            return
        if go:
            self.tidy = False
            self.run(go_run(self.q, task_id))
            if task_id not in self.order[task.lane]:
                self._returns(task_id)
        else:
            self.run(self.q.inspector.run("q", task_id))
            if task_id not in self.order[task.lane]:
                self._returns(task_id)
        task.state = "waiting"

    @rule(task_id=IDS)
    def go_runs_a_parked_one(self, task_id: str) -> None:
        if self.run(self.q.states()).get(task_id) == "parked":
            self.tidy = False
            self.run(go_run(self.q, task_id))

    @rule(end=st.sampled_from(["done", "retry", "vanish"]))
    def go_worker(self, end: str) -> None:
        """Takes what is next, whether it is its turn or not, and ends it; or dies with it."""
        task_id = self.run(go_dequeue(self.q))
        if task_id is None:
            return
        self.tidy = False
        task = self.tasks[task_id]
        task.state, task.by_go, task.lease_until = "active", True, self.q.now + 30_000
        if end == "done":
            self.run(go_done(self.q, task_id))
            self._ended(task_id)
        elif end == "retry":
            self.run(go_retry(self.q, task_id, 1))
            task.state = "waiting"
            if task_id in self.loose:
                self.loose[task_id] = -1

    @rule(lane=LANES)
    def release(self, lane: str) -> None:
        released = self.run(self.q.lanes.release("q", lane))
        if released and released in self.order[lane]:
            self.order[lane].remove(released)

    # What must hold.

    @invariant()
    def every_task_is_in_one_place(self) -> None:
        found = breaches(self.run(snapshot(self.client)))
        assert [text for text in found if "lane" not in text or self.tidy] == []

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self.run(self.store.close())
            self.run(self.client.aclose())
            self.runner.close()

    def _drain(self) -> None:
        """Everything goes on by itself once workers work: nothing is stuck."""
        for _ in range(60):
            if not [task for task in self.tasks.values() if task.state != "archived"]:
                break
            self.q.now += 40_000
            self.recover()
            self.forward()
            self.advance_stale_lanes()
            for lane in self.order:
                self.release(lane)
            self.dequeue(4)
            for _ in range(4):
                self.settle("done", 0)
        assert [task for task in self.tasks.values() if task.state != "archived"] == []
        for lane in self.order:
            while self.run(self.q.lanes.release("q", lane)):
                pass
        self.run(self.q.advance_stale_lanes())
        assert not self.run(self.client.keys("*lane*")), self.run(self.q.states())

    # The model.

    def _ended(self, task_id: str) -> None:
        self._leave(task_id)
        del self.tasks[task_id]

    def _archived(self, task_id: str) -> None:
        task = self.tasks[task_id]
        task.state, task.by_go = "archived", False
        self.loose.pop(task_id, None)
        if not task.hold:
            self._leave(task_id)

    def _leave(self, task_id: str) -> None:
        self.loose.pop(task_id, None)
        for lane in self.order.values():
            if task_id in lane:
                lane.remove(task_id)

    def _returns(self, task_id: str) -> None:
        """It has its old place if nobody had noticed that it was gone; else it gets a new one when somebody sees it."""
        lane = self.tasks[task_id].lane
        standing = self.run(self.q.lane(lane))
        if task_id not in standing:
            self.loose[task_id] = -1
            return
        mine = {*self.order[lane], task_id}
        self.order[lane] = [one for one in standing if one in mine]

    def _joins(self, task_id: str) -> None:
        self.loose.pop(task_id)
        self.order[self.tasks[task_id].lane].append(task_id)

    def _see_loose(self) -> None:
        for task_id in list(self.loose):
            if task_id in self.tasks and task_id in self.run(self.q.lane(self.tasks[task_id].lane)):
                self._joins(task_id)


def test_lanes(valkey_server: RealServer) -> None:
    class OnServer(Lanes):
        def __init__(self) -> None:
            super().__init__(valkey_server)

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
