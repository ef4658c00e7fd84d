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
    args="ttl info startable expected gone {task_id}* count {task_id worker_info}* [now_ms]",
)
LEAVE = load("presence/leave", keys="server workers types [servers all_workers]", args="")

TTL = 10
"""Seconds for which a record outlives its last beat, as in Asynq."""


class Presence:
    """Of one worker process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._shown: dict[str, bytes] | None = None
        """What the last beat left in Redis; None if that is not known."""

    async def beat(self, record: ServerRecord, working: Mapping[str, bytes]) -> int:
        """Write the record, and what has changed in what it works on; returns the server's time in milliseconds."""
        own = self._own_keys(record)
        everywhere = [] if self._redis.address.kind == "cluster" else [keys.SERVERS, keys.WORKERS]
        while True:
            shown, self._shown = self._shown, None
            reply = await self._redis.run(BEAT, [*own, *everywhere], _changes(record, shown, working))
            now, is_as_expected = map(int, reply)
            if is_as_expected or shown is None:  # else it has expired, or somebody deleted it: begin anew
                break
        self._shown = dict(working)
        if not everywhere:
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


def _changes(record: ServerRecord, shown: Mapping[str, bytes] | None, working: Mapping[str, bytes]) -> list[Argument]:
    before = shown or {}
    gone = [task_id for task_id in before if task_id not in working]
    rows = [(task_id, info) for task_id, info in working.items() if before.get(task_id) != info]
    args: list[Argument] = [TTL, encode_server(record), record.startable, "" if shown is None else len(shown)]
    args += (len(gone), *gone, len(rows))
    for row in rows:
        args += row
    return args
