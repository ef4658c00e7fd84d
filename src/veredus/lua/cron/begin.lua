-- begin: read the positions of the schedules of one queue; a new schedule begins at the present second.
-- KEYS  MORE states
-- ARGV  ROWS ttl_ms
-- RETURNS  now_ms, then for each: the second of its position, the tick last enqueued (empty for never)
-- NEEDS  clock
local now = clock()
local reply = { now }
for i, ttl_ms in rows() do
  local state = states[i]
  local at, fired = unpack(redis.call('HMGET', state, 'at', 'fired'))
  if not at then
    at = whole(math.floor(now / 1000))
    redis.call('HSET', state, 'at', at)
  end
  redis.call('PEXPIRE', state, ttl_ms)
  reply[#reply + 1] = at
  reply[#reply + 1] = fired or ''
end
return reply
