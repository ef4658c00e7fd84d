-- requeue: give tasks back unrun, to the front of pending, the first of the list as the next to run.
-- KEYS  active lease pending
-- ARGV  task_prefix count {task_id owner}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks hold lanes limits
local active, lease, pending = unpack(KEYS)
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now, _, nanoseconds = clock(ARGV[3 + count * 2])
expect(active, 'list')
expect(pending, 'list')

local lost = {}
for i = count, 1, -1 do
  local id, owner = ARGV[i * 2 + 1], ARGV[i * 2 + 2]
  local key = task_prefix .. id
  local held = holds(key, lease, id, owner)
  if held then
    redis.call('LREM', active, -1, id)
    redis.call('ZREM', lease, id)
    redis.call('RPUSH', pending, id)
    redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds)
    redis.call('HDEL', key, 'held', 'slots')
    keep_lock(held[3], id, 0)
    if held[5] then free_slots(string.sub(task_prefix, 1, -3), held[5], id, now, nanoseconds) end
  else
    table.insert(lost, 1, i)
  end
end
return lost
