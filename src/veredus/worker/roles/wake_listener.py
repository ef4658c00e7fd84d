"""WakeListener: receives which queue has work while this worker is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from veredus.errors import StoreError
from veredus.process.outage_log import OutageLog
from veredus.store.connection.redis import Redis
from veredus.store.connection.wakeups import Subscription
from veredus.wire import keys
from veredus.worker.role import Role

REVIEW = 5.0
"""Seconds between two checks of which node of a cluster has which queue."""
RETRY_AFTER = 0.5
"""Seconds before the next try of a connection that broke or could not be made."""


class WakeListener(Role):
    """One connection per server node, however many queues there are. A script that wakes a worker learns from its node
    whether anybody listens there, so the connection must be to the node that has the queue."""

    name = "wake-listener"

    def __init__(
        self,
        redis: Redis,
        queues: Sequence[str],
        worker_id: str,
        outages: OutageLog,
        *,
        by_server: Callable[[Sequence[str]], Sequence[Sequence[str]]],
        on_wake: Callable[[str], None],
    ) -> None:
        super().__init__(REVIEW, outages)
        self._redis = redis
        self._queues = list(queues)
        self._worker_id = worker_id
        self._by_server = by_server
        self._on_wake = on_wake
        self._queue_of = {keys.queue_prefix(queue): queue for queue in queues}
        self._channels: dict[str, str] = {}
        self._shares: list[list[str]] = []
        """The queues of each node."""
        self._connections: list[asyncio.Task[None]] = []

    def channel_of(self, queue: str) -> str:
        """Where this worker is woken for this queue; empty while its connection is down."""
        return self._channels.get(queue, "")

    async def step(self) -> bool:
        for connection in self._connections:
            if connection.done():
                await connection  # raises why it has ended: the role is started again
        shares = [list(share) for share in self._by_server(self._queues)]
        if shares != self._shares:
            await self._close()
            self._shares = shares
            self._connections = [asyncio.create_task(self._listen(*one)) for one in enumerate(shares)]
        return False

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._close()

    async def _listen(self, number: int, queues: Sequence[str]) -> None:
        """Be subscribed on the node of these queues, and again whenever the connection has broken."""
        channel, broken = keys.wake_up(self._worker_id, number), asyncio.Event()
        subscription = Subscription(self._redis, [channel], self._receive, key=keys.pending(queues[0]))
        try:
            while True:
                broken.clear()
                try:
                    await subscription.open(on_close=broken.set)
                    self.outages.recovered(("listen", number))
                    self._channels.update(dict.fromkeys(queues, channel))
                    for queue in queues:  # nobody woke this worker until now, and it may be entered nowhere any more
                        self._on_wake(queue)
                    await subscription.stay(broken)
                except StoreError as exc:
                    self.outages.error(
                        ("listen", number), "cannot listen for work; this worker polls every second", exc
                    )
                for queue in queues:
                    self._channels.pop(queue, None)
                await asyncio.sleep(RETRY_AFTER)
        finally:
            subscription.close()

    def _receive(self, channel: str, data: bytes) -> None:
        queue = self._queue_of.get(data.decode(errors="replace"))
        if queue is not None:
            self._on_wake(queue)

    async def _close(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._connections, self._shares = [], []
        self._channels.clear()
