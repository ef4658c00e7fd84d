-- tend: look after lanes whose first task has ended without us: a Go worker settled it, a Go tool deleted or archived it.
-- KEYS  lanes
-- ARGV  queue_prefix limit at_rest_ms [now_ms]
-- RETURNS  number of lanes looked at
-- include: clock checks lanes
-- Those that were not looked at for longest come first, and none twice within at_rest_ms: so several workers share the
-- work, and however many lanes there are, each gets its turn.
local lanes, queue_prefix, limit = KEYS[1], ARGV[1], ARGV[2]
local now, _, nanoseconds = clock(ARGV[4])
expect(lanes, 'zset')

local found = redis.call('ZRANGEBYSCORE', lanes, '-inf', whole(now - tonumber(ARGV[3])), 'LIMIT', 0, limit)
for _, order_key in ipairs(found) do
  redis.call('ZADD', lanes, 'XX', whole(now), order_key)
  if type(redis.pcall('ZCARD', queue_prefix .. 'lane:' .. order_key)) == 'number' then
    next_turn(queue_prefix, order_key, nanoseconds)
  end
end
return #found
