"""Writes that are answered only once they are safe: on a replica (WAIT), or on this machine's disk (WAITAOF)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veredus.errors import CommandRefused, NotConfirmed
from veredus.store import faults
from veredus.store.cluster import Cluster
from veredus.store.connection import Argument, Connection
from veredus.store.redis import Call, Redis
from veredus.store.scripts import Script

WAIT_MS = {"replica": 500, "fsync": 2500}
"""A replica answers at once; a server that writes to disk every second (the default) may take that long."""
COMMANDS: dict[str, tuple[Argument, ...]] = {
    "replica": ("WAIT", 1, WAIT_MS["replica"]),
    "fsync": ("WAITAOF", 1, 0, WAIT_MS["fsync"]),
}
SAFE = {"replica": "no replica confirmed it", "fsync": "the disk did not confirm it"}


class Durable:
    """A Redis whose script calls end when they are safe. On connections of its own: the server confirms what was
    written on the connection that asks, and nobody else shall wait for that. Raises NotConfirmed when it takes too
    long."""

    def __init__(self, redis: Redis, durability: str) -> None:
        self.address = redis.address
        self._redis = redis
        self._durability = durability
        self._connections: dict[str, Connection] = {}

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        connection = await self._connection(keys[0])
        try:
            reply = await _evaluate(connection, script, keys, args)
        except faults.Moved:
            await self._redis.command("EXISTS", keys[0], key=keys[0])  # so that it is known where the slot is now
            connection = await self._connection(keys[0])
            reply = await _evaluate(connection, script, keys, args)
        try:
            confirmed = await connection.call(*COMMANDS[self._durability])
        except CommandRefused as exc:
            raise NotConfirmed(f"written, but the server cannot confirm {self._durability}: {exc}") from exc
        if not (confirmed[0] if isinstance(confirmed, list) else confirmed):
            raise NotConfirmed(f"written, but {SAFE[self._durability]} within {WAIT_MS[self._durability]} ms")
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
        connection = self._connections.get(place)
        if connection is not None and connection.is_idle:
            connection.close()  # it may be dead without anybody knowing; a new one costs less than the doubt
        if connection is None or not connection.alive:
            connection = self._connections[place] = await self._redis.open(key)
        return connection


async def _evaluate(connection: Connection, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
    try:
        return await connection.call("EVALSHA", script.sha, len(keys), *keys, *args)
    except faults.NoScript:
        return await connection.call("EVAL", script.source, len(keys), *keys, *args)
