"""FollowRelayer: notifies clients of the gateway about the tasks that they follow."""

from __future__ import annotations

from collections.abc import Sequence

from veredus.client.follow_relay import FollowRelay
from veredus.client.notifier import Notifier
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.worker.role import WokenRole


class FollowRelayer(WokenRole):
    """Sleeps until it is woken. Also runs at an interval, because a wake-up may be lost."""

    name = "follow-relayer"
    last_step_fails = "followers may be notified late"

    def __init__(self, store: Store, queues: Sequence[str], interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._queues = list(queues)
        self._relay = FollowRelay(store, Notifier(store))

    async def step(self) -> None:
        await self._relay.pass_on(self._queues)
