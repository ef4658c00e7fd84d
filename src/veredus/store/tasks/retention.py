"""Retention: deletes completed tasks when their retention ends, and due times when their tasks are no longer
waiting."""

from __future__ import annotations

from collections.abc import Sequence

from veredus.errors import StoreError
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.wire import keys

EXPIRE = load("keep/expire", keys="completed scheduled retry due", args="queue_prefix limit")


class Retention:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def expire(self, queues: Sequence[str], limit: int) -> list[int | StoreError]:
        """Delete up to `limit` expired tasks and as many stale due times per queue; returns how many each had."""
        replies = await self._redis.run_each(
            [
                ScriptCall(
                    EXPIRE,
                    (keys.completed(queue), keys.scheduled(queue), keys.retry(queue), keys.due(queue)),
                    (keys.queue_prefix(queue), limit),
                )
                for queue in queues
            ]
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies
