"""Retention: deletes completed tasks when their retention ends, and due times when their tasks are no longer
waiting."""

from __future__ import annotations

from collections.abc import Sequence

from veredus.errors import StoreError
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.wire import keys

EXPIRE = load("keep/expire", keys="completed scheduled retry due", args="queue_prefix limit cursor")


class Retention:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._cursors: dict[str, bytes] = {}
        """How far each index of due times has been looked through, where that takes several calls."""

    async def expire(self, queues: Sequence[str], limit: int) -> list[int | StoreError]:
        """Delete up to `limit` expired tasks and as many stale due times per queue; returns how many each had."""
        replies = await self._redis.run_each(
            [
                ScriptCall(
                    EXPIRE,
                    (keys.completed(queue), keys.scheduled(queue), keys.retry(queue), keys.due(queue)),
                    (keys.queue_prefix(queue), limit, self._cursors.pop(queue, b"0")),
                )
                for queue in queues
            ]
        )
        numbers: list[int | StoreError] = []
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, StoreError):
                numbers.append(reply)
                continue
            if isinstance(reply, BaseException):
                raise reply
            number, cursor = reply
            if cursor != b"0":
                self._cursors[queue] = cursor
            numbers.append(number)
        return numbers
