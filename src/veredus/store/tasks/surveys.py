"""Which of many queues a sweep has to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from veredus.errors import StoreError
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.wire import keys


class QueueRow(NamedTuple):
    queue_prefix: str


SURVEY = load("keep/survey", keys="queues", args="sought", rows=QueueRow)
FEW = 32
"""Up to this many queues are swept without a survey, which would cost more than it saves."""
PORTION = 500
"""Queues of one call: some 200 microseconds of the server."""

Sought = Literal["leases", "due", "kept"]


class Survey(NamedTuple):
    """The queues that have something, and the server's time in ms; 0 if no server was asked."""

    queues: list[str]
    now_ms: int = 0


class Surveys:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def survey(self, sought: Sought, queues: Sequence[str]) -> Survey:
        """Those of the queues that have what a sweep looks for. All of them if they are few, on a cluster (where each
        has its own slot), and if the server does not answer."""
        if len(queues) <= FEW or isinstance(self._redis, Cluster):
            return Survey(list(queues))
        parts = [queues[at : at + PORTION] for at in range(0, len(queues), PORTION)]
        calls = [
            ScriptCall(SURVEY, (keys.QUEUES,), SURVEY.args((sought,), [QueueRow(keys.queue_prefix(q)) for q in part]))
            for part in parts
        ]
        found: list[str] = []
        now_ms = 0
        for part, reply in zip(parts, await self._redis.run_each(calls), strict=True):
            if isinstance(reply, StoreError):
                return Survey(list(queues))
            now_ms = reply[0]
            found += [part[position - 1] for position in reply[1]]
        return Survey(found, now_ms)
