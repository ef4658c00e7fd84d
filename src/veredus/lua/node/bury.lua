-- bury: forget a dead gateway node, unless it has come back to life.
-- KEYS  nodes
-- ARGV  node timeout_ms [now_ms]
-- RETURNS  1 if it was forgotten
-- include: clock
local now = clock(ARGV[3])
local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record or now - tonumber(string.match(record, '^%d+') or 0) < tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
