"""The waiting room: what is due goes to pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import StoreError
from veredus.store.cluster import Cluster
from veredus.store.places import text
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load
from veredus.wire import keys

FORWARD = load(
    "task/forward",
    keys="scheduled retry due pending groups",
    args="task_prefix group_prefix limit [now_ms]",
)
LIMIT = 500


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What one look at a queue brought."""

    moved: int
    wait: float | None
    """Seconds until the next one is due; None when nothing waits."""
    dropped: list[tuple[str, str]]


class Delays:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    @property
    def one_server(self) -> bool:
        return not isinstance(self._redis, Cluster)

    async def forward(self, queues: Sequence[str]) -> list[Forwarded | StoreError]:
        """One look at each queue, in one round trip per server."""
        replies = await self._redis.run_each([self._call(queue) for queue in queues])
        return [_forwarded(reply) for reply in replies]

    def by_server(self, queues: Sequence[str]) -> list[list[str]]:
        """The queues of one server together, as far as known: a server that hangs shall hold up only its own."""
        if not isinstance(self._redis, Cluster):
            return [list(queues)]
        shares = self._redis.known_shares([keys.scheduled(queue) for queue in queues])
        return [[queues[position] for position in share] for share in shares]

    def _call(self, queue: str) -> Call:
        names = (
            keys.scheduled(queue),
            keys.retry(queue),
            keys.due(queue),
            keys.pending(queue),
            keys.groups(queue),
        )
        return Call(FORWARD, names, (keys.task_prefix(queue), keys.group_prefix(queue), LIMIT))


def _forwarded(reply: Any) -> Forwarded | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    moved, next_due, now, dropped, beyond = reply
    wait = None if next_due < 0 else max(0.0, (next_due - now) / 1000 - beyond / 1e6)
    return Forwarded(moved, wait, [(text(dropped[i]), text(dropped[i + 1])) for i in range(0, len(dropped), 2)])
