-- beat: a gateway node lives.
-- KEYS  nodes
-- ARGV  node info [now_ms]
-- RETURNS  milliseconds since its last beat, -1 if nobody knows of one
-- include: clock grow
local now = clock(ARGV[3])
local before = redis.call('HGET', KEYS[1], ARGV[1])
grow('HSET', KEYS[1], ARGV[1], whole(now) .. ' ' .. ARGV[2])
return before and now - tonumber(string.match(before, '^%d+')) or -1
