"""Who works: records of worker processes, for Asynq's tools and ours."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from veredus.errors import ServerFull
from veredus.store.connection import Argument
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.wire import keys
from veredus.wire.presence import ServerRecord, encode_server

BEAT = load(
    "presence/beat",
    keys="server workers types [servers all_workers]",
    args="ttl info startable count {task_id worker_info}* [now_ms]",
)
LEAVE = load("presence/leave", keys="server workers types [servers all_workers]", args="")

TTL = 10
"""Seconds for which a record outlives its last beat, as in Asynq."""


class Presence:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def beat(self, record: ServerRecord, working: Mapping[str, bytes]) -> int:
        """Write the record and what it works on; returns the server's time in milliseconds."""
        own = self._own_keys(record)
        args: list[Argument] = [TTL, encode_server(record), record.startable, len(working)]
        for task_id, info in working.items():
            args += (task_id, info)
        if self._redis.address.kind != "cluster":
            now: int = await self._redis.run(BEAT, [*own, keys.SERVERS, keys.WORKERS], args)
            return now
        now = await self._redis.run(BEAT, own, args)
        stale = now // 1000 + TTL
        with contextlib.suppress(ServerFull):  # only the lists of all workers lack it then
            await self._write(("ZADD", keys.SERVERS, stale, own[0]), ("ZADD", keys.WORKERS, stale, own[1]))
        return now

    async def leave(self, record: ServerRecord) -> None:
        own = self._own_keys(record)
        if self._redis.address.kind != "cluster":
            await self._redis.run(LEAVE, [*own, keys.SERVERS, keys.WORKERS], [])
            return
        await self._write(("ZREM", keys.SERVERS, own[0]), ("ZREM", keys.WORKERS, own[1]))
        await self._redis.run(LEAVE, own, [])

    async def _write(self, *commands: tuple[Argument, ...]) -> None:
        for reply in await self._redis.command_each(commands):
            if isinstance(reply, BaseException):
                raise reply

    def _own_keys(self, record: ServerRecord) -> list[str]:
        identity = (record.host, record.pid, record.server_id)
        return [keys.server(*identity), keys.workers(*identity), keys.types(*identity)]
