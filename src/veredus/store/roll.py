"""Who is there: the records of worker processes and schedulers, as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from veredus.model.info import EnqueueEvent, SchedulerEntryInfo, ServerInfo, WorkerInfo
from veredus.store.places import Part, sound, text
from veredus.wire import keys
from veredus.wire.records import enqueue_event, scheduler_entry, server_info, worker_info
from veredus.wire.types import knows

T = TypeVar("T")


class Roll(Part):
    async def servers(self) -> list[ServerInfo]:
        """Every worker process that lives, with what it works on, in the order in which they started."""
        working: dict[str, list[WorkerInfo]] = {}
        for found in await self._read(keys.WORKERS, "HVALS"):
            for worker in _decoded(found or [], worker_info):
                working.setdefault(worker.server_id, []).append(worker)
        servers = [
            replace(server, active_workers=tuple(sorted(working.get(server.id, []), key=lambda w: w.started_ns)))
            for server in await self._records()
        ]
        return sorted(servers, key=lambda server: (server.started_ns, server.id))

    async def has_go(self) -> bool:
        """Whether a Go server lives here: one that does not say which types it has handlers for."""
        servers = await self._records()
        names = [keys.types(server.host, server.pid, server.id) for server in servers]
        return None in sound(await self.redis.command_each([("GET", name) for name in names]))

    async def unserved(self, queue: str, types: Iterable[str]) -> list[str]:
        """Those of the types that none of the live workers of this queue has a handler for; nothing if it has no worker
        at all. A Go worker does not say what it has handlers for: it may have one for any."""
        serving = [server for server in await self._records() if queue in server.queues]
        names = [keys.types(server.host, server.pid, server.id) for server in serving]
        found = await self.redis.command_each([("GET", name) for name in names])
        if not found or not all(isinstance(value, bytes) for value in found):
            return []
        known = [text(value) for value in found]
        return [name for name in types if not any(knows(value, name) for value in known)]

    async def scheduler_entries(self) -> list[SchedulerEntryInfo]:
        """Every schedule of every scheduler that lives."""
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
        """The records whose names are in the index. Those that have gone are taken off it, as Go's Inspector does."""
        seconds = await self.server_ms() // 1000
        found, _ = sound(
            await self.redis.command_each(
                [("ZRANGEBYSCORE", index, seconds, "+inf"), ("ZREMRANGEBYSCORE", index, "-inf", seconds - 1)]
            )
        )
        names = [text(name) for name in found]
        replies = await self.redis.command_each([(command, name, *args) for name in names])
        return [reply for reply in replies if reply is not None and not isinstance(reply, BaseException)]


def _decoded(found: list[bytes], decode: Callable[[bytes], T | None]) -> list[T]:
    return [value for value in map(decode, found) if value is not None]
