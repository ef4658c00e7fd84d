"""Liveness: which worker processes are subscribed to their channels."""

from __future__ import annotations

from typing import NamedTuple

from veredus.model.absences import Sign
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.connection.wakeups import Subscription
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys

LOOK = load("presence/look", keys="servers checkers judged", args="worker_id may_check")
JUDGE = load("presence/judge", keys="judged", args="worker_id count")


class LivenessReport(NamedTuple):
    """What one look has found."""

    now_ms: int
    subscribers: int
    """Connections that are subscribed to this worker's own channel; -1 if this user may not ask."""
    taken: int
    """Leases that were taken from this worker because it was found dead."""
    signs: dict[str, Sign]
    """Of all workers, this one included; empty unless this worker is to look for dead ones."""


class Liveness:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def subscription(self, worker_id: str, *, probes: float) -> Subscription:
        """A connection that shows that this process lives, on the node that counts. `probes`: seconds between two
        probes by the system of whether the other end still has the connection."""
        return Subscription(self._redis, [keys.alive(worker_id)], _ignore, key=keys.SERVERS, probes=probes)

    async def look(self, worker_id: str, *, may_check: bool) -> LivenessReport:
        names = (keys.SERVERS, keys.CHECKERS, keys.JUDGED)
        now_ms, subscribers, taken, rows = await self._redis.run(LOOK, names, [worker_id, int(may_check)])
        lives = {_worker_of(rows[i]): int(rows[i + 1]) for i in range(0, len(rows), 2)}
        signs: dict[str, Sign] = {}
        if lives:
            channels = [keys.alive(worker) for worker in lives]
            counts = await self._redis.command("PUBSUB", "NUMSUB", *channels, key=keys.SERVERS)
            signs = {worker: Sign(lives[worker], int(counts[2 * i + 1])) for i, worker in enumerate(lives)}
        return LivenessReport(now_ms, subscribers, taken, signs)

    async def leave(self, worker_id: str) -> None:
        """This worker looks for dead ones no more."""
        await self._redis.command("ZREM", keys.CHECKERS, worker_id, key=keys.CHECKERS)

    async def judge(self, worker_id: str, count: int) -> None:
        """Note how many leases were taken from this worker."""
        await self._redis.run(JUDGE, (keys.JUDGED,), [worker_id, count])


def _worker_of(record: bytes) -> str:
    """The worker that has the record with this name."""
    return text(record).rpartition(":")[2].removesuffix("}")


def _ignore(channel: str, data: bytes) -> None:
    """Nothing is sent there."""
