-- unpark: let a copy out of the archive into the state that the original had, or drop it.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix channel task_id source keep lock lock_ms [now_ms]
-- RETURNS  1 let out (or dropped), 0 there is no such copy
-- include: clock checks wakeup places lanes
local channel, id, source, keep, lock, lock_ms = unpack(ARGV, 2, 7)
local now, _, nanoseconds = clock(ARGV[8])
local key = task_prefix .. id
expect_places()
if redis.call('HGET', key, 'moved_from') ~= source then return 0 end

redis.call('ZREM', archived, id)
if keep ~= '1' then
  redis.call('DEL', key)
  return 1
end
local fields = redis.call('HMGET', key, 'moved_state', 'moved_score', 'moved_due', 'group', 'order_key', 'limited_by')
local state, score, exact, group = fields[1], fields[2], fields[3], fields[4]
redis.call('HDEL', key, 'moved_from', 'moved_state', 'moved_score', 'moved_due', 'limited_by')
if lock ~= '' and tonumber(lock_ms) > 0 then redis.call('SET', lock, id, 'NX', 'PX', lock_ms) end
if score == PARKED and not exact and (fields[5] or fields[6]) then
  state, score = 'pending', nil -- it waited for its turn there, and does so here
end
if state == 'pending' and fields[5] and not join_lane(queue_prefix, fields[5], id, now) then
  park(queue_prefix, id, nanoseconds)
  return 1
elseif SETS[state] and score then
  local before = earliest(due, scheduled, retry)
  redis.call('ZADD', SETS[state], score, id)
  if state == 'scheduled' or state == 'retry' then
    if exact then redis.call('ZADD', due, exact, id) end
    announce(channel, before, tonumber(exact or score * 1000), now)
  end
elseif state == 'aggregating' and group then
  redis.call('ZADD', group_prefix .. group, score or whole(math.floor(now / 1000)), id)
  redis.call('SADD', groups, group)
else
  state = 'pending'
  redis.call('HSET', key, 'pending_since', nanoseconds)
  redis.call('LPUSH', pending, id)
end
redis.call('HSET', key, 'state', state)
return 1
