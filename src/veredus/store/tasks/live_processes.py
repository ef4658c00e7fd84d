"""Live processes: reads the records of worker processes and schedulers, and leaves requests for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from veredus.errors import CommandRefused, ServerFull
from veredus.model.info import EnqueueEvent, SchedulerEntryInfo, ServerInfo, WorkerInfo
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import InspectPart, raise_first_error, text
from veredus.wire import keys
from veredus.wire.records import enqueue_event, scheduler_entry, server_info, worker_info
from veredus.wire.times import count_of
from veredus.wire.types import knows

T = TypeVar("T")

ASK = load("presence/ask", keys="server types details", args="verb")


class LiveProcess(NamedTuple):
    """A live worker process."""

    server: ServerInfo
    types: str | None
    """The types and groups that it declares; None for a Go server, which declares none."""

    @property
    def is_go(self) -> bool:
        return self.types is None


class LiveProcesses(InspectPart):
    async def servers(self) -> list[ServerInfo]:
        """Every live worker process and what it runs, in the order in which they started."""
        working: dict[str, list[WorkerInfo]] = {}
        for found in await self._read(keys.WORKERS, "HVALS"):
            for worker in _decoded(found or [], worker_info):
                working.setdefault(worker.server_id, []).append(worker)
        servers = [
            replace(server, active_workers=tuple(sorted(working.get(server.id, []), key=lambda w: w.started_ns)))
            for server in await self._with_details(await self._records())
        ]
        return sorted(servers, key=lambda server: (server.started_ns, server.id))

    async def _with_details(self, servers: list[ServerInfo]) -> list[ServerInfo]:
        """With what Asynq's records do not have. A process without that is Go's, or of an earlier version."""
        names = [keys.details(one.host, one.pid, one.id) for one in servers]
        asked = [("HMGET", name, "version", "memory", "asked") for name in names]
        replies = await self.redis.command_each(asked) if asked else []
        return [
            server if not found or found[0] is None else _detailed(server, *found)
            for server, found in zip(servers, map(_unless_damaged, replies), strict=True)
        ]

    async def ask(self, server: ServerInfo, verb: str) -> int:
        """Leave a request for a worker process; returns what the script `ask` does."""
        identity = (server.host, server.pid, server.id)
        names = (keys.server(*identity), keys.types(*identity), keys.details(*identity))
        return int(await self.redis.run(ASK, names, (verb,)))

    async def unserved(self, queue: str, types: Iterable[str]) -> list[str]:
        """Those of the types for which no live worker of this queue has a handler; nothing if the queue has no
        worker. A Go worker does not declare its types: it may have a handler for any."""
        known = [member.types for member in await self.members() if queue in member.server.queues]
        if not known or None in known:
            return []
        return [name for name in types if not any(knows(value or "", name) for value in known)]

    async def names(self) -> list[str]:
        """The names of the records of worker processes; some of these may have died since."""
        found = await self.redis.command("ZRANGE", keys.SERVERS, 0, -1, key=keys.SERVERS)
        return sorted(text(name) for name in found)

    async def members(self, names: Iterable[str] | None = None) -> list[LiveProcess]:
        """Every live worker process, or those with these names, in two round trips. A process without a record has
        died."""
        names = await self.names() if names is None else names
        asked = [("GET", name) for one in names for name in (one, keys.types_beside(one))]
        found = [_unless_damaged(reply) for reply in await self.redis.command_each(asked)] if asked else []
        members = []
        for record, types in zip(found[::2], found[1::2], strict=True):
            server = None if record is None else server_info(record)
            if server is not None:
                members.append(LiveProcess(server, None if types is None else text(types)))
        return members

    async def fate(self, queue: str, task_id: str) -> tuple[str, bytes]:
        """The state and the message of a task; both empty if it is gone."""
        key = keys.task(queue, task_id)
        state, message = await self.redis.command("HMGET", key, "state", "msg", key=key)
        return text(state or b""), message or b""

    async def scheduler_entries(self) -> list[SchedulerEntryInfo]:
        """Every schedule of every live scheduler."""
        return [
            entry
            for found in await self._read(keys.SCHEDULERS, "LRANGE", 0, -1)
            for entry in _decoded(found or [], scheduler_entry)
        ]

    async def scheduler_events(self, entry_id: str, start: int, size: int) -> list[EnqueueEvent]:
        """When a schedule fired, the newest first."""
        key = keys.scheduler_history(entry_id)
        return _decoded(await self.redis.command("ZREVRANGE", key, start, start + size - 1, key=key), enqueue_event)

    async def _records(self) -> list[ServerInfo]:
        return _decoded(await self._read(keys.SERVERS, "GET"), server_info)

    async def _read(self, index: str, command: str, *args: Any) -> list[Any]:
        """The records named in the index. Those that are gone are removed from it, as Go's Inspector does. A replica
        and a user who may only read refuse that, and are read anyway."""
        seconds = await self.server_ms() // 1000
        found, _ = await self.redis.command_each(
            [("ZRANGEBYSCORE", index, seconds, "+inf"), ("ZREMRANGEBYSCORE", index, "-inf", seconds - 1)]
        )
        raise_first_error([found])
        names = [text(name) for name in found]
        replies = await self.redis.command_each([(command, name, *args) for name in names])
        return [reply for reply in map(_unless_damaged, replies) if reply is not None]


def _unless_damaged(reply: Any) -> Any:
    if isinstance(reply, CommandRefused) and not isinstance(reply, ServerFull):  # a key of another type
        return None
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _detailed(server: ServerInfo, version: bytes, memory: bytes | None, asked: bytes | None) -> ServerInfo:
    memory_mb = count_of(memory)
    return replace(server, version=text(version), memory_mb=memory_mb, asked=text(asked or b""))


def _decoded(found: list[bytes], decode: Callable[[bytes], T | None]) -> list[T]:
    return [value for value in map(decode, found) if value is not None]
