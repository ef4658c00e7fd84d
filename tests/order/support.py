"""A queue seen from a test, with order keys and limits: the scripts called directly, at a given time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.keyspace import PARKED
from tests.support.queue import NOW, Queue
from tests.support.timed import at
from veredus.inspector.inspector import Inspector
from veredus.model.message import TaskMessage
from veredus.store.connection.redis import Redis
from veredus.store.tasks.intake import ENQUEUE_BOUND
from veredus.store.tasks.limits import LimitStore
from veredus.store.tasks.order_keys import OrderKeys
from veredus.wire import keys
from veredus.wire.messages import encode_task

MESSAGE = encode_task(TaskMessage(type="t", id="x", queue="q"))


class Bound(Queue):
    """The queue `q`, whose tasks have order keys or limit keys."""

    def __init__(self, redis: Redis, client: Any) -> None:
        super().__init__(redis, client)
        self.now = NOW

    async def line_up(
        self,
        *entries: Any,
        hold: bool = False,
        due: str = "",
        limit_key: str = "",
        expires: str = "",
        message: bytes = b"m",
        lock: str = "",
        ttl: float = 0,
        call: int | None = None,
        now: int | None = None,
    ) -> list[int]:
        """Each entry: (id, order key)."""
        rows = [(task_id, message, lock, ttl, expires, due, key, hold, limit_key) for task_id, key in entries]
        args = ENQUEUE_BOUND.args([self.key(""), keys.delay_wakeup(self.name), *self.numbered(call)], rows)
        names = self.keys("pending scheduled retry due sent:p:1")
        codes: list[int] = await self._run(ENQUEUE_BOUND, names, args, now or self.now)
        return codes

    async def lane(self, order_key: str) -> list[str]:
        return [item.decode() for item in await self.client.zrange(self.key(f"lane:{order_key}"), 0, -1)]

    async def states(self) -> dict[str, str]:
        """Of every task; `parked` for one that waits for its turn or for a limit."""
        found = {}
        scheduled = dict(await self.client.zrange(self.key("scheduled"), 0, -1, withscores=True))
        async for name in self.client.scan_iter(match=self.prefix + "*", count=1000):
            task_id = name.decode().removeprefix(self.prefix)
            state = (await self.client.hget(name, "state") or b"").decode()
            found[task_id] = "parked" if scheduled.get(task_id.encode()) == float(PARKED) else state
        return dict(sorted(found.items()))

    @property
    def lanes(self) -> OrderKeys:
        return OrderKeys(at(self.redis, self.now))

    @property
    def limits(self) -> LimitStore:
        return LimitStore(at(self.redis, self.now))

    @property
    def inspector(self) -> Inspector:
        return Inspector(at(self.redis, self.now))

    async def advance_stale_lanes(self) -> int:
        return (await self.lanes.advance_stale_lanes([self.name], 0))[0]  # type: ignore[return-value]


@asynccontextmanager
async def bound(redis: Redis, client: Any) -> AsyncIterator[Bound]:
    await client.sadd(keys.QUEUES, "q")
    yield Bound(redis, client)


# What Asynq's own tools do to single tasks, step by step as they do it.


async def go_run(q: Bound, task_id: str) -> None:
    state = (await q.client.hget(q.task(task_id), "state")).decode()
    assert await q.client.zrem(q.key(state), task_id) == 1
    await q.client.lpush(q.key("pending"), task_id)
    await q.client.hset(q.task(task_id), "state", "pending")


async def go_delete(q: Bound, task_id: str) -> None:
    await _go_take_out(q, task_id)
    await q.client.delete(q.task(task_id))


async def go_delete_queue(q: Bound) -> None:
    """By force: whatever is in Asynq's own keys, but no task that runs."""
    assert await q.client.llen(q.key("active")) == 0
    ids = await q.client.lrange(q.key("pending"), 0, -1)
    for name in ("scheduled", "retry", "archived"):
        ids += await q.client.zrange(q.key(name), 0, -1)
    for task_id in ids:
        await q.client.delete(q.task(task_id.decode()))
    await q.client.delete(*q.keys("pending active scheduled retry archived lease"))
    await q.client.srem(keys.QUEUES, q.name)


async def go_archive(q: Bound, task_id: str) -> None:
    await _go_take_out(q, task_id)
    await q.client.zadd(q.key("archived"), {task_id: q.now // 1000})
    await q.client.hset(q.task(task_id), "state", "archived")


async def go_dequeue(q: Bound) -> str | None:
    taken = await q.client.rpoplpush(q.key("pending"), q.key("active"))
    if taken is None:
        return None
    task_id = str(taken.decode())
    await q.client.hset(q.task(task_id), "state", "active")
    await q.client.hdel(q.task(task_id), "pending_since")
    await q.client.zadd(q.key("lease"), {task_id: q.now // 1000 + 30})
    return task_id


async def go_done(q: Bound, task_id: str) -> None:
    await _go_ack(q, task_id)
    await q.client.delete(q.task(task_id))


async def go_retry(q: Bound, task_id: str, seconds: int) -> None:
    await _go_ack(q, task_id)
    await q.client.zadd(q.key("retry"), {task_id: q.now // 1000 + seconds})
    await q.client.hset(q.task(task_id), "state", "retry")


async def _go_ack(q: Bound, task_id: str) -> None:
    assert await q.client.lrem(q.key("active"), 0, task_id) == 1
    assert await q.client.zrem(q.key("lease"), task_id) == 1


async def _go_take_out(q: Bound, task_id: str) -> None:
    state = (await q.client.hget(q.task(task_id), "state")).decode()
    if state == "pending":
        assert await q.client.lrem(q.key("pending"), 0, task_id) == 1
    else:
        assert await q.client.zrem(q.key(state), task_id) == 1
