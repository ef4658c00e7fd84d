-- advance_stale_lanes: check lanes whose first task has ended without us: a Go worker settled it, a Go tool deleted or archived it.
-- KEYS  lanes
-- ARGV  queue_prefix limit:number at_rest_ms:number
-- RETURNS  number of lanes checked
-- NEEDS  clock checks lanes
-- Those that were not checked for longest come first, and none twice within at_rest_ms: so several workers share the
-- work, and however many lanes there are, each gets its turn.
local now, _, nanoseconds = clock()
expect(lanes, 'zset')

local found = redis.call('ZRANGEBYSCORE', lanes, '-inf', whole(now - at_rest_ms), 'LIMIT', 0, limit)
if #found < limit then -- a lane that was checked later than now: the server's clock was set back
  local ahead = redis.call('ZRANGEBYSCORE', lanes, '(' .. whole(now), '+inf', 'LIMIT', 0, limit - #found)
  for _, order_key in ipairs(ahead) do found[#found + 1] = order_key end
end
for _, order_key in ipairs(found) do
  redis.call('ZADD', lanes, 'XX', whole(now), order_key)
  if type(redis.pcall('ZCARD', keys.lane(order_key))) == 'number' then next_turn(queue_prefix, order_key, nanoseconds) end
end
return #found
