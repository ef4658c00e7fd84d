"""Worker records: each worker process writes what it is and runs, for Asynq's tools and Veredus's, and reads what it is
asked to do."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from veredus.errors import ServerFull
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.wire import keys
from veredus.wire.presence import ServerRecord, encode_server


class GoneTask(NamedTuple):
    """A row of `beat`: a task that the worker no longer runs."""

    task_id: str


class WorkingTask(NamedTuple):
    """A row of `beat`: a task that it runs."""

    task_id: str
    worker_info: bytes


BEAT = load(
    "presence/beat",
    keys="server workers types details [servers all_workers]",
    args="ttl info startable version memory expected",
    rows=(GoneTask, WorkingTask),
)
LEAVE = load("presence/leave", keys="server workers types details [servers all_workers]", args="")

TTL = 10
"""Seconds for which a record outlives its last heartbeat, as in Asynq."""


class BeatReply(NamedTuple):
    """What the server answers to a heartbeat."""

    server_ms: int
    asked: str
    """What the process is asked to do: `quiet`, `stop` or nothing. Answered again with every heartbeat."""


class WorkerRecords:
    """The record of one worker process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._shown: dict[str, bytes] | None = None
        """What the last heartbeat wrote; None if that is unknown."""

    async def beat(self, record: ServerRecord, working: Mapping[str, bytes]) -> BeatReply:
        """Write the record, and the changes in what the process runs."""
        own = self._own_keys(record)
        everywhere = [] if self._redis.address.kind == "cluster" else [keys.SERVERS, keys.WORKERS]
        while True:
            shown, self._shown = self._shown, None
            reply = await self._redis.run(BEAT, [*own, *everywhere], _changes(record, shown, working))
            now, is_as_expected = map(int, reply[:2])
            if is_as_expected or shown is None:  # otherwise it expired or was deleted: write all of it
                break
        self._shown = dict(working)
        if not everywhere:
            stale = now // 1000 + TTL
            with contextlib.suppress(ServerFull):  # only the index of all workers lacks it then
                await self._write(("ZADD", keys.SERVERS, stale, own[0]), ("ZADD", keys.WORKERS, stale, own[1]))
        return BeatReply(now, reply[2].decode())

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
        return [keys.server(*identity), keys.workers(*identity), keys.types(*identity), keys.details(*identity)]


def _changes(record: ServerRecord, shown: Mapping[str, bytes] | None, working: Mapping[str, bytes]) -> list[Argument]:
    before = shown or {}
    gone = [GoneTask(task_id) for task_id in before if task_id not in working]
    changed = [WorkingTask(task_id, info) for task_id, info in working.items() if before.get(task_id) != info]
    expected = "" if shown is None else len(shown)
    fields = (TTL, encode_server(record), record.startable, record.version, record.memory_mb, expected)
    return BEAT.args(fields, gone, changed)
