"""Go's inspector and aggregator, emulated: what `asynq`, asynqmon and a Go server with an aggregator do to a queue.

As `go_peer`, it knows only Asynq's keys and fields, so what it can do with our tasks, Go's tools can do.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.interop import protobuf
from tests.interop.go_peer import DAYS_90

_LEAVE = """
local function leave(id, state)
  local removed
  if state == 'pending' then
    removed = redis.call('LREM', ARGV[1] .. 'pending', 0, id)
  elseif state == 'aggregating' then
    local group = redis.call('HGET', ARGV[1] .. 't:' .. id, 'group')
    removed = redis.call('ZREM', ARGV[1] .. 'g:' .. group, id)
    if redis.call('ZCARD', ARGV[1] .. 'g:' .. group) == 0 then redis.call('SREM', ARGV[1] .. 'groups', group) end
  else
    removed = redis.call('ZREM', ARGV[1] .. state, id)
  end
  if removed == 0 then return redis.error_reply('task id not found in its container') end
end
"""
RUN = (
    _LEAVE
    + """
local id, key = ARGV[2], ARGV[1] .. 't:' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
local state = redis.call('HGET', key, 'state')
if state == 'active' then return -1 elseif state == 'pending' then return -2 end
local failed = leave(id, state)
if failed then return failed end
redis.call('LPUSH', ARGV[1] .. 'pending', id)
redis.call('HSET', key, 'state', 'pending')
return 1
"""
)
ARCHIVE = (
    _LEAVE
    + """
local id, key = ARGV[2], ARGV[1] .. 't:' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
local state = redis.call('HGET', key, 'state')
if state == 'active' then return -2 elseif state == 'archived' then return -1 end
local failed = leave(id, state)
if failed then return failed end
redis.call('ZADD', ARGV[1] .. 'archived', ARGV[3], id)
redis.call('HSET', key, 'state', 'archived')
redis.call('ZREMRANGEBYSCORE', ARGV[1] .. 'archived', '-inf', ARGV[4])
redis.call('ZREMRANGEBYRANK', ARGV[1] .. 'archived', 0, -10000)
return 1
"""
)
DELETE = (
    _LEAVE
    + """
local id, key = ARGV[2], ARGV[1] .. 't:' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
local state = redis.call('HGET', key, 'state')
if state == 'active' then return -1 end
local failed = leave(id, state)
if failed then return failed end
local lock = redis.call('HGET', key, 'unique_key')
if lock and lock ~= '' and redis.call('GET', lock) == id then redis.call('DEL', lock) end
return redis.call('DEL', key)
"""
)
RUN_ALL = """
local ids = redis.call('ZRANGE', ARGV[1] .. ARGV[2], 0, -1)
for _, id in ipairs(ids) do
  redis.call('LPUSH', ARGV[1] .. 'pending', id)
  redis.call('HSET', ARGV[1] .. 't:' .. id, 'state', 'pending')
end
redis.call('DEL', ARGV[1] .. ARGV[2])
return #ids
"""
UPDATE = """
local key = ARGV[1] .. 't:' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
if redis.call('HGET', key, 'state') ~= 'scheduled' then return -1 end
redis.call('HSET', key, 'msg', ARGV[3])
return 1
"""
REMOVE_QUEUE = """
if redis.call('LLEN', ARGV[1] .. 'active') > 0 then return -2 end
for _, name in ipairs({'pending', 'scheduled', 'retry', 'archived'}) do
  local ids = redis.call(name == 'pending' and 'LRANGE' or 'ZRANGE', ARGV[1] .. name, 0, -1)
  for _, id in ipairs(ids) do redis.call('DEL', ARGV[1] .. 't:' .. id) end
end
for _, name in ipairs({'pending', 'active', 'scheduled', 'retry', 'archived', 'lease'}) do
  redis.call('DEL', ARGV[1] .. name)
end
return 1
"""
STATS = """
local p = ARGV[1]
local oldest = redis.call('LRANGE', p .. 'pending', -1, -1)
local aggregating = 0
for _, g in ipairs(redis.call('SMEMBERS', p .. 'groups')) do
  aggregating = aggregating + redis.call('ZCARD', p .. 'g:' .. g)
end
return {
  redis.call('LLEN', p .. 'pending'), redis.call('LLEN', p .. 'active'), redis.call('ZCARD', p .. 'scheduled'),
  redis.call('ZCARD', p .. 'retry'), redis.call('ZCARD', p .. 'archived'), redis.call('ZCARD', p .. 'completed'),
  aggregating, oldest[1] and redis.call('HGET', p .. 't:' .. oldest[1], 'pending_since') or 0,
}
"""
MEMORY = """
local p, total = ARGV[1], 0
for _, name in ipairs({'active', 'pending', 'scheduled', 'retry', 'archived', 'completed'}) do
  local is_list = name == 'active' or name == 'pending'
  local ids = redis.call(is_list and 'LRANGE' or 'ZRANGE', p .. name, 0, 19)
  local size = redis.call(is_list and 'LLEN' or 'ZCARD', p .. name)
  if #ids > 0 then
    local bytes = 0
    for _, id in ipairs(ids) do bytes = bytes + redis.call('MEMORY', 'USAGE', p .. 't:' .. id) end
    total = total + bytes / #ids * size + redis.call('MEMORY', 'USAGE', p .. name)
  end
end
return math.floor(total)
"""
AGGREGATE_ALL = """
local group = ARGV[1] .. 'g:' .. ARGV[2]
local set = group .. ':' .. ARGV[3]
local rows = redis.call('ZRANGE', group, 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do redis.call('ZADD', set, rows[i + 1], rows[i]) end
redis.call('DEL', group)
redis.call('ZADD', ARGV[1] .. 'aggregation_sets', ARGV[4], set)
redis.call('SREM', ARGV[1] .. 'groups', ARGV[2])
local messages = {}
for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
  messages[#messages + 1] = redis.call('HGET', ARGV[1] .. 't:' .. id, 'msg')
end
return messages
"""
DELETE_SET = """
local set = ARGV[1] .. 'g:' .. ARGV[2] .. ':' .. ARGV[3]
for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do redis.call('DEL', ARGV[1] .. 't:' .. id) end
redis.call('DEL', set)
redis.call('ZREM', ARGV[1] .. 'aggregation_sets', set)
return 1
"""


class GoInspector:
    """One queue in the hands of Go's tools."""

    def __init__(self, client: Any, queue: str = "default") -> None:
        self.client, self.queue = client, queue
        self.prefix = f"asynq:{{{queue}}}:"

    async def _eval(self, script: str, *args: Any) -> Any:
        return await self.client.eval(script, 0, self.prefix, *args)

    async def run(self, task_id: str) -> int:
        return int(await self._eval(RUN, task_id))

    async def archive(self, task_id: str) -> int:
        now = int(time.time())
        return int(await self._eval(ARCHIVE, task_id, now, now - DAYS_90))

    async def delete(self, task_id: str) -> int:
        return int(await self._eval(DELETE, task_id))

    async def run_all(self, state: str) -> int:
        return int(await self._eval(RUN_ALL, state))

    async def update_payload(self, task_id: str, payload: bytes) -> int:
        data = await self.client.hget(f"{self.prefix}t:{task_id}", "msg")
        message, _ = protobuf.decode("TaskMessage", data)
        edited = protobuf.encode("TaskMessage", message | {"payload": payload})
        return int(await self._eval(UPDATE, task_id, edited))

    async def remove_queue(self) -> int:
        code: int = await self._eval(REMOVE_QUEUE)
        if code == 1:
            await self.client.srem("asynq:queues", self.queue)
        return code

    async def stats(self) -> dict[str, int]:
        names = ("pending", "active", "scheduled", "retry", "archived", "completed", "aggregating", "since")
        return dict(zip(names, map(int, await self._eval(STATS)), strict=True))

    async def memory(self) -> int:
        return int(await self._eval(MEMORY))

    async def stage(self, group: str) -> tuple[str, list[dict[str, Any]]]:
        """AggregationCheck and ReadAggregationSet of a ripe group: the set's id and the members."""
        set_id = str(uuid.uuid4())
        found = await self._eval(AGGREGATE_ALL, group, set_id, int(time.time()) + 120)
        return set_id, [protobuf.decode("TaskMessage", data)[0] for data in found]

    async def delete_set(self, group: str, set_id: str) -> None:
        await self._eval(DELETE_SET, group, set_id)
