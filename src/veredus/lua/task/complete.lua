-- complete: keep tasks that succeeded, with their result, until their retention ends.
-- KEYS  active lease completed processed
-- ARGV  task_prefix count {task_id owner unique_key message retention has_result result}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks hold counters tell lanes limits
local active, lease, completed, processed = unpack(KEYS)
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now, _, nanoseconds = clock(ARGV[3 + count * 7])
expect(active, 'list')
expect(completed, 'zset')

local lost = {}
for i = 1, count do
  local id, owner, lock, message, retention, has_result, result = unpack(ARGV, i * 7 - 4, i * 7 + 2)
  local key = task_prefix .. id
  local held = holds(key, lease, id, owner)
  if held then
    redis.call('LREM', active, -1, id)
    redis.call('ZREM', lease, id)
    redis.call('ZADD', completed, whole(math.floor(now / 1000) + tonumber(retention)), id)
    redis.call('HSET', key, 'msg', message, 'state', 'completed')
    if has_result == '1' then redis.call('HSET', key, 'result', result) end
    redis.call('HDEL', key, 'held', 'waited', 'cancel', 'cancel_of', 'slots', 'traceback')
    release(lock, id)
    local queue_prefix = string.sub(task_prefix, 1, -3)
    if held[4] then leave_lane(queue_prefix, held[4], id, nanoseconds) end
    if held[5] then free_slots(queue_prefix, held[5], id, now, nanoseconds) end
    -- The result itself is told unless it is large or was written before: then whoever waits fetches it.
    tell(held[2], 'completed', key, has_result == '1' and #result <= 65536 and '=' .. result or '')
  else
    lost[#lost + 1] = i
  end
end
tally(now, processed, count - #lost, nil, 0)
return lost
