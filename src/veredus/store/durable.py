"""Writes that are answered only once they are safe: on replicas (WAIT), or on this machine's disk (WAITAOF)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from veredus.errors import CommandRefused, ConfigError, NotConfirmed, NotReady
from veredus.store import faults
from veredus.store.cluster import Cluster, guarded
from veredus.store.connection import Argument, Connection
from veredus.store.redis import Call, Master, Redis
from veredus.store.scripts import Script, load
from veredus.wire import keys as names

MARK = load("keep/mark", keys="absent", args="[now_ms]")
WAIT_MS = {"replica": 500, "fsync": 2500}
"""A replica answers at once; a server that writes to disk every second (the default) may take that long."""
SILENCE = 5.0
"""Seconds after which a server that says nothing is given up, besides those for which it may wait."""
STORED = 1
"""The code of an insert for a task that it has stored."""
_LOOK = 5.0
"""Seconds after which the sentinels are asked again which replicas there are."""


class Durable:
    """A Redis whose script calls end when they are safe. On connections of its own: the server confirms what was
    written on the connection that asks, and nobody else shall wait for that. Raises NotConfirmed when it takes longer
    than `within` seconds, and for a server that cannot confirm anything raises before it writes."""

    def __init__(self, redis: Redis, durability: str, *, within: float = 0.0) -> None:
        self.address = redis.address
        self._redis = redis
        self._durability = durability
        self._within = max(within, WAIT_MS[durability] / 1000)
        self._connections: dict[str, Connection] = {}
        self._opening = asyncio.Lock()
        self._needed, self._looked = 1, 0.0

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        call = Call(script, keys, args)
        if isinstance(self._redis, Cluster):
            call = guarded(call)
        connection = await self._connection(keys[0])
        try:
            reply = await self._evaluate(connection, call)
        except faults.Moved:
            await self._redis.command("EXISTS", keys[0], key=keys[0])  # so that it is known where the slot is now
            connection = await self._connection(keys[0])
            reply = await self._evaluate(connection, call)
        await self._confirm(connection, keys[0], reply)
        return reply

    async def run_each(self, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = []
        for call in calls:
            try:
                replies.append(await self.run(call.script, call.keys, call.args))
            except Exception as exc:
                replies.append(exc)
        return replies

    async def command(self, *args: Argument, key: str) -> Any:
        return await self._redis.command(*args, key=key)

    async def command_each(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._redis.command_each(commands)

    async def open(self, key: str) -> Connection:
        return await self._redis.open(key)

    async def be_connected(self, key: str) -> None:
        await self._connection(key)

    def where(self) -> str:
        return self._redis.where()

    async def close(self) -> None:
        """Only the connections of its own."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _connection(self, key: str) -> Connection:
        place = await self._redis.place(key) if isinstance(self._redis, Cluster) else ""
        async with self._opening:
            connection = self._connections.get(place)
            if connection is not None and connection.is_idle:
                connection.close()  # it may be dead without anybody knowing; a new one costs less than the doubt
            if connection is None or not connection.alive:
                connection = await self._redis.open(key)
                try:
                    await self._check(connection)
                except BaseException:
                    connection.close()
                    raise
                self._connections[place] = connection
            return connection

    async def _check(self, connection: Connection) -> None:
        """Whether this server can confirm at all; nothing was written yet."""
        try:
            await connection.call(*(("WAIT", 0, 1) if self._durability == "replica" else ("WAITAOF", 1, 0, 1)))
        except CommandRefused as exc:
            if "replica" in str(exc):  # of another one: it waits for its own replicas only as a master
                raise NotReady(f"{connection.where} is not the master: {exc}") from exc
            allowed = "any or replica: fsync needs Redis 7.2 or Valkey, with appendonly yes"
            raise ConfigError("durability", self._durability, f"{allowed} ({connection.where} says: {exc})") from exc
        if self._durability == "replica" and not (await connection.call("ROLE"))[2]:
            raise NotReady(f"durability 'replica': no replica is connected to {connection.where}; nothing was stored")

    async def _evaluate(self, connection: Connection, call: Call) -> Any:
        script, rest = call.script, (len(call.keys), *call.keys, *call.args)
        try:
            return await connection.call("EVALSHA", script.sha, *rest, timeout=self._timeout)
        except faults.NoScript:
            return await connection.call("EVAL", script.source, *rest, timeout=self._timeout)

    async def _confirm(self, connection: Connection, key: str, reply: Any) -> None:
        """In rounds: between two of them it is seen when the master has become another."""
        # The server confirms this connection's last write. A call that was sent before and is repeated writes nothing.
        mark = ("EVAL", MARK.source, 1, names.absent(key) or key)
        give_up, wait = time.monotonic() + self._within, WAIT_MS[self._durability]
        while True:
            needed = await self._count_needed()
            command = ("WAIT", needed, wait) if self._durability == "replica" else ("WAITAOF", 1, 0, wait)
            try:
                calls = [connection.call(*one, timeout=self._timeout) for one in (mark, command)]
                confirmed = (await asyncio.gather(*calls))[1]
            except CommandRefused as exc:
                connection.close()  # the next one is asked first whether it can
                if self._durability == "replica":
                    raise NotReady(f"{connection.where} is no longer the master: {exc}") from exc
                text = f"stored on {connection.where}, but the server no longer confirms fsync: {exc}"
                raise NotConfirmed(text, reply) from exc
            count = confirmed[0] if isinstance(confirmed, list) else confirmed
            if count >= needed:
                return
            if time.monotonic() >= give_up:
                who = f"{count} of {needed} replicas" if self._durability == "replica" else "no disk"
                text = f"stored on {connection.where}, but {who} confirmed it within {self._within:g} s"
                raise NotConfirmed(text, reply)
            self._looked = 0.0

    async def _count_needed(self) -> int:
        """How many replicas must have a write. One is enough, except behind Sentinel: there it must be all that may
        become the master, because until the sentinels say so nobody knows which of them already is."""
        if self._durability == "fsync" or not isinstance(self._redis, Master):
            return 1
        if time.monotonic() - self._looked > _LOOK:
            self._needed = max(1, await self._redis.count_candidates())
            self._looked = time.monotonic()
        return self._needed

    @property
    def _timeout(self) -> float:
        """Of any call: it may stand behind one that waits for a confirmation."""
        return self._within + SILENCE


class DurableTasks(Durable):
    """For inserts: what is stored and not confirmed has the error in place of its code, all else its own code."""

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        try:
            return await super().run(script, keys, args)
        except NotConfirmed as exc:
            return [exc if code == STORED else code for code in exc.reply]
