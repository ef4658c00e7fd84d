"""Any sequence of changes by hand, between what workers do: the invariant holds after each, and the doctor agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.inspector.support import Bench
from tests.support.keyspace import check_invariant
from tests.support.queue import NOW
from tests.support.servers import RealServer
from veredus.errors import TaskError
from veredus.inspector.search import Query
from veredus.store.store import Store, connect
from veredus.wire import keys

IDS = st.sampled_from([f"t{n}" for n in range(6)])
QUEUES = st.sampled_from(["q", "r"])
STATES = st.sampled_from(["scheduled", "retry", "archived", "completed", "aggregating"])
TYPES = st.sampled_from(["t", "u"])


class ByHand(RuleBasedStateMachine):
    def __init__(self, server: RealServer) -> None:
        super().__init__()
        server.flush()
        self.runner = asyncio.Runner()
        self.client: Any = redis.asyncio.Redis(unix_socket_path=server.socket)
        self.store: Store = self.run(self._connect(server.url))
        self.benches = {name: Bench(self.store.redis, self.client, name) for name in ("q", "r")}
        self.inspector = self.benches["q"].inspector
        self.number = 0

    async def _connect(self, url: str) -> Store:
        return Store(connect(url))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            return await awaitable

        return self.runner.run(wrapped())

    def attempt(self, awaitable: Awaitable[Any]) -> None:
        """Refusals are part of the game."""
        try:
            self.run(awaitable)
        except TaskError:
            pass

    def teardown(self) -> None:
        self.run(self.store.close())
        self.run(self.client.aclose())
        self.runner.close()

    @initialize()
    def register(self) -> None:
        self.run(self.client.sadd(keys.QUEUES, "q", "r"))

    # What producers and workers do.

    @rule(queue=QUEUES, task_id=IDS, unique=st.booleans(), kind=TYPES)
    def enqueue(self, queue: str, task_id: str, unique: bool, kind: str) -> None:
        bench = self.benches[queue]
        lock = keys.unique(queue, kind, b"1") if unique else ""
        data = bench.message(task_id, payload=b"1", type=kind, unique_key=lock)
        self.run(bench.enqueue((task_id, data, lock, 600 if lock else 0)))

    @rule(queue=QUEUES, task_id=IDS)
    def schedule(self, queue: str, task_id: str) -> None:
        bench = self.benches[queue]
        self.run(bench.schedule((task_id, "+1500", bench.message(task_id))))

    @rule(queue=QUEUES, task_id=IDS)
    def join(self, queue: str, task_id: str) -> None:
        if not self.run(self.client.exists(self.benches[queue].task(task_id))):
            self.run(self.benches[queue].join("g", task_id))

    @rule(queue=QUEUES, end=st.sampled_from(["retry", "archive", "complete", "stay"]))
    def work(self, queue: str, end: str) -> None:
        bench = self.benches[queue]
        self.number += 1
        taken, _ = self.run(bench.dequeue(number=self.number))
        owner = f"w:{self.number}"
        for one in taken:
            if end == "retry":
                self.run(bench.retry((one, owner, bench.message(one))))
            elif end == "archive":
                self.run(bench.archive((one, owner, "", bench.message(one))))
            elif end == "complete":
                self.run(bench.complete((one, owner, "", bench.message(one))))

    @rule(queue=QUEUES, later=st.sampled_from([0, 2000]))
    def forward(self, queue: str, later: int) -> None:
        self.run(self.benches[queue].forward(now=NOW + later))

    # What people do.

    @rule(
        queue=QUEUES, task_id=IDS, verb=st.sampled_from(["run", "front", "archive", "delete", "edit", "later", "move"])
    )
    def change(self, queue: str, task_id: str, verb: str) -> None:
        inspector = self.inspector
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "run": lambda: inspector.run(queue, task_id),
            "front": lambda: inspector.run(queue, task_id, front=True),
            "archive": lambda: inspector.archive(queue, task_id),
            "delete": lambda: inspector.delete(queue, task_id),
            "edit": lambda: inspector.edit_payload(queue, task_id, b"2"),
            "later": lambda: inspector.reschedule(queue, task_id, delay=0.7),
            "move": lambda: inspector.move(queue, task_id, "r" if queue == "q" else "q"),
        }
        self.attempt(calls[verb]())

    @rule(queue=QUEUES, state=STATES, verb=st.sampled_from(["run_all", "delete_all"]), where=st.booleans())
    def change_all(self, queue: str, state: str, verb: str, where: bool) -> None:
        self.run(getattr(self.inspector, verb)(queue, state, where=Query(type="u") if where else None))

    @rule(queue=QUEUES, state=st.sampled_from(["pending", "scheduled", "aggregating"]))
    def archive_all(self, queue: str, state: str) -> None:
        self.run(self.inspector.archive_all(queue, state))

    @invariant()
    def all_is_well(self) -> None:
        assert self.run(check_invariant(self.client)) == []
        found = self.run(self.inspector.doctor.diagnose(server=False))
        assert found == []


def test_after_any_changes_the_invariant_holds(valkey_server: RealServer) -> None:
    class OnServer(ByHand):
        def __init__(self) -> None:
            super().__init__(valkey_server)

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
