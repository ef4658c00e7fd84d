"""Pauses: a paused queue takes tasks in but hands none out, to our workers and to Go's alike."""

from __future__ import annotations

from veredus.store.redis import Redis
from veredus.wire import keys


class Pauses:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def pause(self, queue: str) -> bool:
        """False if it was paused already."""
        key = keys.paused(queue)
        seconds, _ = await self._redis.command("TIME", key=key)
        return bool(await self._redis.command("SETNX", key, int(seconds), key=key))

    async def resume(self, queue: str) -> bool:
        """False if it was not paused."""
        key = keys.paused(queue)
        return bool(await self._redis.command("DEL", key, key=key))

    async def is_paused(self, queue: str) -> bool:
        key = keys.paused(queue)
        return bool(await self._redis.command("EXISTS", key, key=key))
