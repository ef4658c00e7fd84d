"""Queues full of real tasks for the inspector's tests, and golden dumps in a real server."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.queue import NOW, Queue
from tests.support.timed import at
from veredus.inspector.inspector import Inspector
from veredus.model.message import TaskMessage
from veredus.store.connection.redis import Redis
from veredus.wire import keys
from veredus.wire.messages import encode_task


class Bench(Queue):
    """A queue whose tasks have readable messages."""

    def __init__(self, redis: Redis, client: Any, name: str = "q") -> None:
        super().__init__(redis, client, name)
        self.inspector = Inspector(at(redis, NOW))
        """One whose scripts run at NOW."""

    def message(self, task_id: str, **fields: Any) -> bytes:
        given: dict[str, Any] = {"type": "t", "payload": f'{{"n":"{task_id}"}}'.encode(), "retry": 25, "timeout": 1800}
        given |= fields
        return encode_task(TaskMessage(id=task_id, queue=self.name, **given))

    def lock(self, name: str = "1") -> str:
        return self.key(f"unique:t:{name}")

    async def pend(self, *ids: str, lock: str = "", **fields: Any) -> None:
        await self.client.sadd(keys.QUEUES, self.name)
        if lock:
            fields["unique_key"] = lock
        await self.enqueue(*[(one, self.message(one, **fields), lock, 600 if lock else 0) for one in ids])

    async def fill(self, state: str, *ids: str, lock: str = "", **fields: Any) -> None:
        """Tasks in any state, by the scripts that bring them there; ids in the order in which they come first."""
        if lock:
            fields["unique_key"] = lock
        await self.client.sadd(keys.QUEUES, self.name)
        if state == "scheduled":
            rows = [(one, f"+{1000 * n + 500}", self.message(one, **fields)) for n, one in enumerate(ids, start=1)]
            await self.schedule(*[(*row, lock, 600 if lock else 0) for row in rows])
        elif state == "aggregating":
            await self.join("g", *ids, lock=lock, **fields)
        else:
            await self.pend(*ids, lock=lock, **fields)
            if state != "pending":
                await self._through_active(state, ids, fields)

    async def _through_active(self, state: str, ids: tuple[str, ...], fields: Any) -> None:
        for one in reversed(ids):  # past those that wait already
            await self.client.lrem(self.key("pending"), 1, one)
            await self.client.rpush(self.key("pending"), one)
        taken, _ = await self.dequeue(len(ids), worker="w", number=self._next())
        assert taken == list(ids)
        owner = f"w:{self.number}"
        for n, one in enumerate(taken, start=1):
            data = self.message(one, **({"error_msg": "boom", "last_failed_at": NOW // 1000} | fields))
            if state == "retry":
                await self.retry((one, owner, data, 1000 * n + 500, 1))
            elif state == "archived":
                await self.archive((one, owner, "", data), now=NOW - 60_000 + 1000 * n)
            elif state == "completed":
                await self.complete((one, owner, "", data, 600 + n, 1, b"result"))

    number = 0

    def _next(self) -> int:
        self.number += 1
        return self.number

    async def join(self, group: str, *ids: str, lock: str = "", **fields: Any) -> None:
        """Add to a group as Go does: no field for the lock."""
        for n, one in enumerate(ids):
            data = self.message(one, **({"group_key": group, "unique_key": lock} | fields))
            await self.client.hset(self.task(one), mapping={"msg": data, "state": "aggregating", "group": group})
            await self.client.zadd(self.key(f"g:{group}"), {one: NOW // 1000 + n})
            if lock:
                await self.client.set(lock, one, ex=600)
        await self.client.sadd(self.key("groups"), group)
        await self.client.sadd(keys.QUEUES, self.name)


async def load_dump(client: Any, dump: dict[str, Any]) -> None:
    """Every key of a golden dump, byte for byte; lifetimes that are over by now are left out."""
    for row in dump["keys"]:
        key, kind = row["key"], row["type"]
        if kind == "string":
            await client.set(key, _raw(row["value"]))
        elif kind == "hash":
            await client.hset(key, mapping={field["field"]: _raw(field) for field in row["fields"]})
        elif kind == "list":
            await client.rpush(key, *[_raw(item) for item in row["items"]])
        elif kind == "set":
            await client.sadd(key, *[_raw(member) for member in row["members"]])
        else:
            await client.zadd(key, {_raw(member): float(member["score"]) for member in row["members"]})


def _raw(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value["b64"])
