-- release_copy: let a copy out of the archive into the state that the original had, or drop it.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix channel task_id source keep:flag lock lock_ms:number
-- RETURNS  1 let out (or dropped), 0 there is no such copy
-- NEEDS  clock wakeup places lanes waking
local now, _, nanoseconds = clock()
local key = keys.task(task_id)
expect_places()
if redis.call('HGET', key, 'moved_from') ~= source then return 0 end

redis.call('ZREM', archived, task_id)
if not keep then
  redis.call('DEL', key)
  return 1
end
local state, score, exact, group, order_key, limited_by = unpack(redis.call('HMGET', key, 'moved_state', 'moved_score',
  'moved_due', 'group', 'order_key', 'limited_by'), 1, 6)
redis.call('HDEL', key, 'moved_from', 'moved_state', 'moved_score', 'moved_due', 'limited_by')
if lock ~= '' and lock_ms > 0 then redis.call('SET', lock, task_id, 'NX', 'PX', lock_ms) end
if score == PARKED and not exact and (order_key or limited_by) then
  state, score = 'pending', nil -- it waited for its turn there, and does so here
end
if state == 'pending' and order_key and not join_lane(queue_prefix, order_key, task_id, now) then
  park(queue_prefix, task_id, nanoseconds)
  return 1
elseif SETS[state] and score then
  local before = earliest(due, scheduled, retry)
  redis.call('ZADD', SETS[state], score, task_id)
  if state == 'scheduled' or state == 'retry' then
    if exact then redis.call('ZADD', due, exact, task_id) end
    announce(channel, before, tonumber(exact or score * 1000), now)
  end
elseif state == 'aggregating' and group then
  redis.call('ZADD', keys.group(group), score or whole(math.floor(now / 1000)), task_id)
  redis.call('SADD', groups, group)
else
  state = 'pending'
  redis.call('HSET', key, 'pending_since', nanoseconds)
  redis.call('LPUSH', pending, task_id)
  wake(queue_prefix)
end
redis.call('HSET', key, 'state', state)
return 1
