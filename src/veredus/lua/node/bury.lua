-- bury: delete the record of a dead gateway node, unless it has come back.
-- KEYS  nodes
-- ARGV  node timeout_ms:number
-- RETURNS  1 if it was deleted
-- NEEDS  clock
local record = redis.call('HGET', nodes, node)
if not record or clock() - tonumber(string.match(record, '^%d+') or 0) < timeout_ms then return 0 end
return redis.call('HDEL', nodes, node)
