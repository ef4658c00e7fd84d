"""A Go peer, emulated: Asynq's broker operations as plain scripts and commands, step by step as Asynq does them.

It knows only Asynq's keys and fields and reads its own clock, so what it can do with our tasks, a Go service can do.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import ResponseError

from tests.interop import protobuf

LEASE, SLACK, DAYS_90 = 30, 30, 90 * 86400
LEASE_EXPIRED = "asynq: task lease expired"

ENQUEUE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'msg', ARGV[1], 'state', 'pending', 'pending_since', ARGV[3])
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
"""
ENQUEUE_UNIQUE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return -1 end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[2], 'msg', ARGV[3], 'state', 'pending', 'pending_since', ARGV[4], 'unique_key', KEYS[1])
redis.call('LPUSH', KEYS[3], ARGV[1])
return 1
"""
SCHEDULE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'msg', ARGV[1], 'state', 'scheduled')
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
return 1
"""
DEQUEUE = """
if redis.call('EXISTS', KEYS[2]) == 0 then
  local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[3])
  if id then
    local key = ARGV[2] .. id
    redis.call('HSET', key, 'state', 'active')
    redis.call('HDEL', key, 'pending_since')
    redis.call('ZADD', KEYS[4], ARGV[1], id)
    return redis.call('HGET', key, 'msg')
  end
end
return nil
"""
_TAKE_OUT = """
if redis.call('LREM', KEYS[1], 0, ARGV[1]) == 0 then return redis.error_reply('NOT FOUND') end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return redis.error_reply('NOT FOUND') end
"""
_COUNT = """
local function count(day, total)
  if redis.call('INCR', day) == 1 then redis.call('EXPIREAT', day, ARGV[2]) end
  redis.call('INCR', total)
end
"""
DONE = (
    _COUNT
    + _TAKE_OUT
    + """
if redis.call('DEL', KEYS[3]) == 0 then return redis.error_reply('NOT FOUND') end
count(KEYS[4], KEYS[5])
if KEYS[6] and redis.call('GET', KEYS[6]) == ARGV[1] then redis.call('DEL', KEYS[6]) end
return redis.status_reply('OK')
"""
)
COMPLETE = (
    _COUNT
    + _TAKE_OUT
    + """
if redis.call('ZADD', KEYS[6], ARGV[3], ARGV[1]) ~= 1 then return redis.error_reply('INTERNAL') end
redis.call('HSET', KEYS[3], 'msg', ARGV[4], 'state', 'completed')
count(KEYS[4], KEYS[5])
if KEYS[7] and redis.call('GET', KEYS[7]) == ARGV[1] then redis.call('DEL', KEYS[7]) end
return redis.status_reply('OK')
"""
)
REQUEUE = (
    _TAKE_OUT
    + """
redis.call('RPUSH', KEYS[4], ARGV[1])
redis.call('HSET', KEYS[3], 'state', 'pending')
return redis.status_reply('OK')
"""
)
FAIL = (
    _COUNT
    + _TAKE_OUT
    + """
redis.call('ZADD', KEYS[8], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[3], 'msg', ARGV[4], 'state', ARGV[5])
if ARGV[6] == '1' then
  count(KEYS[4], KEYS[5])
  count(KEYS[6], KEYS[7])
end
return redis.status_reply('OK')
"""
)
FORWARD = """
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 100)
for _, id in ipairs(ids) do
  local key = ARGV[2] .. id
  local group = redis.call('HGET', key, 'group')
  if group and group ~= '' then
    redis.call('ZADD', ARGV[4] .. group, ARGV[1], id)
    redis.call('ZREM', KEYS[1], id)
    redis.call('HSET', key, 'state', 'aggregating')
  else
    redis.call('LPUSH', KEYS[2], id)
    redis.call('ZREM', KEYS[1], id)
    redis.call('HSET', key, 'state', 'pending', 'pending_since', ARGV[3])
  end
end
return #ids
"""
ACQUIRE = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(ARGV[1]) - 1)
if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
  return 'true'
end
return 'false'
"""
EXPIRED = """
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])) do
  local message = redis.call('HGET', ARGV[2] .. id, 'msg')
  if message then found[#found + 1] = message end
end
return found
"""


class NotFound(Exception):
    """Asynq's NOT FOUND: the task is not active, or has no lease."""


class GoPeer:
    """One Go client, server and inspector over one Redis. `skew` moves its clock, in seconds."""

    def __init__(self, client: Any, queue: str = "default") -> None:
        self.client, self.queue = client, queue
        self.skew = 0.0

    # The client.

    async def enqueue(
        self, task_type: str, payload: bytes = b"", *, task_id: str = "", unique: int = 0, lock: str = "", **fields: Any
    ) -> str:
        """Enqueue or EnqueueUnique; returns the id."""
        message = self._new(task_type, payload, task_id, lock, fields)
        await self.client.sadd("asynq:queues", self.queue)
        task = [self._task(message["id"]), self._key("pending")]
        data, since = protobuf.encode("TaskMessage", message), str(time.time_ns() + int(self.skew * 1e9))
        if lock:
            args = [message["id"], unique, data, since]
            code = await self.client.eval(ENQUEUE_UNIQUE, 3, lock, *task, *args)
        else:
            code = await self.client.eval(ENQUEUE, 2, *task, data, message["id"], since)
        assert code == 1, code
        return str(message["id"])

    async def schedule(self, task_type: str, payload: bytes, at: float, **fields: Any) -> str:
        message = self._new(task_type, payload, "", "", fields)
        await self.client.sadd("asynq:queues", self.queue)
        data = protobuf.encode("TaskMessage", message)
        keys = [self._task(message["id"]), self._key("scheduled")]
        assert await self.client.eval(SCHEDULE, 2, *keys, data, int(at), message["id"]) == 1
        return str(message["id"])

    async def cancel(self, task_id: str) -> int:
        """How many servers heard it."""
        return int(await self.client.publish("asynq:cancel", task_id))

    async def pause(self, queue: str) -> bool:
        return bool(await self.client.setnx(f"asynq:{{{queue}}}:paused", int(self._now())))

    async def unpause(self, queue: str) -> bool:
        return bool(await self.client.delete(f"asynq:{{{queue}}}:paused") == 1)

    async def listeners(self) -> int:
        """Servers that listen for cancel commands."""
        return int((await self.client.pubsub_numsub("asynq:cancel"))[0][1])

    # The server.

    async def dequeue(self) -> dict[str, Any] | None:
        """The decoded message, or None."""
        names = ("pending", "paused", "active", "lease")
        args = [int(self._now()) + LEASE, self._key("t:")]
        data = await self.client.eval(DEQUEUE, 4, *[self._key(name) for name in names], *args)
        return None if data is None else protobuf.decode("TaskMessage", data)[0]

    async def done(self, message: dict[str, Any]) -> None:
        lock = [message["unique_key"]] if message.get("unique_key") else []
        keys = [*self._settling(message), *self._counters("processed"), *lock]
        await self._call(DONE, keys, [message["id"], int(self._now()) + DAYS_90])

    async def complete(self, message: dict[str, Any]) -> None:
        now = int(self._now())
        lock = [message["unique_key"]] if message.get("unique_key") else []
        keys = [*self._settling(message), *self._counters("processed"), self._key("completed"), *lock]
        data = protobuf.encode("TaskMessage", message | {"completed_at": now})
        await self._call(COMPLETE, keys, [message["id"], now + DAYS_90, now + message["retention"], data])

    async def requeue(self, message: dict[str, Any]) -> None:
        await self._call(REQUEUE, [*self._settling(message), self._key("pending")], [message["id"]])

    async def retry(self, message: dict[str, Any], delay: float, error: str, *, is_failure: bool = True) -> None:
        now = int(self._now())
        failed = message | {"error_msg": error, "last_failed_at": now}
        failed["retried"] = message.get("retried", 0) + int(is_failure)
        await self._fail(failed, "retry", int(self._now() + delay), is_failure)

    async def archive(self, message: dict[str, Any], error: str) -> None:
        now = int(self._now())
        await self._fail(message | {"error_msg": error, "last_failed_at": now}, "archived", now, True)

    async def extend(self, *task_ids: str) -> None:
        until = int(self._now()) + LEASE
        await self.client.execute_command(
            "ZADD", self._key("lease"), "XX", *[x for task_id in task_ids for x in (until, task_id)]
        )

    async def forward(self) -> int:
        moved = 0
        for source in ("scheduled", "retry"):
            now = self._now()
            args = [int(now), self._key("t:"), int(now * 1e9), self._key("g:")]
            moved += await self.client.eval(FORWARD, 2, self._key(source), self._key("pending"), *args)
        return moved

    async def recover(self, delay: float = 20) -> list[str]:
        """One sweep: what expired more than the slack ago goes to retry, or to the archive."""
        cutoff = int(self._now()) - SLACK
        rows = await self.client.eval(EXPIRED, 1, self._key("lease"), cutoff, self._key("t:"))
        messages = [protobuf.decode("TaskMessage", data)[0] for data in rows]
        for message in messages:
            if message.get("retried", 0) >= message.get("retry", 0):
                await self.archive(message, LEASE_EXPIRED)
            else:
                await self.retry(message, delay, LEASE_EXPIRED)
        return [message["id"] for message in messages]

    async def acquire(self, scope: str, most: int, task_id: str, deadline: int) -> bool:
        """A token of the semaphore of asynq/x/rate."""
        args = [int(self._now()), most, deadline, task_id]
        return bool(await self.client.eval(ACQUIRE, 1, f"asynq:sema:{scope}", *args) == b"true")

    # What they have in common.

    def _new(self, task_type: str, payload: bytes, task_id: str, lock: str, fields: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"type": task_type, "payload": payload, "queue": self.queue}
        message |= {"id": task_id or str(uuid.uuid4()), "retry": 25, "unique_key": lock}
        if "deadline" not in fields:
            message["timeout"] = 1800
        return message | fields

    async def _fail(self, message: dict[str, Any], state: str, score: int, is_failure: bool) -> None:
        keys = [*self._settling(message), *self._counters("processed"), *self._counters("failed"), self._key(state)]
        data = protobuf.encode("TaskMessage", message)
        args = [message["id"], int(self._now()) + DAYS_90, score, data, state, int(is_failure)]
        await self._call(FAIL, keys, args)

    async def _call(self, script: str, keys: list[str], args: list[Any]) -> None:
        try:
            await self.client.eval(script, len(keys), *keys, *args)
        except ResponseError as exc:
            if "NOT FOUND" in str(exc):
                raise NotFound(args[0]) from exc
            raise

    def _settling(self, message: dict[str, Any]) -> list[str]:
        return [self._key("active"), self._key("lease"), self._task(message["id"])]

    def _counters(self, name: str) -> list[str]:
        day = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%d")
        return [self._key(f"{name}:{day}"), self._key(name)]

    def _now(self) -> float:
        return time.time() + self.skew

    def _key(self, rest: str) -> str:
        return f"asynq:{{{self.queue}}}:{rest}"

    def _task(self, task_id: str) -> str:
        return f"asynq:{{{self.queue}}}:t:{task_id}"
