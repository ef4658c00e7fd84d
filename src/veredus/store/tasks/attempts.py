"""The attempts of a task, as their records in its hash tell them."""

from __future__ import annotations

from veredus.model.attempts import AttemptInfo, with_gaps
from veredus.store.connection.redis import Redis
from veredus.store.inspect.inspect_part import data
from veredus.wire import keys
from veredus.wire.attempts import FIELDS, decode_attempts
from veredus.wire.messages import UndecodableMessage, decode_task


class Attempts:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def of(self, queue: str, task_id: str) -> list[AttemptInfo] | None:
        """The last attempts that have ended, the first one first; None if there is no such task."""
        key = data(keys.task(queue, task_id))
        values = await self._redis.command("HMGET", key, "msg", *FIELDS, key=keys.task(queue, task_id))
        if values[0] is None:
            return None
        total, records = decode_attempts(values[1:])
        try:
            message = decode_task(values[0])
        except UndecodableMessage:
            return records
        ended = max(message.last_failed_at, message.completed_at)
        return with_gaps(records, total=total, retried=message.retried, ended_at=ended)
