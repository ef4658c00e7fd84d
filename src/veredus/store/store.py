"""All parts of the store over one Redis."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from veredus.clock import ServerClock
from veredus.errors import ServerFull, StoreError
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.store.address import Address, parse_url
from veredus.store.cancels import Cancels
from veredus.store.cluster import Cluster
from veredus.store.delays import Delays
from veredus.store.durable import Durable, DurableTasks
from veredus.store.groups import Groups
from veredus.store.intake import Intake
from veredus.store.lanes import Lanes
from veredus.store.leases import Leases
from veredus.store.limits import LimitDesk
from veredus.store.nodes import Nodes
from veredus.store.outbox import Outbox
from veredus.store.partitions import Partitions
from veredus.store.places import text
from veredus.store.presence import Presence
from veredus.store.redis import Redis, single
from veredus.store.results import Results
from veredus.store.retention import Retention
from veredus.store.sessions import Sessions
from veredus.store.wakeups import Subscription, Watch
from veredus.store.work import Work
from veredus.wire import keys

LARGEST_VALUE = 512 * 1024 * 1024
"""Bytes of one value, by default (proto-max-bulk-len)."""

__all__ = ["Store", "Subscription", "Watch", "Work", "connect"]


def connect(address: Address | str, *, timeout: float = 5.0, name: str = "veredus") -> Redis:
    """A Redis that connects at the first call."""
    if isinstance(address, str):
        address = parse_url(address)
    if address.kind == "cluster":
        return Cluster(address, timeout, name)
    return single(address, timeout, name)


class Store:
    """The parts that need no identity. `work` makes the part that belongs to one worker."""

    def __init__(self, redis: Redis, *, patience: float = 5.0, archive: ArchiveLimits = ASYNQS) -> None:
        self.redis = redis
        self.patience = patience
        """Seconds for which a write is tried again while the server refuses or is away."""
        self.intake = Intake(redis, patience=patience)
        self.delays = Delays(redis)
        self.groups = Groups(redis)
        self.leases = Leases(redis)
        self.lanes = Lanes(redis)
        self.limits = LimitDesk(redis)
        self.retention = Retention(redis)
        self.presence = Presence(redis)
        self.results = Results(redis)
        self.cancels = Cancels(redis, archive=archive)
        partitions = Partitions(redis)
        self.sessions = Sessions(redis, partitions)
        self.outbox = Outbox(redis, partitions)
        self.nodes = Nodes(redis)
        self.archive = archive
        self._durable: dict[str, tuple[Durable, Intake]] = {}

    def intake_with(self, durability: str) -> Intake:
        """The desk whose tasks are answered for once they are as safe as that."""
        if durability == "any":
            return self.intake
        if durability not in self._durable:
            durable = DurableTasks(self.redis, durability, within=self.patience)
            self._durable[durability] = durable, Intake(durable, patience=self.patience)
        return self._durable[durability][1]

    async def queues(self) -> list[str]:
        """Every queue that was ever used or served."""
        found = await self.redis.command("SMEMBERS", keys.QUEUES, key=keys.QUEUES)
        return sorted(text(name) for name in found)

    async def register(self, queues: Sequence[str]) -> None:
        """Note that these queues are in use. A full server takes no note, but knows each queue that has tasks."""
        with contextlib.suppress(ServerFull):
            await self.redis.command("SADD", keys.QUEUES, *queues, key=keys.QUEUES)

    async def largest_value(self) -> int:
        """Bytes that the server takes as one value; its default where it does not say."""
        try:
            found = await self.redis.command("CONFIG", "GET", "proto-max-bulk-len", key="")
            return int(found[1]) if len(found) == 2 else LARGEST_VALUE
        except StoreError:
            return LARGEST_VALUE  # not everybody may read the configuration, and nobody needs it to start

    async def ping(self) -> None:
        await self.redis.command("PING", key="")

    async def server_time_ms(self) -> int:
        seconds, micros = await self.redis.command("TIME", key="")
        return int(seconds) * 1000 + int(micros) // 1000

    async def set_clock(self, clock: ServerClock) -> None:
        """Set a clock by the server's."""
        before = time.monotonic()
        clock.observe(await self.server_time_ms() / 1000 + 0.0005, before, time.monotonic())

    async def close(self) -> None:
        for durable, _ in self._durable.values():
            await durable.close()
        await self.redis.close()
