"""All parts of the store over one Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from veredus.clock import ServerClock
from veredus.errors import NotReady, ServerFull, StoreError
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.store.connection.address import Address, parse_url
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.connection import Connection
from veredus.store.connection.redis import Redis, SingleServer, single
from veredus.store.connection.replication import ReplicatedTasks, Replication
from veredus.store.connection.wakeups import Subscription, Watch
from veredus.store.inspect.inspect_part import text
from veredus.store.sessions.gateway_nodes import GatewayNodes
from veredus.store.sessions.outbox import Outbox
from veredus.store.sessions.session_partitions import SessionPartitions
from veredus.store.sessions.sessions import Sessions
from veredus.store.tasks.cancels import Cancels
from veredus.store.tasks.children import Children
from veredus.store.tasks.delays import Delays
from veredus.store.tasks.emitted import Emitted
from veredus.store.tasks.groups import Groups
from veredus.store.tasks.intake import Intake
from veredus.store.tasks.leases import Leases
from veredus.store.tasks.limits import LimitStore
from veredus.store.tasks.liveness import Liveness
from veredus.store.tasks.order_keys import OrderKeys
from veredus.store.tasks.orphans import Orphans
from veredus.store.tasks.results import Results
from veredus.store.tasks.retention import Retention
from veredus.store.tasks.runs import DurableRuns
from veredus.store.tasks.surveys import Surveys
from veredus.store.tasks.work import Work
from veredus.store.tasks.worker_records import WorkerRecords
from veredus.wire import keys

logger = logging.getLogger("veredus.store")

T = TypeVar("T")

LOADING_PATIENCE = 60.0
"""Seconds to wait at the start for a server that is not ready."""
LARGEST_VALUE = 512 * 1024 * 1024
"""Bytes of one value, by default (proto-max-bulk-len)."""
CLOCK_READS, EXACT = 3, 0.005
"""How often the server's clock is read at most, until an answer took less than these seconds."""

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

    def __init__(
        self,
        redis: Redis,
        *,
        patience: float = 5.0,
        archive: ArchiveLimits = ASYNQS,
        max_lengths: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.redis = redis
        self.patience = patience
        """Seconds for which a write is retried while the server refuses it or is unavailable."""
        self.intake = Intake(redis, patience=patience, max_lengths=max_lengths)
        self._max_lengths = max_lengths
        self.surveys = Surveys(redis)
        self.delays = Delays(redis)
        self.groups = Groups(redis)
        self.leases = Leases(redis)
        self.lanes = OrderKeys(redis)
        self.limits = LimitStore(redis)
        self.retention = Retention(redis)
        self.presence = WorkerRecords(redis)
        self.liveness = Liveness(redis)
        self.results = Results(redis)
        self.runs = DurableRuns(redis)
        self.emitted = Emitted(redis)
        self.children = Children(redis, self.intake, self.results)
        self.cancels = Cancels(redis, archive=archive)
        self.orphans = Orphans(redis, self.cancels)
        partitions = SessionPartitions(redis)
        self.sessions = Sessions(redis, partitions)
        self.outbox = Outbox(redis, partitions)
        self.nodes = GatewayNodes(redis)
        self.archive = archive
        self._durable: dict[str, tuple[Replication, Intake]] = {}

    def at_hand(self) -> Connection | None:
        """The connection that a call would use now, if there is only one server and a thread can read from it."""
        return self.redis.at_hand() if isinstance(self.redis, SingleServer) else None

    def intake_with(self, durability: str) -> Intake:
        """The intake whose calls return once the tasks are as safe as that."""
        if durability == "any":
            return self.intake
        if durability not in self._durable:
            durable = ReplicatedTasks(self.redis, durability, within=self.patience)
            self._durable[durability] = durable, Intake(durable, patience=self.patience, max_lengths=self._max_lengths)
        return self._durable[durability][1]

    async def queues(self) -> list[str]:
        """Every queue that was ever used or served."""
        found = await self.redis.command("SMEMBERS", keys.QUEUES, key=keys.QUEUES)
        return sorted(text(name) for name in found)

    async def register(self, queues: Sequence[str]) -> None:
        """Record that these queues are in use. A full server records nothing, but knows each queue that has tasks."""
        with contextlib.suppress(ServerFull):
            await self.redis.command("SADD", keys.QUEUES, *queues, key=keys.QUEUES)

    async def largest_value(self) -> int:
        """The maximum bytes of one value; the default if the server does not say."""
        try:
            found = await self.redis.command("CONFIG", "GET", "proto-max-bulk-len", key="")
            return int(found[1]) if len(found) == 2 else LARGEST_VALUE
        except StoreError:
            return LARGEST_VALUE  # not every user may read the configuration, and starting does not require it

    async def ping(self) -> None:
        await self.redis.command("PING", key="")

    async def server_time_ms(self) -> int:
        seconds, micros = await self.redis.command("TIME", key="")
        return int(seconds) * 1000 + int(micros) // 1000

    async def set_clock(self, clock: ServerClock) -> None:
        """Set a clock by the server's. A slow answer says little, so it asks again."""
        for _ in range(CLOCK_READS):
            before = time.monotonic()
            server_ms = await self.server_time_ms()
            after = time.monotonic()
            clock.observe(server_ms / 1000 + 0.0005, before, after)
            if after - before < EXACT:
                return

    async def close(self) -> None:
        for durable, _ in self._durable.values():
            await durable.close()
        await self.redis.close()


async def when_ready(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call at startup. It is repeated while the server is loading its data or refuses all calls."""
    give_up, told = time.monotonic() + LOADING_PATIENCE, ""
    while True:
        try:
            return await call()
        except NotReady as exc:
            if time.monotonic() > give_up:
                raise
            if str(exc) != told:
                told = str(exc)
                logger.warning("the server is not ready yet: %s", exc)
            await asyncio.sleep(1.0)


async def warn_of_eviction(store: Store) -> None:
    """A server that evicts keys when its memory is full loses tasks. Not every user may read the configuration."""
    with contextlib.suppress(StoreError):
        policy = await store.redis.command("CONFIG", "GET", "maxmemory-policy", key="")
        if len(policy) == 2 and policy[1] != b"noeviction":
            logger.warning("maxmemory-policy is %s: the server may evict tasks; set noeviction", policy[1].decode())
