"""Queues: statistics, groups and leases; pause, close and clear."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from veredus.errors import CommandRefused
from veredus.model.info import ClusterNodeInfo, DailyStats, GroupInfo, LeaseInfo, QueueInfo
from veredus.store.connection.cluster import slot_of
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import CONTAINERS, InspectPart, containers, data, raise_first_error, text
from veredus.wire import keys, lease_owner
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.wire.times import count_of, whole

STATS = load("inspect/stats", keys=f"{CONTAINERS} paused processed failed", args="queue_prefix max_groups")
MEMORY = load("inspect/memory", keys=CONTAINERS, args="queue_prefix sample max_groups")


class Key(NamedTuple):
    key: bytes


CLEAR = load("inspect/clear", keys=f"{CONTAINERS} paused [queues]", args="queue_prefix queue is_last", rows=Key)
LEASES = load("inspect/leases", keys="lease", args="queue_prefix start size")

MAX_GROUPS = 500
"""Groups counted inside one script. With more groups, they are counted page by page."""
SAMPLE, SAMPLED_GROUPS = 20, 5
_PAGE = 500


class Queues(InspectPart):
    async def names(self) -> list[str]:
        """All registered queues."""
        found = await self.redis.command("SMEMBERS", keys.QUEUES, key=keys.QUEUES)
        return sorted(text(name) for name in found)

    async def exists(self, queue: str) -> bool:
        return bool(await self.redis.command("SISMEMBER", keys.QUEUES, queue, key=keys.QUEUES))

    async def register(self, queue: str) -> None:
        await self.redis.command("SADD", keys.QUEUES, queue, key=keys.QUEUES)

    async def stats(self, queues: Sequence[str], *, memory: bool = False) -> list[QueueInfo]:
        """The numbers of each queue, in one round trip per server, and a second one for memory."""
        more = (keys.paused, keys.processed, keys.failed)
        replies = await self.run_in_each(queues, STATS, [MAX_GROUPS], *more)
        sizes = [0] * len(queues)
        if memory:
            sizes = await self._memory(queues)
        rows = zip(queues, replies, sizes, strict=True)
        return [await self._stats(queue, reply, size) for queue, reply, size in rows]

    async def _memory(self, queues: Sequence[str]) -> list[int]:
        """Estimated bytes of each queue; 0 for a queue with a key of the wrong type."""
        calls = [
            ScriptCall(MEMORY, containers(queue), [keys.queue_prefix(queue), SAMPLE, SAMPLED_GROUPS])
            for queue in queues
        ]
        replies = await self.redis.run_each(calls)
        return raise_first_error([0 if isinstance(reply, CommandRefused) else reply for reply in replies])

    async def _stats(self, queue: str, reply: Any, memory_usage: int) -> QueueInfo:
        now, pending, active, scheduled, retry, archived, completed, *more = reply
        processed, failed, processed_total, failed_total, paused, since, groups, aggregating = more
        if aggregating < 0:
            aggregating = 0
            async for page in self.groups(queue):
                aggregating += sum(group.size for group in page)
        return QueueInfo(
            queue=queue,
            pending=pending,
            active=active,
            scheduled=scheduled,
            retry=retry,
            archived=archived,
            completed=completed,
            aggregating=aggregating,
            groups=groups,
            processed=count_of(processed),
            failed=count_of(failed),
            processed_total=count_of(processed_total),
            failed_total=count_of(failed_total),
            paused=bool(paused),
            latency_ns=max(0, int(now) - count_of(since)) if since.isdigit() else 0,
            timestamp_ns=int(now),
            memory_usage=memory_usage,
        )

    async def history(self, queue: str, days: int, until: date | None = None) -> list[DailyStats]:
        """Daily numbers in UTC, the newest day first."""
        if until is None:
            until = datetime.fromtimestamp(await self.server_ms() / 1000, UTC).date()
        dates = [(until - timedelta(days=back)).isoformat() for back in range(days)]
        names = [make(queue, day) for day in dates for make in (keys.processed_on, keys.failed_on)]
        found = await self.redis.command("MGET", *names, key=names[0])
        return [
            DailyStats(queue, day, count_of(found[2 * n]), count_of(found[2 * n + 1])) for n, day in enumerate(dates)
        ]

    async def pause(self, queue: str) -> bool:
        """False if it was paused already."""
        seconds = await self.server_ms() // 1000
        key = keys.paused(queue)
        return bool(await self.redis.command("SETNX", key, seconds, key=key))

    async def is_paused(self, queue: str) -> bool:
        key = keys.paused(queue)
        return bool(await self.redis.command("EXISTS", key, key=key))

    async def resume(self, queue: str) -> bool:
        """False if it was not paused."""
        key = keys.paused(queue)
        return bool(await self.redis.command("DEL", key, key=key))

    async def close(self, queue: str) -> bool:
        """False if it was closed already."""
        seconds = await self.server_ms() // 1000
        key = keys.closed(queue)
        return bool(await self.redis.command("SETNX", key, seconds, key=key))

    async def open(self, queue: str) -> bool:
        """False if it was not closed."""
        key = keys.closed(queue)
        return bool(await self.redis.command("DEL", key, key=key))

    async def is_closed(self, queue: str) -> bool:
        key = keys.closed(queue)
        return bool(await self.redis.command("EXISTS", key, key=key))

    async def groups(self, queue: str) -> AsyncIterator[list[GroupInfo]]:
        """Listed groups page by page, with their sizes; 0 for a listed group that does not exist."""
        key, cursor = keys.groups(queue), b"0"
        while True:
            cursor, found = await self.redis.command("SSCAN", key, cursor, "COUNT", _PAGE, key=key)
            names = [text(name) for name in found]
            sizes = await self.sizes([keys.group(queue, name) for name in names], "ZCARD")
            yield [GroupInfo(name, size) for name, size in zip(names, sizes, strict=True)]
            if cursor == b"0":
                return

    async def sizes(self, names: Sequence[str], command: str) -> list[int]:
        """Sizes of sorted sets (ZCARD), lists (LLEN) or sets (SCARD), in one round trip; 0 for a key of the wrong
        type."""
        replies = await self.redis.command_each([(command, data(name)) for name in names])
        return [reply if isinstance(reply, int) else 0 for reply in replies]

    async def leases(self, queues: Sequence[str], start: int, size: int) -> list[list[LeaseInfo]]:
        """One page of leases per queue, the first to expire first, in one round trip per server."""
        calls = [ScriptCall(LEASES, [keys.lease(queue)], [keys.queue_prefix(queue), start, size]) for queue in queues]
        replies = raise_first_error(await self.redis.run_each(calls))
        return [
            [_lease(queue, now, *rows[at : at + 4]) for at in range(0, len(rows), 4)]
            for queue, (now, rows) in zip(queues, replies, strict=True)
        ]

    # Keys.

    async def keys_of(self, queue: str) -> AsyncIterator[list[bytes]]:
        """Every key with the queue's prefix, page by page. A key may appear twice."""
        prefix, queues = keys.queue_prefix(queue), {queue, *await self.names()}
        async for page in self.scan(f"{escaped(prefix)}*", prefix):
            yield [key for key in page if (keys.split(text(key), queues) or ("",))[0] == queue]

    async def scan(self, pattern: str, key: str) -> AsyncIterator[list[bytes]]:
        """Keys of the server that has `key`. A page may be empty before the end."""
        cursor = b"0"
        while True:
            cursor, found = await self.redis.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, key=key)
            yield found
            if cursor == b"0":
                return

    async def clear(self, queue: str, names: Sequence[bytes]) -> bool:
        """Delete these keys of an empty queue and its name. False if the queue has received tasks since."""
        listed = [] if self.redis.address.kind == "cluster" else [keys.QUEUES]
        for start in range(0, len(names) or 1, _PAGE):
            part, last = names[start : start + _PAGE], start + _PAGE >= len(names)
            args: list[Argument] = [queue, int(last)]
            more_keys = [keys.paused(queue), *listed]
            if not await self.run_in(queue, CLEAR, args, [Key(name) for name in part], more_keys=more_keys):
                return False
        if not listed:
            await self.redis.command("SREM", keys.QUEUES, queue, key=keys.QUEUES)
        return True

    # Cluster.

    def slot(self, queue: str) -> int:
        """The cluster slot of this queue."""
        return slot_of(keys.pending(queue))

    async def nodes(self, queue: str) -> list[ClusterNodeInfo]:
        """The cluster nodes of this queue: the master, then its replicas."""
        slot = self.slot(queue)
        for first, last, *nodes in await self.redis.command("CLUSTER", "SLOTS", key=keys.pending(queue)):
            if first <= slot <= last:
                return [ClusterNodeInfo(text(node[2]), f"{text(node[0] or b'')}:{node[1]}") for node in nodes]
        return []


def escaped(name: str) -> str:
    """A glob pattern that matches only this name."""
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in name)


def _lease(queue: str, now_ms: int, task_id: bytes, end: bytes, held: bytes | None, message: Any) -> LeaseInfo:
    owner = lease_owner.owner_under(held, end)
    try:
        kind = decode_task(message or b"").type
    except UndecodableMessage:
        kind = ""
    return LeaseInfo(
        queue=queue,
        task_id=text(task_id),
        task_type=kind,
        owner=owner or "",
        until=whole(end),
        seconds_left=float(end) - now_ms / 1000,
        ours=owner is not None,
    )
