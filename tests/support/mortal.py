"""A worker that a test lets live and die: what it leaves in Redis, without a process."""

from __future__ import annotations

import uuid

from veredus.store.connection.wakeups import Subscription
from veredus.store.store import Store, connect
from veredus.store.tasks.work import Work
from veredus.wire.presence import ServerRecord


class Mortal:
    """It has shown that it lives, and holds the next task of a queue if there is one."""

    def __init__(self, url: str) -> None:
        self.worker_id = str(uuid.uuid4())
        self.tasks: list[str] = []
        self.store = Store(connect(url))
        self._lines: list[Subscription] = []

    async def live(self, queue: str = "default", *, is_subscribed: bool = True) -> None:
        await self.beat(queue)
        if is_subscribed:
            await self.subscribe()
        batch = await Work(self.store.redis, self.worker_id, lease_ms=600_000).dequeue(queue, 1)
        self.tasks = [task_id for task_id, _ in batch.rows]

    async def subscribe(self) -> None:
        line = self.store.liveness.subscription(self.worker_id, probes=1.0)
        await line.open(lambda: None)
        self._lines.append(line)

    async def beat(self, queue: str = "default") -> None:
        record = ServerRecord(
            host="h",
            pid=1,
            server_id=self.worker_id,
            concurrency=1,
            queues={queue: 1},
            strict_priority=False,
            status="active",
            started_at=1.0,
            active_worker_count=1,
        )
        await self.store.presence.beat(record, {})

    async def die(self) -> None:
        """As after kill -9: all connections are closed."""
        for line in self._lines:
            line.close()
        await self.store.close()
