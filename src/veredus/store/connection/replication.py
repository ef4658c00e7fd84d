"""Writes that return only once they are safe: on replicas (WAIT), or on this machine's disk (WAITAOF)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from veredus.errors import CommandRefused, ConfigError, NotConfirmed, NotReady
from veredus.store.connection import error_replies
from veredus.store.connection.cluster import Cluster, guarded
from veredus.store.connection.connection import Argument, Connection
from veredus.store.connection.redis import Master, Redis, ScriptCall
from veredus.store.connection.scripts import Script, load
from veredus.wire import keys as names

MARK = load("keep/mark", keys="absent", args="")
WAIT_MS = {"replica": 500, "fsync": 2500}
"""A replica confirms at once; a server that syncs to disk every second (the default) may take that long."""
SILENCE = 5.0
"""Seconds after which a silent server is given up, in addition to those that it may take."""
STORED = 1
"""The result code of an insert for a task that was stored."""
_LOOK = 5.0
"""Seconds after which the sentinels are asked for the replicas again."""


class Replication:
    """A client whose script calls return when they are safe. It uses connections of its own: the server confirms
    what was written on the connection that asks, and other callers should not wait for that. Raises NotConfirmed if
    that takes longer than `within` seconds. If a server cannot confirm at all, raises before it writes."""

    def __init__(self, redis: Redis, durability: str, *, within: float = 0.0) -> None:
        self.address = redis.address
        self._redis = redis
        self._durability = durability
        self._within = max(within, WAIT_MS[durability] / 1000)
        self._connections: dict[str, Connection] = {}
        self._opening = asyncio.Lock()
        self._needed, self._looked = 1, 0.0

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        call = ScriptCall(script, keys, args)
        if isinstance(self._redis, Cluster):
            call = guarded(call)
        connection = await self._connection(keys[0])
        try:
            reply = await self._evaluate(connection, call)
        except error_replies.Moved:
            await self._redis.command("EXISTS", keys[0], key=keys[0])  # so that the location of the slot is known
            connection = await self._connection(keys[0])
            reply = await self._evaluate(connection, call)
        await self._confirm(connection, keys[0], reply)
        return reply

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies: list[Any] = []
        for call in calls:
            try:
                replies.append(await self.run(call.script, call.keys, call.args))
            except Exception as exc:  # each call has its own outcome
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
        """Closes only its own connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _connection(self, key: str) -> Connection:
        place = await self._redis.place(key) if isinstance(self._redis, Cluster) else ""
        async with self._opening:
            connection = self._connections.get(place)
            if connection is not None and connection.is_idle:
                connection.close()  # it may be dead; a new one costs less than finding out
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
            if "replica" in str(exc):  # only a master waits for replicas
                raise NotReady(f"{connection.where} is not the master: {exc}") from exc
            allowed = "any or replica: fsync needs Redis 7.2 or Valkey, with appendonly yes"
            raise ConfigError("durability", self._durability, f"{allowed} ({connection.where} says: {exc})") from exc
        if self._durability == "replica" and not (await connection.call("ROLE"))[2]:
            raise NotReady(f"durability 'replica': no replica is connected to {connection.where}; nothing was stored")

    async def _evaluate(self, connection: Connection, call: ScriptCall) -> Any:
        script, rest = call.script, (len(call.keys), *call.keys, *call.args)
        try:
            return await connection.call("EVALSHA", script.sha, *rest, timeout=self._timeout)
        except error_replies.NoScript:
            return await connection.call("EVAL", script.source, *rest, timeout=self._timeout)

    async def _confirm(self, connection: Connection, key: str, reply: Any) -> None:
        """In rounds: between two of them, a change of the master is noticed."""
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
                connection.close()  # first ask the next one whether it can
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
        """The number of replicas that must have a write. One is enough, except behind Sentinel: there it is all that
        may become the master, because until the sentinels decide nobody knows which of them it is."""
        if self._durability == "fsync" or not isinstance(self._redis, Master):
            return 1
        if time.monotonic() - self._looked > _LOOK:
            self._needed = max(1, await self._redis.count_candidates())
            self._looked = time.monotonic()
        return self._needed

    @property
    def _timeout(self) -> float:
        """The result of any call: it may wait behind another one that waits for a confirmation."""
        return self._within + SILENCE


class ReplicatedTasks(Replication):
    """For inserts: stored tasks without confirmation have the error in place of their code, all others their own
    code."""

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        try:
            return await super().run(script, keys, args)
        except NotConfirmed as exc:
            return [exc if code == STORED else code for code in exc.reply]
