-- begin: look up where the schedules of one queue stand; a new one stands at the present second.
-- KEYS  {state}*
-- ARGV  {ttl_ms}* [now_ms]
-- RETURNS  now_ms, then for each: the second it stands at, the tick last enqueued (empty for never)
-- include: clock
local now = clock(ARGV[#KEYS + 1])
local reply = { now }
for i, state in ipairs(KEYS) do
  local at = redis.call('HGET', state, 'at')
  if not at then
    at = whole(math.floor(now / 1000))
    redis.call('HSET', state, 'at', at)
  end
  redis.call('PEXPIRE', state, ARGV[i])
  reply[#reply + 1] = at
  reply[#reply + 1] = redis.call('HGET', state, 'fired') or ''
end
return reply
