-- beat: record the heartbeat of a gateway node.
-- KEYS  nodes
-- ARGV  node info
-- RETURNS  milliseconds since its last heartbeat, -1 if none is known
-- NEEDS  clock grow
local now = clock()
local before = redis.call('HGET', nodes, node)
grow('HSET', nodes, node, whole(now) .. ' ' .. info)
return before and now - tonumber(string.match(before, '^%d+')) or -1
