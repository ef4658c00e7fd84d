-- refuse: take back the record of a request that was accepted but could not be passed on: it counts as never come.
-- KEYS  partition
-- ARGV  channel sid rid generation arrival hold_ms [now_ms]
-- RETURNS  refused, answered (it has had its response meanwhile) or gone
-- include: clock log binding
-- Only the record of this arrival is taken back. What is bound to the request waits again for one with its number.
local sid, rid, generation, arrival, hold_ms = unpack(ARGV, 2, 6)
local now = moment(ARGV[7])
local s = look_up(sid, now)
if not s then return 'gone' end
local partition, member = partition_of(sid), sid .. '.' .. rid
local state = redis.call('HGET', s.base .. 'r', rid)
if is_answered(s, rid, state) then return 'answered' end
if not state or string.sub(state, 1, 1) ~= 'A' or not is_marked(state, arrival_mark(generation, arrival)) then
  return 'refused'
end
for _, index in ipairs({ 'dl', 'bd' }) do redis.call('ZCARD', partition .. index) end
local held = redis.call('LLEN', s.base .. 'B:' .. rid) + redis.call('LLEN', s.base .. 'C:' .. rid)

redis.call('HDEL', s.base .. 'r', rid)
redis.call('ZREM', partition .. 'dl', member)
redis.call('HINCRBY', s.base .. 'm', 'op', -1)
if held > 0 then
  redis.call('HSET', s.base .. 'r', rid, 'B:' .. whole(now + tonumber(hold_ms)))
  redis.call('ZADD', partition .. 'bd', now + tonumber(hold_ms), member)
end
return 'refused'
