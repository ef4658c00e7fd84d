"""Delayed tasks: makes those that are due pending."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import StoreError
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.store.tasks.surveys import Surveys
from veredus.wire import keys

FORWARD = load(
    "task/forward",
    keys="scheduled retry due pending groups",
    args="queue_prefix limit pause_ms forwarder",
)
LIMIT = 200
"""Tasks that one call moves, in one or two milliseconds of the server."""
PAUSE_MS = 3
"""Milliseconds before the next portion if more are due than that."""


@dataclass(frozen=True, slots=True)
class ForwardReply:
    """The result of one check of a queue."""

    moved: int
    wait: float | None
    """Seconds until the next task is due; None if none waits."""
    dropped: list[tuple[str, str]]


class Delays:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._surveys = Surveys(redis)
        self._forwarder = secrets.token_hex(4)

    @property
    def one_server(self) -> bool:
        return not isinstance(self._redis, Cluster)

    async def find_waiting(self, queues: Sequence[str]) -> list[str]:
        """Those in which anything waits for its time."""
        return (await self._surveys.survey("due", queues)).queues

    async def forward(self, queues: Sequence[str]) -> list[ForwardReply | StoreError]:
        """Check each queue once, in one round trip per server."""
        replies = await self._redis.run_each([self._call(queue) for queue in queues])
        return [_forwarded(reply) for reply in replies]

    def by_server(self, queues: Sequence[str]) -> list[list[str]]:
        """Groups the queues of a server, as far as known: a server that hangs delays only its own."""
        if not isinstance(self._redis, Cluster):
            return [list(queues)]
        shares = self._redis.known_shares([keys.scheduled(queue) for queue in queues])
        return [[queues[position] for position in share] for share in shares]

    def _call(self, queue: str) -> ScriptCall:
        names = (
            keys.scheduled(queue),
            keys.retry(queue),
            keys.due(queue),
            keys.pending(queue),
            keys.groups(queue),
        )
        return ScriptCall(FORWARD, names, (keys.queue_prefix(queue), LIMIT, PAUSE_MS, self._forwarder))


def _forwarded(reply: Any) -> ForwardReply | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    moved, next_due, now, dropped, beyond = reply
    wait = None if next_due < 0 else max(0.0, (next_due - now) / 1000 - beyond / 1e6)
    return ForwardReply(moved, wait, [(text(dropped[i]), text(dropped[i + 1])) for i in range(0, len(dropped), 2)])
