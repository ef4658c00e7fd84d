"""One queue seen from a test: its scripts called directly, at a given time, and a client to look behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.keyspace import Key, snapshot
from tests.support.moves import WatchedRedis
from veredus.model.pools import FreeSlots
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import Script
from veredus.store.tasks.delays import FORWARD
from veredus.store.tasks.intake import ENQUEUE, SCHEDULE
from veredus.store.tasks.leases import EXTEND, RECOVER
from veredus.store.tasks.retention import EXPIRE
from veredus.store.tasks.work import ARCHIVE, COMPLETE, DEQUEUE, DONE, MOST_BYTES, REQUEUE, RETRY
from veredus.wire import keys

NOW = 4_000_000_000_250
"""2096-10-02 07:06:40.250 UTC: in the future, so that what expires at a time counted from it stays for the test."""
DAY = "2096-10-02"
LEASE_MS = 12_000
LEASE_END = 4_000_000_013
"""When a lease taken at NOW ends, in whole seconds, rounded up."""


def differences(before: dict[str, Key], after: dict[str, Key]) -> dict[str, Key | None]:
    """Keys that are new or changed, with their new content; None for those that are gone."""
    return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


class Queue:
    """Every script of one queue."""

    def __init__(self, redis: Redis, client: Any, name: str = "q", *, is_watched: bool = True) -> None:
        """Watching costs calls of its own, which a test of the connection would notice."""
        self.client, self.name = client, name
        self.redis = WatchedRedis(redis)
        self.redis.is_watching = is_watched
        self.prefix = keys.task_prefix(name)
        self.next_expiry = 0
        self.due_cursor = b"0"
        """Of the last sweep: when the next lease will expire."""
        self.losers: list[str] = []
        """Of the last sweep: the owner that lost each claimed task."""
        self.beyond = 0
        """Of the last forward: the microseconds of its time that the milliseconds leave out."""

    def key(self, rest: str) -> str:
        return keys.queue_prefix(self.name) + rest

    def task(self, task_id: str) -> str:
        return self.prefix + task_id

    def keys(self, names: str) -> list[str]:
        return [self.key(name) for name in names.split()]

    async def _run(self, script: Script, names: list[str], args: list[Any], now: int | None) -> Any:
        return await self.redis.run(script, names, args if now is None else [*args, now])

    async def _codes(self, script: Script, names: list[str], args: list[Any], now: int | None) -> list[int]:
        """The reply of a script that returns one number per task."""
        reply: list[int] = await self._run(script, names, args, now)
        return reply

    def numbered(self, call: int | None) -> list[Any]:
        """The arguments of an insert that put it, with this number, into the record `sent:p:1`; None for no record."""
        return ["", 0] if call is None else [f"{call:012}", 40]

    async def enqueue(self, *entries: Any, call: int | None = None, now: int | None = NOW) -> list[int]:
        """Each entry: an id, or (id, message, lock, ttl, expires) as far as given."""
        rows = [_filled(entry, ["", b"", "", 0, ""]) for entry in entries]
        width = 5 if any(row[2] or row[4] for row in rows) else 2
        args = ENQUEUE.args([self.key(""), *self.numbered(call)], [tuple(row[:width]) for row in rows])
        return await self._codes(ENQUEUE, self.keys("pending sent:p:1"), args, now)

    async def schedule(self, *entries: Any, call: int | None = None, now: int | None = NOW) -> list[int]:
        """Each entry: (id, due), then message, lock, ttl, expires, group as far as given."""
        rows = []
        for task_id, due, *more in entries:
            *row, group = _filled((task_id, *more), ["", b"", "", 0, "", ""])
            rows.append((*row, due, group))
        args = SCHEDULE.args([self.key(""), keys.delay_wakeup(self.name), *self.numbered(call)], rows)
        return await self._codes(SCHEDULE, self.keys("scheduled retry due sent:p:1"), args, now)

    async def dequeue(
        self,
        wanted: int = 1,
        *,
        worker: str = "w",
        number: int = 1,
        again: int = 0,
        lease_ms: int = LEASE_MS,
        startable: str = "",
        cursor: str = "",
        rooms: FreeSlots | None = None,
        for_go: str = "",
        channel: str = "",
        now: int | None = NOW,
    ) -> tuple[list[str], Any]:
        """The ids handed out, and the whole reply. Without `startable`, every task can be started."""
        names = [*self.keys("pending paused active lease"), keys.batch(self.name, worker)]
        args = [self.key(""), wanted, lease_ms, f"{worker}:{number}", number, again, 600_000]
        args += [startable, cursor, *(rooms or FreeSlots(loop=wanted)), MOST_BYTES, for_go, channel]
        reply = await self._run(DEQUEUE, names, args, now)
        return [task_id.decode() for task_id in reply[3][::2]], reply

    async def activate(self, *ids: str, owner: str = "w:1") -> None:
        """Enqueue and dequeue these; they are active at NOW for that owner."""
        await self.enqueue(*ids)
        worker, _, number = owner.partition(":")
        taken, _ = await self.dequeue(len(ids), worker=worker, number=int(number))
        assert taken == list(ids)

    async def done(self, *rows: Any, now: int | None = NOW) -> list[int]:
        """Each row: an id, or (id, owner, lock) as far as given."""
        filled = [_filled(row, ["", "w:1", ""]) for row in rows]
        owners = {row[1] for row in filled}
        width = 1 if len(owners) == 1 and not any(row[2] for row in filled) else 3
        args = DONE.args([self.key(""), filled[0][1] if filled else ""], [tuple(row[:width]) for row in filled])
        return await self._codes(DONE, self.keys("active lease"), args, now)

    async def complete(self, *rows: Any, now: int | None = NOW) -> list[int]:
        """Each row: (id, owner, lock, message, retention, has_result, result, attempt) as far as given."""
        filled = [tuple(_filled(row, ["", "w:1", "", b"new", 600, 0, b"", b""])) for row in rows]
        args = COMPLETE.args([self.key("")], filled)
        return await self._codes(COMPLETE, self.keys("active lease completed"), args, now)

    async def retry(self, *rows: Any, now: int | None = NOW) -> list[int]:
        """Each row: (id, owner, message, delay_ms, is_failure, front, crashed, traceback, attempt) as far as given."""
        filled = [tuple(_filled(row, ["", "w:1", b"new", 1500, 1, 0, 0, b"", b""])) for row in rows]
        args = RETRY.args([self.key(""), keys.delay_wakeup(self.name)], filled)
        return await self._codes(RETRY, self.keys("active lease retry scheduled due"), args, now)

    async def archive(
        self, *rows: Any, max_size: int = 10_000, max_age: int = 90 * 86400, now: int | None = NOW
    ) -> list[int]:
        """Each row: (id, owner, lock, message, original, is_failure, traceback, attempt) as far as given."""
        filled = [tuple(_filled(row, ["", "w:1", "", b"new", b"", 1, b"", b""])) for row in rows]
        args = ARCHIVE.args([self.key(""), max_size, max_age], filled)
        return await self._codes(ARCHIVE, self.keys("active lease archived"), args, now)

    async def requeue(self, *rows: Any, now: int | None = NOW) -> list[int]:
        """Each row: an id, or (id, owner, attempt) as far as given."""
        args = REQUEUE.args([self.key("")], [tuple(_filled(row, ["", "w:1", b""])) for row in rows])
        return await self._codes(REQUEUE, self.keys("active lease pending"), args, now)

    async def forward(
        self, *, limit: int = 100, pause_ms: int = 0, forwarder: str = "f", now: int | None = NOW
    ) -> tuple[int, int, int, list[str]]:
        names = self.keys("scheduled retry due pending groups")
        reply = await self._run(FORWARD, names, [self.key(""), limit, pause_ms, forwarder], now)
        moved, due, at, dropped, self.beyond = reply
        return moved, due, at, [item.decode() for item in dropped]

    async def extend(self, *rows: Any, now: int | None = NOW) -> list[int]:
        """Each row: (id, owner, lease_ms) as far as given. The positions lost."""
        args = EXTEND.args([self.key("")], [tuple(_filled(row, ["", "w:1", LEASE_MS])) for row in rows])
        at, lost, *_ = await self._run(EXTEND, self.keys("lease"), args, now)
        assert now is None or at == now
        return list(lost)

    async def recover(
        self,
        owner: str = "r:1",
        *,
        limit: int = 100,
        claim_ms: int = 5000,
        slack: int = 30_000,
        since: int | None = None,
        max_gap: int = 4000,
        furthest: int = 60_000,
        dead_worker: str = "",
        now: int = NOW,
    ) -> tuple[bool, list[tuple[str, bytes, int]], list[str]]:
        """Whether it swept, what it claimed, what it tidied."""
        since = now - 2000 if since is None else since
        args = [self.key(""), limit, owner, claim_ms, slack, since, max_gap, furthest, dead_worker]
        reply = await self._run(RECOVER, self.keys("lease active"), args, now)
        at, swept, claimed, tidied, self.next_expiry, *_ = reply
        assert at == now
        rows = [(claimed[i].decode(), claimed[i + 1], claimed[i + 2]) for i in range(0, len(claimed), 4)]
        self.losers = [owner.decode() for owner in claimed[3::4]]
        return bool(swept), rows, [task_id.decode() for task_id in tidied]

    async def expire(self, *, limit: int = 100, now: int = NOW) -> int:
        args = [self.key(""), limit, self.due_cursor]
        number, self.due_cursor = await self._run(EXPIRE, self.keys("completed scheduled retry due"), args, now)
        return int(number)

    # What stands in Redis.

    async def everything(self) -> dict[str, Key]:
        return await snapshot(self.client)

    async def pending(self) -> list[str]:
        """The next to run first."""
        return [item.decode() for item in reversed(await self.client.lrange(self.key("pending"), 0, -1))]

    async def active(self) -> list[str]:
        return [item.decode() for item in await self.client.lrange(self.key("active"), 0, -1)]

    async def scores(self, name: str) -> dict[str, int]:
        rows = await self.client.zrange(self.key(name), 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in rows}

    async def fields(self, task_id: str) -> dict[str, str]:
        found = await self.client.hgetall(self.task(task_id))
        return {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in found.items()}

    @asynccontextmanager
    async def wakeups(self) -> AsyncIterator[list[str]]:
        """All messages on the wake-up channel while the block ran; the list is full once the block has ended."""
        channel = keys.delay_wakeup(self.name)
        heard: list[str] = []
        async with self.client.pubsub() as pubsub:
            await pubsub.subscribe(channel)
            assert await pubsub.get_message(timeout=10)
            yield heard
            await self.client.publish(channel, "END")
            async for message in pubsub.listen():
                if message["data"] == b"END":
                    break
                heard.append(message["data"].decode())


def _filled(row: Any, defaults: list[Any]) -> list[Any]:
    given = list(row) if isinstance(row, tuple) else [row]
    return given + defaults[len(given) :]
